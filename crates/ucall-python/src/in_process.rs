//! What tests in the process of a server use: connections without an address, and contexts without
//! a call.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use pyo3::exceptions::PyConnectionRefusedError;
use pyo3::prelude::*;
use ucall_engine::Peer;
use ucall_server::Message;

use crate::context::Context;
use crate::identity::Identity;
use crate::server::Server;

/// Sets whether the next runs of a server bind its address. If not, they read no files of TLS, and
/// their connections come by `adopt`.
#[pyfunction]
pub(crate) fn set_binds(server: &Bound<'_, Server>, binds: bool) {
    server.get().state().binds = binds;
}

/// Has a running server serve a connected stream, whose descriptor it takes over, for `peer` if it
/// is given.
#[pyfunction]
#[pyo3(signature = (server, descriptor, peer=None))]
pub(crate) fn adopt(
    server: &Bound<'_, Server>,
    descriptor: RawFd,
    peer: Option<PeerArgument>,
) -> PyResult<()> {
    // SAFETY: the caller gives the descriptor away.
    let stream = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let Some(mailbox) = server.get().state().worker.as_ref().map(|it| it.mailbox.clone()) else {
        return Err(PyConnectionRefusedError::new_err("the server does not run"));
    };
    mailbox.send(Message::Adopt(stream, peer.map(Peer::from)));
    Ok(())
}

/// The other end of a connection, as `ucall.Context` shows it.
#[derive(FromPyObject)]
pub(crate) enum PeerArgument {
    Process(i32, u32, u32),
    Address(IpAddr, u16),
}

impl From<PeerArgument> for Peer {
    fn from(peer: PeerArgument) -> Self {
        match peer {
            PeerArgument::Process(pid, uid, gid) => Self::Process { pid, uid, gid },
            PeerArgument::Address(ip, port) => Self::Address(SocketAddr::new(ip, port)),
        }
    }
}

/// Makes a context that belongs to no call. `headers` are lines as HTTP has them.
#[pyfunction]
pub(crate) fn make_context(
    py: Python<'_>,
    user: Option<Py<PyAny>>,
    headers: Vec<u8>,
    peer: Option<PeerArgument>,
) -> Context {
    let user = user.map(|user| Arc::new(Identity::new(py, user)) as _);
    Context::without_call(user, &headers, peer.map(Peer::from))
}
