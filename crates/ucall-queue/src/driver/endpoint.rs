//! Endpoints of communicators: addresses, listeners and attempts to connect.
#![forbid(unsafe_code)]

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use ucall_engine::{UnixFile, bind, bind_unix};

use crate::shared::{self, Channel};

/// Write permission on the file of a Unix socket permits to connect: the owner alone has it.
const UNIX_FILE_MODE: u32 = 0o600;

/// The size of each buffer of a socket whose peer is on this host. By default the system lets them
/// grow to many megabytes, as distant peers need; on one host they then outgrow the caches, and
/// each copy of a long message waits for memory. For epoll alone: io_uring, which continues a send
/// in the kernel, was not faster with less.
const HOST_BUFFER_BYTES: usize = 1 << 20;

/// Descriptors that the rest of the process keeps.
const RESERVED_DESCRIPTORS: u64 = 64;

/// The address at which a communicator listens, or to which it connects.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A name or address, and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A socket in the file system, beside which long messages go through shared memory.
    Shared(PathBuf),
    /// The program makes the links.
    External,
}

#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Clients send a preamble, for shared memory.
        is_shared: bool,
        /// Removed with the listener.
        _file: UnixFile,
    },
}

/// An established connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    /// The channel for shared memory, if both sides have that.
    pub(super) channel: Option<Channel>,
}

impl Endpoint {
    pub(super) fn listen(&self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(..) => Listener::Tcp(bind(self.resolve(0)?, false)?),
            Self::Unix(path) | Self::Shared(path) => {
                let (listener, _file) = bind_unix(path, UNIX_FILE_MODE)?;
                Listener::Unix { listener, is_shared: matches!(self, Self::Shared(_)), _file }
            }
            Self::External => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// One of the addresses, the next at each attempt.
    fn resolve(&self, attempt: usize) -> io::Result<SocketAddr> {
        let Self::Tcp(host, port) = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
        let nothing = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        addresses.get(attempt % addresses.len().max(1)).copied().ok_or_else(nothing)
    }

    /// Begins to connect. The socket becomes writable once it is connected or has failed.
    pub(super) fn dial(&self, attempt: usize) -> io::Result<OwnedFd> {
        let (domain, protocol, address) = match self {
            Self::Tcp(..) => {
                let address = self.resolve(attempt)?;
                (Domain::for_address(address), Some(Protocol::TCP), SockAddr::from(address))
            }
            Self::Unix(path) | Self::Shared(path) => (Domain::UNIX, None, SockAddr::unix(path)?),
            Self::External => return Err(io::ErrorKind::Unsupported.into()),
        };
        let socket = Socket::new(domain, Type::STREAM, protocol)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                Err(error)
            }
            _ => Ok(socket.into()),
        }
    }
}

/// The result of an attempt to connect.
pub(super) fn connected(socket: OwnedFd) -> io::Result<OwnedFd> {
    let socket_ref = SockRef::from(&socket);
    match socket_ref.take_error()? {
        Some(error) => Err(error),
        None => {
            socket_ref.peer_addr()?;
            prepare(socket)
        }
    }
}

/// Sets a connected socket up for the engines.
fn prepare(socket: OwnedFd) -> io::Result<OwnedFd> {
    let socket_ref = SockRef::from(&socket);
    socket_ref.set_nonblocking(false)?;
    if socket_ref.local_addr()?.as_socket().is_some() {
        socket_ref.set_tcp_nodelay(true)?;
    }
    Ok(socket)
}

/// Bounds the buffers of a connected socket whose peer is on this host.
pub(super) fn bound_buffers(socket: &OwnedFd) {
    let socket_ref = SockRef::from(socket);
    let ip = |address: io::Result<SockAddr>| Some(address.ok()?.as_socket()?.ip());
    let (ours, theirs) = (ip(socket_ref.local_addr()), ip(socket_ref.peer_addr()));
    if theirs.is_some_and(|it| it.is_loopback() || Some(it) == ours) {
        // Without them the socket works, too.
        let _ = socket_ref.set_send_buffer_size(HOST_BUFFER_BYTES);
        let _ = socket_ref.set_recv_buffer_size(HOST_BUFFER_BYTES);
    }
}

impl Listener {
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix { listener, .. } => listener.as_fd(),
        }
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix { .. } => None,
        }
    }

    /// The next connection; `WouldBlock` when there is none.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        prepare(match self {
            Self::Tcp(listener) => listener.accept()?.0.into(),
            Self::Unix { listener, .. } => listener.accept()?.0.into(),
        })
    }

    /// The most connections at a time, below the descriptor limit of this process. A connection
    /// with shared memory takes a second descriptor for its channel.
    pub(super) fn connections_max(&self) -> usize {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let each = if self.is_shared() { 2 } else { 1 };
        let connections = descriptors.saturating_sub(RESERVED_DESCRIPTORS) / each;
        usize::try_from(connections).unwrap_or(usize::MAX).max(1)
    }

    /// Whether clients send a preamble.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Unix { is_shared: true, .. })
    }

    /// Sends the preamble, if there is one, on an accepted connection.
    pub(super) fn send_preamble(&self, socket: OwnedFd) -> io::Result<Connection> {
        let channel = if self.is_shared() { shared::send_preamble(socket.as_fd())? } else { None };
        Ok(Connection { socket, channel })
    }
}

impl Drop for Listener {
    /// Frees the address now, though a ring may keep the socket open a little longer.
    fn drop(&mut self) {
        // Where the system cannot do this, the address is free without it.
        let _ = rustix::net::shutdown(self.descriptor(), rustix::net::Shutdown::Both);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// The buffer size that the system reports after a request: twice the bytes granted. `None`
    /// where its limit cannot be read, as in some containers.
    fn granted(bytes: usize, limit: &str) -> Option<usize> {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{limit}")).ok()?;
        Some(2 * bytes.min(text.trim().parse().ok()?))
    }

    #[test]
    fn loopback_sockets_have_bounded_buffers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        for socket in [OwnedFd::from(dialed), accepted.into()] {
            let socket = prepare(socket).unwrap();
            bound_buffers(&socket);
            let socket_ref = SockRef::from(&socket);
            for (found, limit) in [
                (socket_ref.recv_buffer_size().unwrap(), "rmem_max"),
                (socket_ref.send_buffer_size().unwrap(), "wmem_max"),
            ] {
                let granted = granted(HOST_BUFFER_BYTES, limit);
                assert_eq!(found, granted.unwrap_or(found));
                assert!(found <= 2 * HOST_BUFFER_BYTES);
            }
        }
    }
}
