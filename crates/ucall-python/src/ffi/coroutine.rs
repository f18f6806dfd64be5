//! Steps of coroutines, without an exception for each that returns.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use super::halt;

/// What a step has come to.
pub(crate) enum Sent<'py> {
    /// It waits for that.
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
}

/// Whether it is what calling an `async def` makes.
#[inline]
pub(crate) fn is_coroutine(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: compares the type of an object that is alive.
    unsafe { ffi::PyCoro_CheckExact(object.as_ptr()) != 0 }
}

/// Lets a coroutine go on with `value` until it waits, returns or raises.
#[inline]
pub(crate) fn send<'py>(
    coroutine: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Sent<'py>> {
    const RETURN: i32 = 0;
    const NEXT: i32 = 1;
    let py = coroutine.py();
    let mut result = ptr::null_mut();
    // SAFETY: both are alive; the result is a new reference unless something was raised.
    unsafe {
        match halt::send(coroutine.as_ptr(), value.as_ptr(), &mut result) {
            RETURN => Ok(Sent::Returned(Bound::from_owned_ptr(py, result))),
            NEXT => Ok(Sent::Yielded(Bound::from_owned_ptr(py, result))),
            _ => Err(PyErr::fetch(py)),
        }
    }
}

/// How many references to an object there are.
#[inline]
pub(crate) fn references(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) as isize }
}
