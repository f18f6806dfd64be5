//! `bytes` objects and buffers.

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

/// Calls `read` with the memory of a contiguous buffer; others raise `BufferError`, or `TypeError`
/// if they are no buffer.
pub(crate) fn with_buffer<T>(
    object: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> T,
) -> PyResult<T> {
    let mut view = ffi::Py_buffer::new();
    // SAFETY: fills the view, or raises and leaves nothing to release.
    let state = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) };
    if state != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = BufferView(view);
    Ok(read(view.bytes()))
}

/// A view that its drop releases, on a thread that is attached to the interpreter.
struct BufferView(ffi::Py_buffer);

impl BufferView {
    fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: a simple view is one contiguous piece of `len` bytes that stays in place while it
        // is held. No Python code runs meanwhile that could write to it.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // SAFETY: the view was filled, is released once, and never leaves `with_buffer`, whose
        // object proves that this thread is attached.
        unsafe { ffi::PyBuffer_Release(&mut self.0) };
    }
}
