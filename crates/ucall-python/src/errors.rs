//! The JSON-RPC errors of Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use ucall_proto::RpcError;

use crate::convert::{self, ConversionFault};

create_exception!(
    ucall._core,
    Unwritable,
    PyTypeError,
    "An object that cannot be written as JSON. The message is for the client."
);

/// The exceptions that a server treats specially.
pub(crate) struct Errors {
    /// `ucall.RPCError`
    rpc_error: Py<PyType>,
}

impl Errors {
    pub(crate) fn import(py: Python<'_>) -> PyResult<Self> {
        let rpc_error = py.import("ucall.errors")?.getattr("RPCError")?;
        Ok(Self { rpc_error: rpc_error.cast_into::<PyType>()?.unbind() })
    }

    /// Whether the exception is a `ucall.RPCError`, which the client gets as it is.
    pub(crate) fn is_for_caller(&self, py: Python<'_>, error: &PyErr) -> bool {
        error.is_instance(py, self.rpc_error.bind(py))
    }
}

/// The error that a `ucall.RPCError` describes. `len_max` limits its data, in which `encode`
/// replaces values that JSON does not have.
pub(crate) fn for_caller<'py>(
    py: Python<'py>,
    error: &PyErr,
    len_max: usize,
    encode: &Bound<'py, PyAny>,
) -> Result<RpcError, ConversionFault> {
    let error = error.value(py);
    let code = error.getattr("code")?.extract::<i64>()?;
    let message = error.getattr("message")?.extract::<String>()?;
    let data = error.getattr("data")?;
    let mut reply = RpcError::new(code, message);
    if !data.is_none() {
        let mut text = Vec::new();
        convert::write_with(&mut text, len_max, &data, encode)?;
        reply.data = Some(text);
    }
    Ok(reply)
}

/// The error of a failed function, without details.
pub(crate) fn internal() -> RpcError {
    RpcError::new(RpcError::INTERNAL_ERROR, "Internal error")
}

/// The error of a call that was ended before its reply, and may have run in part.
pub(crate) fn aborted(why: &str) -> RpcError {
    RpcError::new(RpcError::ABORTED, "Aborted").expected(why)
}

/// Whether a task or a future was cancelled. asyncio and concurrent.futures each define a
/// `CancelledError`; comparing by name imports neither.
pub(crate) fn is_cancelled(py: Python<'_>, error: &PyErr) -> bool {
    error.get_type(py).name().is_ok_and(|name| name == "CancelledError")
}

/// Formats the traceback of an exception as Python prints it.
pub(crate) fn traceback(py: Python<'_>, error: &PyErr) -> PyResult<String> {
    let lines = py.import("traceback")?.call_method1("format_exception", (error.value(py),))?;
    Ok(lines.extract::<Vec<String>>()?.concat())
}
