//! Memory of Python objects that the communicator's thread sends.
//!
//! That thread must not wait for the interpreter, so it only queues the objects that it has sent;
//! the next call from Python releases them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;

static RELEASED: Mutex<Vec<View>> = Mutex::new(Vec::new());
static HAS_RELEASED: AtomicBool = AtomicBool::new(false);

/// A view of an object's memory, which a thread with the interpreter releases.
struct View(Box<ffi::Py_buffer>);

// SAFETY: a view is an address and a reference, which any thread may hold; only a thread that is
// attached to the interpreter releases it.
unsafe impl Send for View {}
// SAFETY: a shared reference only reads the memory.
unsafe impl Sync for View {}

/// Owns a view until the memory is sent.
struct PinnedBuffer(Option<View>);

impl AsRef<[u8]> for PinnedBuffer {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: a contiguous view is one piece of `len` bytes, which stays in place while the
            // view is held. `put` requires that the object does not change until it is sent.
            Some(View(view)) if view.len > 0 => unsafe {
                std::slice::from_raw_parts(view.buf.cast(), view.len as usize)
            },
            _ => &[],
        }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(view) = self.0.take() {
            RELEASED.lock().unwrap_or_else(PoisonError::into_inner).push(view);
            HAS_RELEASED.store(true, Ordering::Release);
        }
    }
}

/// The contiguous memory of an object. Other objects raise `BufferError`, or `TypeError` without a
/// buffer.
pub(super) fn pin(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let mut view = Box::new(ffi::Py_buffer::new());
    // An array in Fortran order is contiguous as well.
    let flags = ffi::PyBUF_ANY_CONTIGUOUS;
    // SAFETY: the call fills the view, or raises and holds no buffer.
    let state = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) };
    if state != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    Ok(Bytes::from_owner(PinnedBuffer(Some(View(view)))))
}

/// Releases the views that were sent.
#[inline]
pub(super) fn release_pending(py: Python<'_>) {
    if HAS_RELEASED.load(Ordering::Acquire) {
        release(py);
    }
}

#[cold]
fn release(_py: Python<'_>) {
    HAS_RELEASED.store(false, Ordering::Release);
    let views = std::mem::take(&mut *RELEASED.lock().unwrap_or_else(PoisonError::into_inner));
    for View(mut view) in views {
        // SAFETY: the view was filled and is released once, and the token proves that this thread
        // is attached.
        unsafe { ffi::PyBuffer_Release(&mut *view) };
    }
}
