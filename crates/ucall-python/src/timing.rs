//! The time of a turn and of the functions in it, and what is recorded of calls when the server has
//! metrics.
//!
//! The duration of a plain function begins with the end of the call before it in its turn, or with
//! the turn. All others begin with the turn that received them, and include waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_proto::Call;
use ucall_server::{CallMetrics, Deadline, RunningCall, SeriesIndex, WaitsFor};

use crate::clock::{Clock, Moment};
use crate::metrics::WaitingCall;
use crate::procedure::Procedure;

/// The time of a worker's turn.
pub(crate) struct Timing {
    /// When this turn began, after its wait.
    turn_began: Instant,
    /// Precise if calls are measured.
    clock: Clock,
    /// When the last function returned, or the turn began.
    last_return: Moment,
    /// `None` if calls are not measured.
    metrics: Option<Arc<CallMetrics>>,
}

impl Timing {
    pub(crate) fn new(metrics: Option<Arc<CallMetrics>>) -> Self {
        let clock = if metrics.is_some() { Clock::PRECISE } else { Clock::COARSE };
        Self { turn_began: Instant::now(), clock, last_return: clock.now(), metrics }
    }

    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.turn_began = now;
    }

    #[inline]
    pub(crate) fn turn_began(&self) -> Instant {
        self.turn_began
    }

    #[inline]
    pub(crate) fn moment(&self) -> Moment {
        self.clock.now()
    }

    /// When the last function returned, or the turn began.
    pub(crate) fn last_return(&self) -> Moment {
        self.last_return
    }

    /// The time until now was no function's. Returns the moment.
    #[inline]
    pub(crate) fn restart(&mut self) -> Moment {
        self.last_return = self.clock.now();
        self.last_return
    }

    /// A function has returned. Returns how many nanoseconds it ran.
    #[inline]
    pub(crate) fn function_returned(&mut self) -> u64 {
        let before = self.last_return;
        self.restart().nanos_since(before)
    }

    #[inline(always)]
    pub(crate) fn deadline_of(&self, procedure: &Procedure, call: &Call<'_>) -> Option<Deadline> {
        Deadline::of(call, procedure.timeout, self.turn_began)
    }

    pub(crate) fn metrics(&self) -> Option<&Arc<CallMetrics>> {
        self.metrics.as_ref()
    }

    /// Records a call that has ended.
    #[inline(never)]
    pub(crate) fn record(&self, series: SeriesIndex, duration: Duration, error: Option<i64>) {
        if let Some(metrics) = &self.metrics {
            metrics.record(series, duration, error);
        }
    }

    /// Records a call that has ended in the turn that received it.
    pub(crate) fn record_since_receipt(&self, series: SeriesIndex, error: Option<i64>) {
        self.record(series, self.turn_began.elapsed(), error);
    }

    /// Records as many waits for the interpreter's lock of `nanos` each.
    pub(crate) fn record_lock_wait(&self, nanos: u64, waits: u32) {
        if let Some(metrics) = &self.metrics {
            metrics.add_lock_wait(Duration::from_nanos(nanos) * waits);
        }
    }

    /// What counts a call that is deferred, if calls of its function are measured.
    pub(crate) fn running_call(&self, series: Option<SeriesIndex>) -> Option<RunningCall> {
        Some(RunningCall::new(self.metrics.clone()?, series?, self.turn_began))
    }

    /// What counts a call that waits, if calls of its function are measured.
    pub(crate) fn waiting_call(
        &self,
        what: WaitsFor,
        series: Option<SeriesIndex>,
    ) -> Option<WaitingCall> {
        Some(WaitingCall::new(self.metrics.clone()?, what, series?, self.turn_began))
    }
}
