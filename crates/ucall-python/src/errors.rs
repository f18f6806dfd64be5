//! The JSON-RPC errors of Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use ucall_proto::RpcError;

use crate::convert::{self, ConversionFault, Convert, Input, Scratch};
use crate::log::cut;

create_exception!(
    ucall._core,
    Unwritable,
    PyTypeError,
    "An object that cannot be written as JSON. The message is for the client."
);

/// The exceptions that a server treats specially.
pub(crate) struct Errors {
    /// `ucall.errors.find_rpc_error`, or the `find` of `ExceptionHandlers`.
    find: Py<PyAny>,
    /// `ucall.errors.NoChannelError`
    no_channel: Py<PyAny>,
}

impl Errors {
    /// `find` is a program's in place of `ucall.errors.find_rpc_error`.
    pub(crate) fn import(py: Python<'_>, find: Option<Py<PyAny>>) -> PyResult<Self> {
        let module = py.import("ucall.errors")?;
        let member = |name| module.getattr(name).map(Bound::unbind);
        let find = find.map_or_else(|| member("find_rpc_error"), Ok)?;
        Ok(Self { find, no_channel: member("NoChannelError")? })
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

/// The `ucall.RPCError` that code gets for an error.
#[cold]
pub(crate) fn rpc_exception(py: Python<'_>, error: &RpcError) -> PyErr {
    let raised = || {
        let mut scratch = Scratch::default();
        let data = error.data.as_deref().map(|data| {
            let read = Input::new(py, data, &mut scratch).read(&Convert::Any);
            read.map_err(|_| PyTypeError::new_err("an error's data is no JSON"))
        });
        let kind = py.import("ucall.errors")?.getattr("RPCError")?;
        kind.call1((error.code, &*error.message, data.transpose()?))
    };
    raised().map_or_else(|failed: PyErr| failed, PyErr::from_value)
}

/// What is raised for a result or an item that cannot be written.
pub(crate) fn unwritable(fault: ConversionFault, root: &str) -> PyErr {
    fault.describe(root).map_or_else(|error| *error, Unwritable::new_err)
}

/// The error of params that do not match a signature.
#[cold]
pub(crate) fn invalid_params(fault: ConversionFault) -> RpcError {
    match fault {
        ConversionFault::Value(mismatch) => {
            let error = RpcError::new(RpcError::INVALID_PARAMS, "Invalid params");
            error.expected(&mismatch.describe("params"))
        }
        ConversionFault::TooLarge | ConversionFault::Raised(_) => internal(),
    }
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

/// Formats the traceback of an exception as Python prints it, without frames of the package.
pub(crate) fn traceback(py: Python<'_>, error: &PyErr) -> PyResult<String> {
    let lines = py.import("traceback")?.call_method1("format_exception", (cut(py, error)?,))?;
    Ok(lines.extract::<Vec<String>>()?.concat())
}
