//! The log lines of a communicator's thread.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_queue::LogQueue;

use crate::detach::detached;

/// Iterates over log lines as they are written, until the communicator ends. Does not keep the
/// communicator alive.
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
        // SAFETY: the call waits for the communicator's thread and accesses no Python object.
        unsafe { detached(py, || self.lines.next_line()) }
    }
}
