//! The time of a batch by its weight, as it was measured.

use std::time::Duration;

/// Measured batches before a deadline is judged by their time.
const TRUSTED_MIN: u32 = 4;
/// The weight of a new measurement, after the first few.
const LEARNING_MIN: f64 = 1.0 / 8.0;
/// What is left of the fastest times when they are doubted.
const DOUBT: f64 = 0.75;

/// The times of batches by weight: each small weight, and four ranges for each larger power of two.
#[derive(Default, Debug)]
pub(super) struct ServiceTimes {
    ranges: Vec<Range>,
}

/// Batches of about one weight. Times are in seconds.
#[derive(Clone, Copy, Default, Debug)]
struct Range {
    samples: u32,
    weight: f64,
    mean: f64,
    /// About the fastest of the last batches.
    fast: f64,
}

impl ServiceTimes {
    pub(super) fn learn(&mut self, weight: u64, took: Duration) {
        let index = range_of(weight);
        if self.ranges.len() <= index {
            self.ranges.resize(index + 1, Range::default());
        }
        if let Some(range) = self.ranges.get_mut(index) {
            range.learn(weight as f64, took.as_secs_f64());
        }
    }

    /// The expected time of a batch; `None` if no batch has ended.
    pub(super) fn expected(&self, weight: u64) -> Option<Duration> {
        self.interpolate(weight as f64, 1, |range| range.mean)
    }

    /// About the shortest time of a batch; `None` if too few have ended.
    pub(super) fn fastest(&self, weight: u64) -> Option<Duration> {
        self.interpolate(weight as f64, TRUSTED_MIN, |range| range.fast)
    }

    /// Expects faster batches, as deadlines would not be met and so no batch runs.
    pub(super) fn doubt(&mut self) {
        for range in &mut self.ranges {
            range.fast *= DOUBT;
        }
    }

    /// Between the measured weights the time is a line. Outside of them it is that of the nearest,
    /// so a larger batch than all before is tried.
    fn interpolate(
        &self,
        weight: f64,
        samples_min: u32,
        time: impl Fn(&Range) -> f64,
    ) -> Option<Duration> {
        let known = self.ranges.iter().filter(|range| range.samples >= samples_min);
        let below = known.clone().rev().find(|range| range.weight <= weight);
        let above = known.clone().find(|range| range.weight > weight);
        let seconds = match (below, above) {
            (Some(below), Some(above)) => {
                let part = (weight - below.weight) / (above.weight - below.weight);
                time(below) + part * (time(above) - time(below))
            }
            (nearest, None) | (None, nearest) => time(nearest?),
        };
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl Range {
    fn learn(&mut self, weight: f64, seconds: f64) {
        self.samples = self.samples.saturating_add(1);
        let part = (1.0 / f64::from(self.samples)).max(LEARNING_MIN);
        self.weight += part * (weight - self.weight);
        self.mean += part * (seconds - self.mean);
        if self.samples == 1 {
            self.fast = seconds;
        }
        self.fast = seconds.min(self.fast + LEARNING_MIN * (self.mean - self.fast));
    }
}

/// The number of the range of a weight.
fn range_of(weight: u64) -> usize {
    match weight {
        0..8 => weight as usize,
        _ => {
            let octave = weight.ilog2();
            let quarter = (weight >> (octave - 2)) & 3;
            8 + 4 * (octave as usize - 3) + quarter as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_those_measured_are_on_a_line() {
        let mut times = ServiceTimes::default();
        assert_eq!(times.expected(3), None);
        times.learn(4, Duration::from_millis(4));
        assert_eq!(times.expected(1), Some(Duration::from_millis(4)));
        assert_eq!(times.expected(99), Some(Duration::from_millis(4)));
        times.learn(12, Duration::from_millis(8));
        assert_eq!(times.expected(8), Some(Duration::from_millis(6)));
        assert_eq!(times.fastest(8), None);
    }

    #[test]
    fn ranges_of_weights_follow_each_other() {
        let mut last = 0;
        for weight in 1..=4096 {
            let index = range_of(weight);
            assert!(index == last || index == last + 1, "{weight}: {index}");
            last = index;
        }
        assert_eq!(range_of(u64::MAX), 8 + 4 * 60 + 3);
    }
}
