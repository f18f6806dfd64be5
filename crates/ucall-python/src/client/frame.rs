//! The frames of a WebSocket client, for Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::websocket::{Opcode, write_client_frame};

use crate::ffi;

/// A frame of the kind `"pong"` or `"close"`, masked by a random key of 4 bytes.
#[pyfunction]
pub(crate) fn client_frame<'py>(
    py: Python<'py>,
    kind: &str,
    payload: &Bound<'py, PyAny>,
    key: [u8; 4],
) -> PyResult<Bound<'py, PyBytes>> {
    let opcode = match kind {
        "pong" => Opcode::Pong,
        "close" => Opcode::Close,
        _ => return Err(PyValueError::new_err("kind: expected pong or close")),
    };
    let mut frame = Vec::new();
    ffi::with_buffer(payload, |bytes| write_client_frame(&mut frame, opcode, bytes, key))?;
    Ok(PyBytes::new(py, &frame))
}
