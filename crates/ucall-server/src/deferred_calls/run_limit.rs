//! The limit on calls that run at once.

use std::sync::Arc;

/// The limit on calls that run at once. Clones share their count.
#[derive(Clone, Debug)]
pub struct RunLimit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Its clones are the permits.
    permits: Arc<()>,
    running_max: usize,
    name: &'static str,
}

/// Counts as one running call until it is dropped, on any thread.
#[derive(Debug)]
pub struct RunPermit(#[expect(dead_code, reason = "counted by its clones")] Arc<()>);

impl RunPermit {
    /// The permit of a health check, which is no running call.
    pub fn uncounted() -> Self {
        Self(Arc::default())
    }
}

impl RunLimit {
    /// At most `running_max` calls, by the option `name`.
    pub fn new(running_max: usize, name: &'static str) -> Self {
        Self(Arc::new(Inner { permits: Arc::default(), running_max, name }))
    }

    /// Calls that hold a [`RunPermit`].
    pub fn running(&self) -> usize {
        Arc::strong_count(&self.0.permits) - 1
    }

    /// Whether a further call is past the limit.
    pub(super) fn is_full(&self) -> bool {
        self.running() >= self.0.running_max
    }

    /// Whether `more` calls would take more than half of the limit.
    pub(crate) fn is_past_half(&self, more: usize) -> bool {
        self.running() + more > self.0.running_max.div_ceil(2)
    }

    /// Counts one more call, also past the limit.
    pub(super) fn permit(&self) -> RunPermit {
        RunPermit(self.0.permits.clone())
    }

    /// The option, and the calls that it allows.
    pub(super) fn option(&self) -> (&'static str, usize) {
        (self.0.name, self.0.running_max)
    }
}
