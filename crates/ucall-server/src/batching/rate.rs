//! The rate at which calls are served.

use std::time::{Duration, Instant};

/// The weight of what is known already, when a batch ends.
const MEMORY: f64 = 7.0 / 8.0;
/// A pause longer than so many times the batch after it counts as this long.
const PAUSE_MAX: u32 = 4;

/// Calls served per second, over the last batches.
#[derive(Default, Debug)]
pub(super) struct Rate {
    calls: f64,
    seconds: f64,
    last_end: Option<Instant>,
}

impl Rate {
    pub(super) fn learn(&mut self, calls: usize, now: Instant, took: Duration) {
        let since_last = self.last_end.map_or(took, |last| now.saturating_duration_since(last));
        self.last_end = Some(now);
        self.calls = self.calls * MEMORY + calls as f64;
        self.seconds = self.seconds * MEMORY + since_last.min(PAUSE_MAX * took).as_secs_f64();
    }

    pub(super) fn calls_per_second(&self) -> f64 {
        self.calls / self.seconds.max(1e-9)
    }
}
