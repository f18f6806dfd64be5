//! Exceptions on their way to the caller.

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
    "An object that JSON has no word for, nor anything in its place. The message is for the caller."
);

/// The exceptions that mean something to a server.
pub(crate) struct Errors {
    /// `ucall.RPCError`
    rpc_error: Py<PyType>,
}

impl Errors {
    pub(crate) fn import(py: Python<'_>) -> PyResult<Self> {
        let rpc_error = py.import("ucall.errors")?.getattr("RPCError")?;
        Ok(Self { rpc_error: rpc_error.cast_into::<PyType>()?.unbind() })
    }

    /// Whether a function raised it to be told to the caller.
    pub(crate) fn is_for_caller(&self, py: Python<'_>, error: &PyErr) -> bool {
        error.is_instance(py, self.rpc_error.bind(py))
    }
}

/// The error that a `ucall.RPCError` asks for. `len_max` bounds its data, in which `encode`
/// replaces what cannot be written.
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

/// An error of the function itself; the caller learns no more.
pub(crate) fn internal() -> RpcError {
    RpcError::new(RpcError::INTERNAL_ERROR, "Internal error")
}

/// An error of a call that nobody waited for to end.
pub(crate) fn cancelled(why: &str) -> RpcError {
    RpcError::new(RpcError::CANCELLED, "Cancelled").expected(why)
}

/// Whether a task or a future was cancelled. asyncio and concurrent.futures have each a
/// `CancelledError` of their own, which are told by name so that neither has to be imported.
pub(crate) fn is_cancelled(py: Python<'_>, error: &PyErr) -> bool {
    error.get_type(py).name().is_ok_and(|name| name == "CancelledError")
}

/// The traceback of an exception, as Python prints it.
pub(crate) fn traceback(py: Python<'_>, error: &PyErr) -> PyResult<String> {
    let lines = py.import("traceback")?.call_method1("format_exception", (error.value(py),))?;
    Ok(lines.extract::<Vec<String>>()?.concat())
}
