//! `int` and `float` objects.

use std::ffi::{CStr, c_int};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use super::owned;

/// Makes an `int`.
#[inline]
pub(crate) fn integer(py: Python<'_>, value: i64) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the thread is attached.
    owned(py, unsafe { ffi::PyLong_FromLongLong(value) })
}

/// Makes a `float`.
#[inline]
pub(crate) fn float(py: Python<'_>, value: f64) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the thread is attached.
    owned(py, unsafe { ffi::PyFloat_FromDouble(value) })
}

/// Makes an `int` of any size from its decimal digits. More than `sys.get_int_max_str_digits()` of
/// them raise `ValueError`.
#[cold]
pub(crate) fn integer_from_digits<'py>(
    py: Python<'py>,
    digits: &CStr,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the text ends with a NUL, and no end pointer is requested.
    owned(py, unsafe { ffi::PyLong_FromString(digits.as_ptr(), ptr::null_mut(), 10) })
}

/// The value of an `int`; `None` if it does not fit, and [`decimal`] has to write it.
#[inline]
pub(crate) fn small_integer(int: &Bound<'_, PyInt>) -> Option<i64> {
    let mut overflow: c_int = 0;
    // SAFETY: it is an `int`, for which this never raises.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(int.as_ptr(), &mut overflow) };
    (overflow == 0).then_some(value)
}

/// The decimal digits of an `int` as a `str`, ignoring the `__str__` and `__repr__` of its class
/// (an `IntEnum` gives its number). More than `sys.get_int_max_str_digits()` digits raise
/// `ValueError`.
#[cold]
pub(crate) fn decimal<'py>(int: &Bound<'py, PyInt>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the slot belongs to a static type, which never changes.
    match unsafe { ffi::PyLong_Type.tp_repr } {
        // SAFETY: the slot takes any `int`.
        Some(write) => owned(int.py(), unsafe { write(int.as_ptr()) }),
        None => int.repr().map(Bound::into_any),
    }
}
