//! Python objects that any thread may drop.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use pyo3::{Python, ffi};

/// Python objects that may be dropped while the thread is detached.
#[derive(Debug)]
pub(crate) struct DropAttached<T>(ManuallyDrop<T>);

impl<T> DropAttached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    /// The objects, which only a thread that is attached drops.
    pub(crate) fn into_inner(self, _: Python<'_>) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and not used again.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<T> Deref for DropAttached<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for DropAttached<T> {
    fn drop(&mut self) {
        if has_ended() {
            return;
        }
        // SAFETY: the interpreter exists, and a thread may be attached any number of times.
        let state = unsafe { ffi::PyGILState_Ensure() };
        // SAFETY: it is dropped once.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        // SAFETY: it is the state that the call above returned.
        unsafe { ffi::PyGILState_Release(state) };
    }
}

/// Whether the interpreter, and its objects, are gone. A worker that a program has left between two
/// runs is dropped by the end of its thread, which the main thread reaches last.
fn has_ended() -> bool {
    // SAFETY: both may be called at any time. The thread that ends the interpreter keeps its state
    // until the objects are gone.
    unsafe { ffi::Py_IsInitialized() == 0 && ffi::PyGILState_GetThisThreadState().is_null() }
}
