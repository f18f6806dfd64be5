//! What an [`Interpreter`] records of calls when the server has metrics.
//!
//! The duration of a plain function begins with the end of the call before it in its turn, or with
//! the turn. All others begin with the turn that received them, and include waiting.

use std::time::Duration;

use ucall_server::{RunningCall, SeriesIndex, WaitsFor};

use crate::handler::Interpreter;
use crate::metrics::WaitingCall;

impl Interpreter {
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

    /// What counts a call that is deferred, if calls of its function are measured.
    pub(crate) fn running_call(&self, series: Option<SeriesIndex>) -> Option<RunningCall> {
        Some(RunningCall::new(self.metrics.clone()?, series?, self.turn_began))
    }

    /// What counts a call that waits.
    pub(crate) fn waiting_call(&self, what: WaitsFor) -> Option<WaitingCall> {
        Some(WaitingCall::new(self.metrics.clone()?, what))
    }
}
