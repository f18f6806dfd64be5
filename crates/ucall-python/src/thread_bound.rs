//! A value that belongs to one thread, in an object that any thread may hold and drop.

use std::cell::RefCell;
use std::mem;
use std::thread::{self, ThreadId};

/// Gives access to its content on the thread that made it.
pub(crate) struct ThreadBound<T> {
    owner: ThreadId,
    content: RefCell<Option<T>>,
}

// SAFETY: every access to the content first checks that it is on the thread that made it.
unsafe impl<T> Send for ThreadBound<T> {}
// SAFETY: as above; only that thread touches the `RefCell`.
unsafe impl<T> Sync for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { owner: thread::current().id(), content: RefCell::new(Some(content)) }
    }

    /// Takes the content out; `None` on another thread, after an earlier `take`, or while in use.
    pub(crate) fn take(&self) -> Option<T> {
        self.cell()?.try_borrow_mut().ok()?.take()
    }

    /// Calls `work` with the content; `None` as for [`ThreadBound::take`].
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.cell()?.try_borrow_mut().ok()?.as_mut().map(work)
    }

    fn cell(&self) -> Option<&RefCell<Option<T>>> {
        (thread::current().id() == self.owner).then_some(&self.content)
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if thread::current().id() != self.owner {
            // Another thread must not drop the content, so it is leaked.
            mem::forget(mem::take(self.content.get_mut()));
        }
    }
}
