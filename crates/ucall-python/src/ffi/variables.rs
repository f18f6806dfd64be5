//! Context variables (`contextvars`): copies of them, and code that runs in a copy.

use pyo3::ffi;
use pyo3::prelude::*;

/// Runs `work` with a copy of this thread's variables (`contextvars`), so what it sets stays its
/// own.
pub(crate) fn in_own_variables<T, E: From<PyErr>>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    run_in(&copy_current(py)?, work)
}

/// Copies the variables of this thread.
pub(crate) fn copy_current(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: returns a new reference, or raises.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent()) }
}

/// Whether no variable is set in a `contextvars.Context` to which nothing else refers.
#[inline]
pub(crate) fn are_unset(variables: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive, and has a length.
    super::has_one_reference(variables) && unsafe { ffi::PyMapping_Size(variables.as_ptr()) } == 0
}

/// Copies a `contextvars.Context`.
pub(crate) fn copy<'py>(variables: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: returns a new reference; an object of another type raises TypeError.
    unsafe { Bound::from_owned_ptr_or_err(variables.py(), ffi::PyContext_Copy(variables.as_ptr())) }
}

/// Runs `work` in a `contextvars.Context`.
pub(crate) fn run_in<T, E: From<PyErr>>(
    variables: &Bound<'_, PyAny>,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let py = variables.py();
    // SAFETY: an object of another type raises TypeError.
    if unsafe { ffi::PyContext_Enter(variables.as_ptr()) } != 0 {
        return Err(PyErr::fetch(py).into());
    }
    let result = work();
    // SAFETY: this thread entered it above, and `work` has left every context that it entered.
    if unsafe { ffi::PyContext_Exit(variables.as_ptr()) } != 0 {
        return result.and(Err(PyErr::fetch(py).into()));
    }
    result
}
