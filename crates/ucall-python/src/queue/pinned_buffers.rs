//! Memory of Python objects, lent to the thread that sends it.
//!
//! That thread must not wait for the interpreter, so it only notes what it needs no longer; the
//! next call from Python lets go of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;

static RELEASED: Mutex<Vec<View>> = Mutex::new(Vec::new());
static HAS_RELEASED: AtomicBool = AtomicBool::new(false);

/// A view of an object's memory, held until it is let go of on a thread with the interpreter.
struct View(Box<ffi::Py_buffer>);

// SAFETY: a view is an address and a reference, which any thread may keep; it is released only by
// a thread that is attached to the interpreter.
unsafe impl Send for View {}
// SAFETY: shared, its memory is only read.
unsafe impl Sync for View {}

/// The owner of lent memory.
struct PinnedBuffer(Option<View>);

impl AsRef<[u8]> for PinnedBuffer {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: a contiguous view is one piece of `len` bytes, which stays where it is while
            // the view is held. Whoever put the object leaves it alone until it was sent.
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

/// The memory of an object that has one contiguous piece of it; others raise `BufferError` (or
/// `TypeError`, when they have none).
pub(super) fn pin(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let mut view = Box::new(ffi::Py_buffer::new());
    // An array in Fortran's order is one piece too.
    let flags = ffi::PyBUF_ANY_CONTIGUOUS;
    // SAFETY: fills the view, or raises and leaves nothing to give back.
    let state = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) };
    if state != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    Ok(Bytes::from_owner(PinnedBuffer(Some(View(view)))))
}

/// Lets go of what is needed no longer.
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
        // SAFETY: the view was filled, is given back once, and the token proves that this thread
        // is attached.
        unsafe { ffi::PyBuffer_Release(&mut *view) };
    }
}
