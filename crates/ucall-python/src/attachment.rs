//! How a worker's thread attaches to the interpreter, and how a busy one lets other threads run.
//!
//! It attaches when a turn first needs Python. A wait detaches it, and its end does not attach it
//! again: that costs time, and another thread may hold the interpreter's lock for milliseconds.
//! So a turn that only answers native procedures neither waits for the lock nor takes it.
//!
//! pyo3 counts the thread as attached through the whole run. So a [`Py`] must not be dropped while
//! it is detached: the handler attaches before each use, and what the worker owns of Python, it
//! owns in a [`DropAttached`](crate::ffi::DropAttached).

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::clock::Moment;
use crate::lock_request::LockRequest;
use crate::timing::Timing;

/// A worker that never waits releases the interpreter's lock for other threads after this time.
const HOLD_MAX: Duration = Duration::from_millis(1);
/// One of this many waits for the interpreter's lock is measured, and counts for all of them. To
/// read the clock after each wait would cost half as much as all other metrics.
const WAITS_PER_SAMPLE: u32 = 8;

/// Whether the thread of a worker is attached. It is, unless its worker is in a turn.
pub(crate) struct Attachment {
    state: State,
    /// Waits for the interpreter's lock so far, if calls are measured.
    lock_waits: u32,
    /// Asks the threads of the worker's pool for the lock, once there are any.
    lock_request: Option<Arc<LockRequest>>,
}

#[derive(Clone, Copy)]
enum State {
    /// With the thread's state, by which it attaches again.
    Detached(*mut ffi::PyThreadState),
    Attached {
        since: Moment,
        /// The beginning of the first turn since then that was attached from its start.
        first_turn: Option<Instant>,
    },
}

impl Attachment {
    /// Of a thread that is attached.
    pub(crate) fn new(_: Python<'_>, timing: &Timing) -> Self {
        let state = State::Attached { since: timing.last_return(), first_turn: None };
        Self { state, lock_waits: 0, lock_request: None }
    }

    /// Has the threads of the worker's pool give way when it waits for the lock.
    pub(crate) fn set_lock_request(&mut self, request: &Arc<LockRequest>) {
        self.lock_request.get_or_insert_with(|| request.clone());
    }

    #[inline(always)]
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached { .. })
    }

    /// Attaches the thread, unless it is attached.
    #[inline(always)]
    pub(crate) fn attach(&mut self, timing: &mut Timing) -> Python<'static> {
        if let State::Detached(thread) = self.state {
            self.attach_again(thread, timing);
        }
        // SAFETY: it may be called at any time.
        debug_assert_eq!(unsafe { ffi::PyGILState_Check() }, 1, "detached by other code");
        // SAFETY: it is attached. The token is not kept beyond the work that it is for, after which
        // a wait may detach the thread.
        unsafe { Python::assume_attached() }
    }

    #[inline(never)]
    fn attach_again(&mut self, thread: *mut ffi::PyThreadState, timing: &mut Timing) {
        if timing.metrics().is_none() || !self.is_sampled() {
            return self.restore(thread, timing);
        }
        let wait_began = timing.moment();
        self.restore(thread, timing);
        let nanos = timing.last_return().nanos_since(wait_began);
        timing.record_lock_wait(nanos, WAITS_PER_SAMPLE);
    }

    /// Whether this wait for the interpreter's lock is measured.
    fn is_sampled(&mut self) -> bool {
        self.lock_waits = self.lock_waits.wrapping_add(1);
        self.lock_waits.is_multiple_of(WAITS_PER_SAMPLE)
    }

    #[inline(never)]
    fn restore(&mut self, thread: *mut ffi::PyThreadState, timing: &mut Timing) {
        // SAFETY: `detach` has saved this thread's state, and nothing has attached it since.
        let take = || unsafe { ffi::PyEval_RestoreThread(thread) };
        match &self.lock_request {
            None => take(),
            Some(request) => request.during(take),
        }
        // Drops the objects that other threads have dropped while they were detached.
        Python::attach(|_| {});
        // The wait for the lock was no function's.
        self.state = State::Attached { since: timing.restart(), first_turn: None };
    }

    /// Detaches the thread, unless it is detached.
    pub(crate) fn detach(&mut self) {
        if self.is_attached() {
            // SAFETY: the thread is attached.
            self.state = State::Detached(unsafe { ffi::PyEval_SaveThread() });
        }
    }

    /// Begins a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant, timing: &mut Timing) {
        if self.is_attached() {
            self.begin_attached_turn(now, timing);
        }
    }

    /// Begins a turn whose wait kept the interpreter's lock. A busy worker has only such turns, so
    /// they let other threads run from time to time.
    ///
    /// A turn that attaches the thread reads no precise clock, because most workers detach it in
    /// their next wait. So the time begins with the first turn after it, unless that one took long
    /// by the coarse clock.
    #[inline(never)]
    fn begin_attached_turn(&mut self, now: Instant, timing: &mut Timing) {
        let State::Attached { since, first_turn } = &mut self.state else { return };
        let since_attached = Duration::from_nanos(timing.restart().nanos_since(*since));
        let since_first_turn = now - *first_turn.get_or_insert(now);
        if since_first_turn.max(since_attached) >= HOLD_MAX {
            self.detach();
            std::thread::yield_now();
        }
    }
}
