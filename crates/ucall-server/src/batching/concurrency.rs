//! Whether batches that run at once serve more calls than one after another.
//!
//! A batch makes progress at the speed 1 while it runs alone, and at a learned speed beside others:
//! 1 again if the device runs them at once, one half for two if it runs them in turn. A batch that
//! began and ended alone gives the time t(b), one beside others the speed.

use std::time::{Duration, Instant};

/// The number of batches at once whose speed is learned; more have the speed of so many.
const LEVELS_MAX: usize = 16;
/// How much faster it has to be to run another batch.
const GAIN_MIN: f64 = 1.05;
/// Another batch costs the others nothing if they keep this part of their speed.
const FREE_MIN: f64 = 0.9;
/// Batches in a row beside others while the time of one alone is not known.
const CROWDED_MAX: u32 = 4;
/// Batches after which the time of one alone is measured again.
const ALONE_INTERVAL: u32 = 256;
/// Batches after which a rejected speed is measured again, the first time and at last.
const PROBE_INTERVAL_MIN: u32 = 16;
const PROBE_INTERVAL_MAX: u32 = 512;
/// The part of a batch's time that it ran beside so many others, for a measurement.
const SHARE_MIN: f64 = 0.5;
/// The same for one alone.
const SHARE_ALONE: f64 = 0.95;
/// The weight of a new measurement.
const LEARNING: f64 = 0.25;

/// Seconds that a batch ran with so many at once: one at index 0.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Usage([f64; LEVELS_MAX]);

/// The speed of batches beside others.
#[derive(Default, Debug)]
pub(super) struct Concurrency {
    /// By the number of batches: that of two at index 0.
    levels: [Level; LEVELS_MAX - 1],
    /// Batches since one ran alone, and whether one ever has.
    since_alone: u32,
    is_alone_known: bool,
    counted_until: Option<Instant>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Level {
    speed: Option<f64>,
    /// Batches since the last measurement, and those after which the next is due.
    since: u32,
    interval: u32,
}

impl Concurrency {
    /// Counts the time of the batches that have run until now, which are `count`.
    pub(super) fn count_time<'a>(
        &mut self,
        now: Instant,
        count: usize,
        running: impl Iterator<Item = &'a mut Usage>,
    ) {
        let since = self.counted_until.replace(now).unwrap_or(now);
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        let level = count.clamp(1, LEVELS_MAX) - 1;
        for usage in running {
            if let Some(counted) = usage.0.get_mut(level) {
                *counted += seconds;
            }
        }
    }

    /// The time of a batch alone was measured.
    pub(super) fn know_alone(&mut self) {
        (self.since_alone, self.is_alone_known) = (0, true);
    }

    /// A batch starts.
    pub(super) fn batch_starts(&mut self) {
        self.since_alone = self.since_alone.saturating_add(1);
        for level in &mut self.levels {
            level.since = level.since.saturating_add(1);
        }
    }

    /// Learns from a batch that has ended. Returns whether it ran alone.
    pub(super) fn learn(&mut self, usage: &Usage, alone: Option<Duration>) -> bool {
        let total: f64 = usage.0.iter().sum();
        let [alone_seconds, ..] = usage.0;
        if alone_seconds >= SHARE_ALONE * total {
            self.know_alone();
            return true;
        }
        let Some(alone) = alone else { return false };
        let most = usage.0.iter().enumerate().skip(1).max_by(|a, b| a.1.total_cmp(b.1));
        if let Some((level, &seconds)) = most
            && seconds >= SHARE_MIN * total
        {
            let progress = |(at, seconds): (usize, &f64)| match at == level {
                true => 0.0,
                false => seconds * self.speed(at + 1).unwrap_or(1.0),
            };
            let elsewhere: f64 = usage.0.iter().enumerate().map(progress).sum();
            let speed = ((alone.as_secs_f64() - elsewhere) / seconds).clamp(0.0, 1.0);
            if let Some(level) = self.levels.get_mut(level - 1) {
                level.learn(speed);
            }
        }
        false
    }

    /// Whether another batch may start beside those that run. `calls_per_second` is what batches
    /// in a row serve if the calls are spread over so many.
    pub(super) fn may_add(
        &self,
        running: usize,
        calls_per_second: impl Fn(usize) -> Option<f64>,
    ) -> bool {
        let interval = if self.is_alone_known { ALONE_INTERVAL } else { CROWDED_MAX };
        if self.since_alone >= interval {
            return false;
        }
        let (Some(now), Some(then)) = (calls_per_second(running), calls_per_second(running + 1))
        else {
            return true;
        };
        let Some(speed_then) = self.speed(running + 1) else { return true };
        let speed_now = self.speed(running).unwrap_or(1.0);
        let served_now = running as f64 * speed_now * now;
        let served_then = (running + 1) as f64 * speed_then * then;
        served_then > GAIN_MIN * served_now
            || speed_then >= FREE_MIN * speed_now
            || self.level(running + 1).is_some_and(Level::is_probe_due)
    }

    fn level(&self, running: usize) -> Option<&Level> {
        self.levels.get(running.min(LEVELS_MAX).checked_sub(2)?)
    }

    /// The speed of each of so many batches at once, if it is known.
    fn speed(&self, running: usize) -> Option<f64> {
        match running {
            0 | 1 => Some(1.0),
            _ => self.level(running)?.speed,
        }
    }
}

impl Level {
    fn learn(&mut self, speed: f64) {
        self.since = 0;
        self.interval = (2 * self.interval).clamp(PROBE_INTERVAL_MIN, PROBE_INTERVAL_MAX);
        self.speed = Some(self.speed.map_or(speed, |known| known + LEARNING * (speed - known)));
    }

    fn is_probe_due(&self) -> bool {
        self.since >= self.interval
    }
}
