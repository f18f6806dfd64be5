//! New `bytes` objects.

use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;

use super::owned;

/// The type of a new bytes object.
#[derive(Clone, Copy)]
pub(crate) enum BytesType {
    Bytes,
    ByteArray,
}

/// Makes an object of `len` bytes that `fill` writes; `None` if it returns false.
pub(crate) fn memory_filled<'py>(
    py: Python<'py>,
    memory: BytesType,
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (source, count) = (std::ptr::null(), len as ffi::Py_ssize_t);
    // SAFETY: without a source, the bytes are left for the caller to write. An invalid length
    // raises.
    let object = owned(py, unsafe {
        match memory {
            BytesType::Bytes => ffi::PyBytes_FromStringAndSize(source, count),
            BytesType::ByteArray => ffi::PyByteArray_FromStringAndSize(source, count),
        }
    })?;
    // SAFETY: the object has that type and `len` bytes, and no other code has a reference yet.
    let target = unsafe {
        let data = match memory {
            BytesType::Bytes => ffi::PyBytes_AsString(object.as_ptr()),
            BytesType::ByteArray => ffi::PyByteArray_AsString(object.as_ptr()),
        };
        std::slice::from_raw_parts_mut(data.cast::<MaybeUninit<u8>>(), len)
    };
    Ok(fill(target).then_some(object))
}
