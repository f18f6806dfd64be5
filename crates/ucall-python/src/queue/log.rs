//! What a communicator's thread has for the log.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_queue::LogQueue;

use crate::detach::detached;

/// Lines for the log, each once it is there, until the communicator has ended. It does not keep
/// the communicator alive.
#[pyclass(frozen, module = "ucall._core", name = "QueueLog")]
pub(crate) struct QueueLog {
    pub(super) lines: Arc<LogQueue>,
}

#[pymethods]
impl QueueLog {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> Option<String> {
        // SAFETY: it waits for the communicator's thread, and touches no Python object.
        unsafe { detached(py, || self.lines.next_line()) }
    }
}
