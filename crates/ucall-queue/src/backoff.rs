//! Waits between attempts.
#![forbid(unsafe_code)]

use std::time::Duration;

/// Waits that double, from the first to the longest.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    /// Attempts since the last success.
    attempts: u32,
}

impl Backoff {
    pub(crate) fn new((initial, max): (Duration, Duration)) -> Self {
        Self { initial, max, attempts: 0 }
    }

    /// The next wait, at random between half of it and all of it, so that the many clients of a
    /// server that was lost do not connect at once.
    pub(crate) fn next(&mut self, random: u128) -> Duration {
        let delay = self.initial.saturating_mul(1 << self.attempts.min(16)).min(self.max);
        self.attempts += 1;
        delay / 2 + delay / 1024 * (random % 512) as u32
    }

    /// Reports a success.
    pub(crate) fn reset(&mut self) {
        self.attempts = 0;
    }
}
