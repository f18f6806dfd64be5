//! The count of calls that wait.

use std::sync::Arc;

use ucall_server::{CallMetrics, WaitsFor};

/// Counts as a waiting call until it is dropped, on any thread.
pub(crate) struct WaitingCall {
    metrics: Arc<CallMetrics>,
    what: WaitsFor,
}

impl WaitingCall {
    pub(crate) fn new(metrics: Arc<CallMetrics>, what: WaitsFor) -> Self {
        metrics.begin_wait(what);
        Self { metrics, what }
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.metrics.end_wait(self.what);
    }
}
