//! How long to wait before trying again.
#![forbid(unsafe_code)]

use std::time::Duration;

/// Waits that double, from a first to a longest.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    /// Since one succeeded.
    attempts: u32,
}

impl Backoff {
    pub(crate) fn new((initial, max): (Duration, Duration)) -> Self {
        Self { initial, max, attempts: 0 }
    }

    /// The next wait: half of it at the least, and by chance up to all, so that not all come at
    /// once when many have lost the same server.
    pub(crate) fn next(&mut self, random: u128) -> Duration {
        let delay = self.initial.saturating_mul(1 << self.attempts.min(16)).min(self.max);
        self.attempts += 1;
        delay / 2 + delay / 1024 * (random % 512) as u32
    }

    /// It has succeeded.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}
