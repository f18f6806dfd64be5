//! The deadline of a call.

use std::time::{Duration, Instant};

use ucall_proto::{Call, Meta, RpcError};

/// When a call must be answered. Ordered by that moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Deadline {
    /// The moment itself.
    pub at: Instant,
    /// The time that the call had, for the error.
    timeout: Duration,
}

impl Deadline {
    /// The deadline of a call that arrived at `arrived`: the caller's `Ucall-Timeout-Ms`, or
    /// `timeout_ms` of its `_meta`, or the server's `timeout`, whichever is shortest.
    #[inline(always)]
    pub fn of(call: &Call<'_>, timeout: Option<Duration>, arrived: Instant) -> Option<Self> {
        let is_requested = call.head.is_some_and(|head| head.timeout_ms().is_some());
        match is_requested || call.meta.is_some() || timeout.is_some() {
            true => Self::earliest(call, timeout, arrived),
            false => None,
        }
    }

    #[inline(never)]
    fn earliest(call: &Call<'_>, timeout: Option<Duration>, arrived: Instant) -> Option<Self> {
        let requested = call.head.and_then(|head| head.timeout_ms()).map(Duration::from_millis);
        let in_meta = call.meta.and_then(Meta::timeout);
        Self::after([requested, in_meta, timeout].into_iter().flatten().min()?, arrived)
    }

    #[inline]
    pub(crate) fn after(timeout: Duration, arrived: Instant) -> Option<Self> {
        Some(Self { at: arrived.checked_add(timeout)?, timeout })
    }

    /// Whether the deadline has passed. A call that is late already is not started.
    #[inline]
    pub fn has_passed(self, now: Instant) -> bool {
        self.at <= now
    }

    /// The error for a caller whose call has a deadline that a batch of this time cannot meet.
    #[cold]
    pub fn unmeetable(batch_time: Duration) -> RpcError {
        let millis = batch_time.as_secs_f64() * 1e3;
        RpcError::new(RpcError::DEADLINE_PASSED, "Deadline passed")
            .expected(&format!("expected a later deadline: a batch takes {millis:.1} ms"))
    }

    /// The error for a caller whose call has not been answered in time.
    #[cold]
    pub fn error(&self) -> RpcError {
        let timeout_ms = self.timeout.as_millis();
        RpcError::new(RpcError::DEADLINE_PASSED, "Deadline passed")
            .expected(&format!("expected a reply within {timeout_ms} ms"))
    }
}
