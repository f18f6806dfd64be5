//! How a worker's thread attaches to the interpreter: when a turn first needs Python.
//!
//! A wait detaches the thread, and its end does not attach it again: that costs time, and another
//! thread may hold the interpreter's lock for milliseconds. So a turn that only answers native
//! procedures neither waits for the lock nor takes it.
//!
//! pyo3 counts the thread as attached through the whole run. So a [`Py`] must not be dropped while
//! it is detached: the handler attaches before each use, and what the worker owns of Python, it
//! owns in a [`DropAttached`].

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// Whether the thread of a worker is attached. It is, unless its worker is in a turn.
pub(crate) struct Attachment {
    /// The thread's state while it is detached; else null.
    detached: Cell<*mut ffi::PyThreadState>,
}

impl Attachment {
    /// Of a thread that is attached.
    pub(crate) fn new(_: Python<'_>) -> Self {
        Self { detached: Cell::new(ptr::null_mut()) }
    }

    #[inline(always)]
    pub(crate) fn is_attached(&self) -> bool {
        self.detached.get().is_null()
    }

    /// Detaches the thread, unless it is detached.
    pub(crate) fn detach(&self) {
        if self.is_attached() {
            // SAFETY: the thread is attached.
            self.detached.set(unsafe { ffi::PyEval_SaveThread() });
        }
    }

    /// Attaches the thread, unless it is attached.
    pub(crate) fn attach(&self) {
        if self.is_attached() {
            return;
        }
        // SAFETY: `detach` has saved this thread's state, and nothing has attached it since.
        unsafe { ffi::PyEval_RestoreThread(self.detached.replace(ptr::null_mut())) };
        // Drops the objects that other threads have dropped while they were detached.
        Python::attach(|_| {});
    }
}

/// Python objects that may be dropped while the thread is detached.
pub(crate) struct DropAttached<T>(ManuallyDrop<T>);

impl<T> DropAttached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
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
