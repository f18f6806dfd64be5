//! `str` objects.

use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use super::owned;

/// Makes a `str` of UTF-8 text. Invalid UTF-8 raises `UnicodeDecodeError`.
#[inline]
pub(crate) fn text<'py>(py: Python<'py>, utf8: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    // The interpreter caches strings of one character, and decodes short ones quickly. Longer ASCII
    // text is copied whole.
    if utf8.len() > 16 && utf8.is_ascii() {
        return ascii(py, utf8);
    }
    // SAFETY: pointer and length are those of one slice, whose length always fits.
    owned(py, unsafe {
        ffi::PyUnicode_DecodeUTF8(utf8.as_ptr().cast(), utf8.len() as ffi::Py_ssize_t, ptr::null())
    })
}

fn ascii<'py>(py: Python<'py>, ascii: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: makes a string of ASCII characters, or raises.
    let object = owned(py, unsafe { ffi::PyUnicode_New(ascii.len() as ffi::Py_ssize_t, 0x7f) })?;
    // SAFETY: a new string of maximum character 0x7f is compact: `len` bytes and a terminator
    // follow a `PyASCIIObject`. No other code has a reference yet, so it may be written.
    unsafe {
        let data = object.as_ptr().cast::<ffi::PyASCIIObject>().add(1).cast::<u8>();
        ptr::copy_nonoverlapping(ascii.as_ptr(), data, ascii.len());
    }
    Ok(object)
}
