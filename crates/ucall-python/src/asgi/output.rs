//! Where the messages of an application go, and what its `send` returns.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::asyncio::tasks;
use crate::ffi;
use crate::streams::StreamedCall;

/// Bytes of a response in one piece: a longer one is sent in parts, so that the worker has room for
/// others.
pub(super) const PIECE_BYTES_MAX: usize = 64 << 10;

/// Where the response goes.
pub(super) enum Output {
    /// Into `text`: the task takes its first step. `room` is done when that is over. The response
    /// of HTTP goes there when it is complete.
    Buffer { text: Vec<u8>, room: Option<Py<PyAny>> },
    /// To the caller.
    Caller(StreamedCall),
}

/// What the first step of a task has left to be sent.
#[derive(Default)]
pub(super) struct FirstStep {
    pub(super) parts: Vec<Vec<u8>>,
    /// Whether what the client has sent since may be read.
    pub(super) takes_body: bool,
    /// The last part, or the payload of a Close frame.
    pub(super) outcome: Option<Vec<u8>>,
}

/// What `send` has done.
pub(super) enum Received<'py> {
    Done,
    /// The message is taken; the next one waits for this.
    Waits(Bound<'py, PyAny>),
}

/// What the first step of a task has sent.
pub(crate) enum Sent {
    /// The whole response.
    All(Vec<u8>),
    /// A part of it, or nothing.
    Part,
}

/// Completes futures that are not done.
pub(super) fn complete(
    py: Python<'_>,
    futures: impl IntoIterator<Item = Py<PyAny>>,
) -> PyResult<()> {
    for future in futures {
        tasks::set_done(future.bind(py))?;
    }
    Ok(())
}

pub(super) fn unexpected(kind: &str, why: &str) -> PyErr {
    PyRuntimeError::new_err(format!("unexpected message {kind}: {why}"))
}

/// The bytes of a member of a message: bytes, or another buffer of them.
pub(super) fn bytes_of(name: &str, bytes: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    if let Ok(bytes) = bytes.cast::<PyBytes>() {
        return Ok(bytes.clone().into());
    }
    if !ffi::has_buffer(bytes) {
        let found = ffi::type_name(bytes);
        return Err(PyTypeError::new_err(format!("{name}: expected bytes, got {found}")));
    }
    let copied = bytes.py().get_type::<PyBytes>().call1((bytes,))?;
    Ok(copied.cast_into::<PyBytes>()?.into())
}
