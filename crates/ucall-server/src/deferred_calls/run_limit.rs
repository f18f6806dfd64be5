//! The limit on calls that run at once.
//!
//! Its last part is for connections with few calls: one that has many, such as streams without an
//! end, gets no more there, so that others find a place. How many are too many depends on what is
//! free, not on how many connections call: each leaves [`SHARE_DIVISOR`] times its own calls free,
//! so any number of them leaves something.

use std::sync::Arc;

use super::shares::Share;

/// The part of the limit that is for connections with few calls, and the part of that which is
/// still free that one of them may have.
const SHARE_DIVISOR: usize = 8;

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
#[expect(dead_code, reason = "counted by the clones")]
pub struct RunPermit(Arc<()>, Option<Share>);

impl RunPermit {
    /// The permit of a health check, which is no running call.
    pub fn uncounted() -> Self {
        Self(Arc::default(), None)
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
    pub(crate) fn is_full(&self) -> bool {
        self.running() >= self.0.running_max
    }

    /// Whether a connection with so many calls may have another.
    #[inline]
    pub(super) fn admits(&self, calls: impl FnOnce() -> usize) -> bool {
        let max = self.0.running_max;
        let free = max.saturating_sub(self.running());
        free > max / SHARE_DIVISOR || (free > 0 && calls() * SHARE_DIVISOR < free)
    }

    /// Whether `more` calls would take more than half of the limit.
    pub(crate) fn is_past_half(&self, more: usize) -> bool {
        self.running() + more > self.0.running_max.div_ceil(2)
    }

    /// Counts one more call, also past the limit.
    pub(super) fn permit(&self, share: Option<Share>) -> RunPermit {
        RunPermit(self.0.permits.clone(), share)
    }

    /// The option, and the calls that it allows.
    pub(super) fn option(&self) -> (&'static str, usize) {
        (self.0.name, self.0.running_max)
    }
}
