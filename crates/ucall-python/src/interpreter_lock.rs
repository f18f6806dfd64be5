//! How an [`Interpreter`] takes the interpreter's lock, and how a busy one releases it.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::clock::Moment;
use crate::handler::Interpreter;

/// A worker that never waits releases the interpreter's lock for other threads after this time.
const HOLD_MAX: Duration = Duration::from_millis(1);
/// One of this many waits for the interpreter's lock is measured, and counts for all of them. To
/// read the clock after each wait would cost half as much as all other metrics.
const WAITS_PER_SAMPLE: u32 = 8;

impl Interpreter {
    /// Attaches the thread, if this turn has not attached it yet.
    #[inline(always)]
    pub(crate) fn attach(&mut self) -> Python<'static> {
        if !self.attachment.is_attached() {
            self.attach_again();
        }
        // SAFETY: it may be called at any time.
        debug_assert_eq!(unsafe { pyo3::ffi::PyGILState_Check() }, 1, "detached by other code");
        // SAFETY: it is attached. The token is not kept beyond the work that it is for, after which
        // a wait may detach the thread.
        unsafe { Python::assume_attached() }
    }

    #[inline(never)]
    fn attach_again(&mut self) {
        let wait_began = self.sampled_moment();
        self.attachment.attach();
        self.first_attached_turn = None;
        // The wait for the lock was no function's.
        self.last_return = self.clock.now();
        self.attached_at = self.last_return;
        if let (Some(began), Some(metrics)) = (wait_began, &self.metrics) {
            let nanos = self.last_return.nanos_since(began);
            metrics.add_lock_wait(Duration::from_nanos(nanos) * WAITS_PER_SAMPLE);
        }
    }

    /// Begins a turn whose wait kept the interpreter's lock. A busy worker has only such turns, so
    /// they let other threads run from time to time.
    ///
    /// A turn that attaches the thread reads no precise clock, because most workers detach it in
    /// their next wait. So the time begins with the first turn after it, unless that one took long
    /// by the coarse clock.
    #[inline(never)]
    pub(crate) fn begin_attached_turn(&mut self, now: Instant) {
        self.last_return = self.clock.now();
        let since_first_turn = now - *self.first_attached_turn.get_or_insert(now);
        let since_attached = Duration::from_nanos(self.last_return.nanos_since(self.attached_at));
        if since_first_turn.max(since_attached) >= HOLD_MAX {
            self.attachment.detach();
            std::thread::yield_now();
        }
    }

    /// When this wait for the interpreter's lock begins, if it is sampled.
    fn sampled_moment(&mut self) -> Option<Moment> {
        self.metrics.as_ref()?;
        self.lock_waits = self.lock_waits.wrapping_add(1);
        self.lock_waits.is_multiple_of(WAITS_PER_SAMPLE).then(|| self.clock.now())
    }
}
