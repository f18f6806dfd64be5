//! `bytes`, and what else shows its memory.

use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;

use super::owned;

/// Which object holds bytes that came.
#[derive(Clone, Copy)]
pub(crate) enum BytesType {
    Bytes,
    ByteArray,
}

/// A new object of `len` bytes that `fill` writes; `None` when it says that it did not.
pub(crate) fn memory_filled<'py>(
    py: Python<'py>,
    memory: BytesType,
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (source, count) = (std::ptr::null(), len as ffi::Py_ssize_t);
    // SAFETY: without a source, the bytes are left for the caller to write. A length that no
    // object can have raises.
    let object = owned(py, unsafe {
        match memory {
            BytesType::Bytes => ffi::PyBytes_FromStringAndSize(source, count),
            BytesType::ByteArray => ffi::PyByteArray_FromStringAndSize(source, count),
        }
    })?;
    // SAFETY: the object is of that type and new: it has `len` bytes, and nobody else has seen it.
    let target = unsafe {
        let data = match memory {
            BytesType::Bytes => ffi::PyBytes_AsString(object.as_ptr()),
            BytesType::ByteArray => ffi::PyByteArray_AsString(object.as_ptr()),
        };
        std::slice::from_raw_parts_mut(data.cast::<MaybeUninit<u8>>(), len)
    };
    Ok(fill(target).then_some(object))
}

/// Shows `read` the memory of an object that has one contiguous piece of it; others raise
/// `BufferError` (or `TypeError`, when they have none).
pub(crate) fn with_buffer<T>(
    object: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> T,
) -> PyResult<T> {
    let mut view = ffi::Py_buffer::new();
    // SAFETY: fills the view, or raises and leaves nothing to give back.
    let state = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) };
    if state != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = BufferView(view);
    Ok(read(view.bytes()))
}

/// A view to be given back, by a thread that is attached to the interpreter.
struct BufferView(ffi::Py_buffer);

impl BufferView {
    fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: a simple view is one contiguous piece of `len` bytes that stays in place while
        // it is held. No code of the interpreter runs meanwhile that could write to it.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }
}

impl Drop for BufferView {
    fn drop(&mut self) {
        // SAFETY: the view was filled, is given back once, and never leaves `with_buffer`, whose
        // object proves that this thread is attached.
        unsafe { ffi::PyBuffer_Release(&mut self.0) };
    }
}
