//! A Unix socket that several processes listen on, made by the supervisor for its workers.

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use ucall_engine::{Address, UnixFile};

use crate::bind::bind;

/// A listening socket and its file, which is removed with it.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct UnixSocket(Mutex<Option<(ucall_engine::Listener, Option<UnixFile>)>>);

#[pymethods]
impl UnixSocket {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<Self> {
        let bound = py.detach(|| bind(&Address::Unix { path, mode }))?;
        Ok(Self(Mutex::new(Some((bound.listener, bound.file)))))
    }

    /// Duplicates the descriptor, for a process that listens.
    fn descriptor(&self) -> PyResult<RawFd> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((listener, _)) = &*held else { return Ok(-1) };
        Ok(OwnedFd::from(listener.try_clone()?).into_raw_fd())
    }

    /// Closes the socket and removes its file.
    fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
