//! The JSON-RPC errors of Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
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
    /// `ucall.errors.find_rpc_error`
    find: Py<PyAny>,
    /// `ucall.errors.NoChannelError`
    no_channel: Py<PyAny>,
}

impl Errors {
    pub(crate) fn import(py: Python<'_>) -> PyResult<Self> {
        let module = py.import("ucall.errors")?;
        let member = |name| module.getattr(name).map(Bound::unbind);
        Ok(Self { find: member("find_rpc_error")?, no_channel: member("NoChannelError")? })
    }

    /// Whether an error for the caller is logged, because the program may be wrong as well.
    pub(crate) fn is_logged(&self, error: &Bound<'_, PyAny>) -> bool {
        error.is_instance(self.no_channel.bind(error.py())).unwrap_or(false)
    }

    /// The `ucall.RPCError` that the exception is, or is a group of. The client gets it as it is.
    pub(crate) fn for_caller<'py>(
        &self,
        py: Python<'py>,
        error: &PyErr,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.find.bind(py).call1((error.value(py),))?;
        Ok((!found.is_none()).then_some(found))
    }
}

/// The error that a `ucall.RPCError` describes. `len_max` limits its data, in which `encode`
/// replaces values that JSON does not have.
pub(crate) fn reply_with(
    error: &Bound<'_, PyAny>,
    len_max: usize,
    encode: &Bound<'_, PyAny>,
) -> Result<RpcError, ConversionFault> {
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
