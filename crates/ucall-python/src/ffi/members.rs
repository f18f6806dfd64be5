//! The members of a `dict`.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The members of a dict, in its order. Changing the dict meanwhile is safe, but may skip members.
#[inline]
pub(crate) fn members<'a, 'py>(
    dict: &'a Bound<'py, PyDict>,
) -> impl Iterator<Item = (Bound<'py, PyAny>, Bound<'py, PyAny>)> + use<'a, 'py> {
    let mut position = 0;
    std::iter::from_fn(move || {
        let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: it is a dict; only this call moves the position, and checks it.
        let found = unsafe { ffi::PyDict_Next(dict.as_ptr(), &mut position, &mut key, &mut value) };
        if found == 0 {
            return None;
        }
        // SAFETY: both are borrowed from the dict, and no other code has run since.
        Some(unsafe {
            (Bound::from_borrowed_ptr(dict.py(), key), Bound::from_borrowed_ptr(dict.py(), value))
        })
    })
}
