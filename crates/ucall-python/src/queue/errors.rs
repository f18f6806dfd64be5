//! The exceptions of a queue.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ucall_queue::{Failure, Handle, Identity};

use crate::ffi;

/// A forked child has no communicator thread.
pub(super) fn reject_forked(handle: &Handle) -> PyResult<()> {
    match handle.is_forked() {
        true => Err(PyRuntimeError::new_err("a queue stays with the process that made it")),
        false => Ok(()),
    }
}

/// The exception of a future, for the failure of its message.
pub(super) fn undelivered<'py>(
    py: Python<'py>,
    peer: Option<Identity>,
    failure: &Failure,
    may_have_arrived: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let raised = failed(py, peer, failure)?;
    raised.setattr("may_have_arrived", may_have_arrived)?;
    Ok(raised)
}

/// The exception for a failure.
pub(super) fn failed<'py>(
    py: Python<'py>,
    peer: Option<Identity>,
    failure: &Failure,
) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("ucall.queue.errors")?;
    let peer = peer.map(|peer| uuid(py, peer)).transpose()?;
    if matches!(failure, Failure::TooLong(_)) {
        return Ok(PyValueError::new_err(failure.to_string())
            .into_value(py)
            .into_bound(py)
            .into_any());
    }
    let name = match failure {
        Failure::Dropped => "FullError",
        Failure::NotAccepted(_) | Failure::Rejected(_) => "RefusedError",
        _ => "ConnectionError",
    };
    let reason = match failure {
        Failure::NotAccepted(name) => {
            let refusal = py.import("ucall.queue.utils.allow")?.getattr("refusal")?;
            ffi::call(&refusal, [PyString::new(py, name).as_any()])?
        }
        _ => PyString::new(py, &failure.to_string()).into_any(),
    };
    ffi::call(&module.getattr(name)?, [&or_none(py, peer), &reason])
}

pub(super) fn or_none<'py>(
    py: Python<'py>,
    object: Option<Bound<'py, PyAny>>,
) -> Bound<'py, PyAny> {
    object.unwrap_or_else(|| py.None().into_bound(py))
}

/// An id as a `uuid.UUID`.
pub(super) fn uuid(py: Python<'_>, id: Identity) -> PyResult<Bound<'_, PyAny>> {
    let kind = py.import("uuid")?.getattr("UUID")?;
    // `UUID(bytes=...)`, without parsing text.
    ffi::call(&kind, [&py.None().into_bound(py), PyBytes::new(py, &id.0).as_any()])
}
