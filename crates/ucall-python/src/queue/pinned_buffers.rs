//! Memory of Python objects that the communicator's thread sends.
//!
//! That thread must not wait for the interpreter, so it only queues the objects that it has sent;
//! the next call from Python releases them. The queue has no lock: a thread could hold it while
//! another one forks, and the child would wait for it forever.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ffi::fill_view;

/// The views to release, the last one first.
static RELEASED: AtomicPtr<View> = AtomicPtr::new(ptr::null_mut());

/// A view of an object's memory, which a thread with the interpreter releases.
struct View {
    buffer: ffi::Py_buffer,
    /// The next one in `RELEASED`.
    next: *mut View,
}

// SAFETY: a view is an address and a reference, which any thread may hold; only a thread that is
// attached to the interpreter releases it. `next` is used by the owner of `RELEASED` alone.
unsafe impl Send for View {}
// SAFETY: a shared reference only reads the memory.
unsafe impl Sync for View {}

/// Owns a view until the memory is sent.
struct PinnedBuffer(Option<Box<View>>);

impl AsRef<[u8]> for PinnedBuffer {
    fn as_ref(&self) -> &[u8] {
        match self.0.as_ref().map(|view| &view.buffer) {
            // SAFETY: a contiguous view is one piece of `len` bytes, which stays in place while the
            // view is held. `put` requires that the object does not change until it is sent.
            Some(buffer) if buffer.len > 0 => unsafe {
                std::slice::from_raw_parts(buffer.buf.cast(), buffer.len as usize)
            },
            _ => &[],
        }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let Some(view) = self.0.take() else { return };
        let view = Box::into_raw(view);
        let mut first = RELEASED.load(Ordering::Relaxed);
        loop {
            // SAFETY: the view is this thread's until it is the first one.
            unsafe { (*view).next = first };
            match RELEASED.compare_exchange_weak(first, view, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }
}

/// The contiguous memory of an object, also in Fortran order. Other objects raise `TypeError`.
pub(super) fn pin(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let mut view = Box::new(View { buffer: ffi::Py_buffer::new(), next: ptr::null_mut() });
    fill_view(object, &mut view.buffer)?;
    Ok(Bytes::from_owner(PinnedBuffer(Some(view))))
}

/// As `pin`, but copies memory that may change and has up to `copied_bytes_max` bytes.
pub(super) fn pin_or_copy(object: &Bound<'_, PyAny>, copied_bytes_max: usize) -> PyResult<Bytes> {
    let pinned = pin(object)?;
    match pinned.len() <= copied_bytes_max && !object.is_exact_instance_of::<PyBytes>() {
        true => Ok(Bytes::copy_from_slice(&pinned)),
        false => Ok(pinned),
    }
}

/// Releases the views that were sent.
#[inline]
pub(super) fn release_pending(py: Python<'_>) {
    if !RELEASED.load(Ordering::Relaxed).is_null() {
        release(py);
    }
}

#[cold]
fn release(_py: Python<'_>) {
    let mut first = RELEASED.swap(ptr::null_mut(), Ordering::Acquire);
    while !first.is_null() {
        // SAFETY: a view in the list came from a box, and this thread alone has the list now.
        let mut view = unsafe { Box::from_raw(first) };
        first = view.next;
        // SAFETY: the view was filled and is released once, and the token proves that this thread
        // is attached.
        unsafe { ffi::PyBuffer_Release(&mut view.buffer) };
    }
}
