//! How the threads of a pool let their worker have the interpreter's lock.
//!
//! A thread that has jobs keeps the lock between them. CPython would take it away after the switch
//! interval, 5 ms, and a thread that only releases it for a moment takes it again before the worker
//! wakes. So a worker that waits says so, and a thread gives way before its next job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The longest that a thread gives way: the worker's thread may have no processor.
const YIELDS_MAX: usize = 1000;

/// Whether a worker waits for the interpreter's lock.
#[derive(Default)]
pub(crate) struct LockRequest(AtomicBool);

impl LockRequest {
    /// Runs what takes the lock, on the worker's thread.
    pub(crate) fn during<T>(&self, take: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let taken = take();
        self.0.store(false, Ordering::Relaxed);
        taken
    }

    /// Whether the worker waits.
    #[inline]
    pub(crate) fn is_made(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until the worker has the lock, on a thread without it.
    #[cold]
    pub(crate) fn wait(&self) {
        for _ in 0..YIELDS_MAX {
            if !self.is_made() {
                return;
            }
            thread::yield_now();
        }
    }
}
