//! The lines that a server on standard input and output gets and sends: for `ucall._mcp.stdio`.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::server::Server;

/// Separates lines that are documents for a server from those that are not.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Lines(Mutex<ucall_proto::Lines>);

/// Adapts the lines that a server sends to MCP.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct ReplyLines(Mutex<ucall_proto::ReplyLines>);

#[pymethods]
impl ReplyLines {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// The next bytes, adapted. It may keep the beginning of a line until the next ones come.
    fn adapt<'py>(&self, py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyBytes> {
        let mut out = Vec::with_capacity(bytes.len());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).adapt(bytes, &mut out);
        PyBytes::new(py, &out)
    }
}

#[pymethods]
impl Lines {
    #[new]
    fn new(server: &Bound<'_, Server>) -> Self {
        Self(Mutex::new(ucall_proto::Lines::new(&server.get().config.limits)))
    }

    /// Takes the next bytes; none of them means the end. Returns the documents that have become
    /// whole, and the errors for other lines.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        bytes: &[u8],
    ) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let (mut documents, mut errors) = (Vec::new(), Vec::new());
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match bytes {
            [] => lines.finish(&mut documents, &mut errors),
            _ => lines.receive(bytes, &mut documents, &mut errors),
        }
        (PyBytes::new(py, &documents), PyBytes::new(py, &errors))
    }
}
