//! The state of an upstream, which any thread may read.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// One upstream, as the worker of this process uses it.
#[derive(Debug, Default)]
pub struct UpstreamStatus {
    outstanding: AtomicUsize,
    failures: AtomicU64,
    is_resting: AtomicBool,
}

impl UpstreamStatus {
    /// Calls that it has not answered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// How often it has failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether it gets no calls because it has failed, or one to see whether it answers.
    pub fn is_resting(&self) -> bool {
        self.is_resting.load(Ordering::Relaxed)
    }

    pub(crate) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, outstanding: usize, is_resting: bool) {
        self.outstanding.store(outstanding, Ordering::Relaxed);
        self.is_resting.store(is_resting, Ordering::Relaxed);
    }
}
