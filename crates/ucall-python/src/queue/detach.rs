//! Releases the interpreter's lock for other Python threads.

use pyo3::prelude::*;

/// Runs `work` without the interpreter's lock.
///
/// # Safety
/// `work` must not touch Python objects. pyo3's own bound, `Send`, is stricter: it requires that
/// the work may run on another thread, which a worker's wait may not.
pub(super) unsafe fn detached<T>(py: Python<'_>, work: impl FnOnce() -> T) -> T {
    let work = AssertSend(work);
    py.detach(move || AssertSend(work.into_inner()())).into_inner()
}

struct AssertSend<T>(T);

impl<T> AssertSend<T> {
    fn into_inner(self) -> T {
        self.0
    }
}

// SAFETY: `Python::detach` runs its closure on the thread it is called on.
unsafe impl<T> Send for AssertSend<T> {}
