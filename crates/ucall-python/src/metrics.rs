//! The count of calls that wait, and how long they do.

use std::sync::Arc;
use std::time::Instant;

use ucall_server::{CallMetrics, SeriesIndex, WaitsFor};

/// Counts as a waiting call until it is dropped, on any thread: when the call starts, or leaves.
pub(crate) struct WaitingCall {
    metrics: Arc<CallMetrics>,
    what: WaitsFor,
    series: SeriesIndex,
    since: Instant,
}

impl WaitingCall {
    pub(crate) fn new(
        metrics: Arc<CallMetrics>,
        what: WaitsFor,
        series: SeriesIndex,
        since: Instant,
    ) -> Self {
        metrics.begin_wait(what);
        Self { metrics, what, series, since }
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.metrics.end_wait(self.what);
        self.metrics.record_queue_wait(self.series, self.since.elapsed());
    }
}
