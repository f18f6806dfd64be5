//! What `get` returns.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// What came, and from whom.
#[pyclass(frozen, module = "ucall.queue", name = "Message", generic)]
pub(crate) struct Message {
    /// The id of who sent it.
    #[pyo3(get)]
    peer: Py<PyAny>,
    /// What was put.
    #[pyo3(get)]
    data: Py<PyAny>,
    /// Whether an earlier life of this communicator may have got it already.
    #[pyo3(get)]
    redelivered: bool,
}

#[pymethods]
impl Message {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, ["peer", "data"])
    }

    #[new]
    #[pyo3(signature = (peer, data, redelivered = false))]
    pub(super) fn new(peer: Py<PyAny>, data: Py<PyAny>, redelivered: bool) -> Self {
        Self { peer, data, redelivered }
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Self>() else { return Ok(false) };
        let other = other.get();
        Ok(self.peer.bind(py).eq(&other.peer)? && self.data.bind(py).eq(&other.data)?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (peer, data) = (self.peer.bind(py).repr()?, self.data.bind(py).repr()?);
        let redelivered = if self.redelivered { ", redelivered=True" } else { "" };
        Ok(format!("Message(peer={peer}, data={data}{redelivered})"))
    }
}
