//! A listening socket that several processes share, made by the supervisor for its workers.

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ucall_engine::{Address, Bound};

use crate::listen_address::ListenAddress;

/// A listening socket and, of a Unix one, its file, which is removed with it.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct ListeningSocket {
    address: Address,
    is_inherited: bool,
    bound: Mutex<Option<Bound>>,
}

impl ListeningSocket {
    fn bound(&self) -> MutexGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Bound> for ListeningSocket {
    fn from(bound: Bound) -> Self {
        let (address, is_inherited) = (bound.address.clone(), bound.listener.is_inherited());
        Self { address, is_inherited, bound: Mutex::new(Some(bound)) }
    }
}

#[pymethods]
impl ListeningSocket {
    #[new]
    fn new(py: Python<'_>, host: &str, port: u16, uds_mode: u32) -> PyResult<Self> {
        let asked = ListenAddress::new(host, port, uds_mode)?;
        Ok(py.detach(|| asked.bind())?.into())
    }

    /// The address without the port, or `unix:` and a path.
    #[getter]
    fn host(&self) -> String {
        self.address.host()
    }

    /// The port that is listened on; 0 for a Unix socket.
    #[getter]
    fn port(&self) -> u16 {
        self.address.port()
    }

    /// Whether another program has bound it, and keeps it for further servers.
    #[getter]
    fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Duplicates the descriptor, for a process that listens.
    fn descriptor(&self) -> PyResult<RawFd> {
        let Some(bound) = &*self.bound() else { return Ok(-1) };
        Ok(OwnedFd::from(bound.listener.try_clone()?).into_raw_fd())
    }

    /// Wakes all processes that listen, because one that the kernel has woken may have died before
    /// it has accepted.
    fn wake_all(&self) {
        self.bound().iter().for_each(|bound| bound.listener.wake_all());
    }

    /// Refuses connections from now on, in all processes, and resets those that wait. An inherited
    /// socket is left to those who keep it.
    fn shut_down(&self) {
        if self.is_inherited {
            return;
        }
        self.bound().iter().for_each(|bound| bound.listener.shut_down());
    }

    /// Closes the descriptor and removes the file.
    fn close(&self) {
        *self.bound() = None;
    }
}
