//! Steps of iterators and generators, without an exception object for the returned value.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use super::halt;

/// What a step of an iterator gave.
pub(crate) enum Step<'py> {
    Item(Bound<'py, PyAny>),
    /// The iterator has ended; `None` unless it is a generator that has returned a value.
    Returned(Bound<'py, PyAny>),
}

/// Whether an object is an iterator.
pub(crate) fn is_iterator(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive.
    unsafe { ffi::PyIter_Check(object.as_ptr()) != 0 }
}

/// Takes the next step of an iterator.
#[inline]
pub(crate) fn step<'py>(iterator: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
    let py = iterator.py();
    let mut result = ptr::null_mut();
    // SAFETY: the objects are alive, and `result` takes a new reference, or null.
    let sent = unsafe { halt::send(iterator.as_ptr(), ffi::Py_None(), &raw mut result) };
    let result = super::owned(py, result)?;
    Ok(match sent {
        ffi::PySendResult::PYGEN_RETURN => Step::Returned(result),
        _ => Step::Item(result),
    })
}
