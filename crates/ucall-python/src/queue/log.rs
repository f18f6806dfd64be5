//! The log lines of a communicator's thread.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_queue::{LogLevel, LogQueue};

use super::detach::detached;

/// Levels of Python's `logging`.
const INFO: u8 = 20;
const WARNING: u8 = 30;

/// Iterates over log lines as they are written, each with its level in `logging`, until the
/// communicator ends. Does not keep the communicator alive.
#[pyclass(frozen, module = "ucall._core", name = "QueueLog")]
pub(crate) struct QueueLog {
    pub(super) lines: Arc<LogQueue>,
}

#[pymethods]
impl QueueLog {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> Option<(u8, String)> {
        // SAFETY: the call waits for the communicator's thread and accesses no Python object.
        let (level, line) = unsafe { detached(py, || self.lines.next_line()) }?;
        Some((if level == LogLevel::Info { INFO } else { WARNING }, line))
    }
}
