//! The limit on the calls of one function that wait for a thread.

use std::sync::Arc;

/// How many calls of a function may wait.
#[derive(Debug)]
pub(crate) struct WaitingLimit {
    pub(crate) max: usize,
    /// Its clones are the permits.
    permits: Arc<()>,
}

/// Counts as a call that waits until it is dropped, on any thread.
#[expect(dead_code, reason = "counted by the clones")]
pub(crate) struct WaitingPermit(Arc<()>);

impl WaitingLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, permits: Arc::default() }
    }

    /// The number of permits.
    pub(crate) fn waiting(&self) -> usize {
        Arc::strong_count(&self.permits) - 1
    }

    pub(crate) fn permit(&self) -> WaitingPermit {
        WaitingPermit(self.permits.clone())
    }
}
