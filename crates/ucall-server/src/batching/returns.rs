//! Callers that call again when they have their replies.
//!
//! A caller in a closed loop sends its next call a fraction of a millisecond after a reply. How
//! many do, and when the last of them has, is learned from the arrivals after each batch. Arrivals
//! are counted and not told apart, as callers may share a connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Fewer calls than this are not expected.
const CALLS_MIN: f64 = 0.5;
/// The weight of a new measurement, after the first few.
const LEARNING_MIN: f64 = 1.0 / 8.0;
/// Callers in a loop have returned before this part of the time in which they are counted. Later
/// arrivals are those that come at random, for whom no wait pays.
const WINDOW_PART_MAX: f64 = 0.9;
/// Returned callers from which the pace of the others is estimated.
const PACE_MIN: usize = 2;
/// How much longer than at that pace the last may take.
const PACE_MARGIN: f64 = 1.25;
/// Deviations beyond the mean at which the last caller has probably returned.
const DEVIATIONS: f64 = 3.0;

/// The callers of the last batches, and what was learned from those before.
#[derive(Default, Debug)]
pub(super) struct Returns {
    /// Batches whose callers may still return, the oldest first.
    cohorts: VecDeque<Cohort>,
    /// Of batches of up to 1, 3, 7 … calls: the last of many callers returns later than the last of
    /// few.
    by_size: Vec<ReturnTimes>,
}

/// How the callers of a batch return.
#[derive(Clone, Copy, Default, Debug)]
struct ReturnTimes {
    /// The share of callers that return.
    share: f64,
    /// Seconds until the last of them has: the mean, and the mean deviation.
    last: f64,
    deviation: f64,
    samples: u32,
}

/// The callers of one batch.
#[derive(Debug)]
struct Cohort {
    ended: Instant,
    /// Later arrivals are not counted.
    until: Instant,
    size: usize,
    arrived: usize,
    last: Instant,
}

/// Calls that are expected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Expected {
    pub(super) calls: f64,
    pub(super) until: Instant,
}

/// Whether a call was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// It counts as that of a caller who has returned.
    Return,
    New,
}

impl Returns {
    /// The callers of a batch have their replies. They may return for the time that it took: a
    /// longer wait would cost more than it could save.
    pub(super) fn batch_ended(&mut self, size: usize, now: Instant, took: Duration) {
        self.learn_until(now);
        let until = now + took;
        self.cohorts.push_back(Cohort { ended: now, until, size, arrived: 0, last: now });
    }

    /// A call has arrived.
    pub(super) fn arrived(&mut self, now: Instant) -> Arrival {
        self.learn_until(now);
        let Some(cohort) = self.cohorts.iter_mut().find(|cohort| cohort.arrived < cohort.size)
        else {
            return Arrival::New;
        };
        cohort.arrived += 1;
        cohort.last = now;
        Arrival::Return
    }

    /// The calls that are expected soon, if any are.
    pub(super) fn expected(&mut self, now: Instant) -> Option<Expected> {
        self.learn_until(now);
        let expected = self.cohorts.iter().filter_map(|cohort| self.expected_of(cohort, now));
        let both = |a: Expected, b: Expected| Expected {
            calls: a.calls + b.calls,
            until: a.until.max(b.until),
        };
        expected.reduce(both)
    }

    fn expected_of(&self, cohort: &Cohort, now: Instant) -> Option<Expected> {
        let learned = self.by_size.get(size_class(cohort.size))?;
        let returning = learned.share * cohort.size as f64;
        let window = cohort.until.saturating_duration_since(cohort.ended).as_secs_f64();
        if learned.last + 2.0 * learned.deviation > WINDOW_PART_MAX * window {
            return None;
        }
        let passed = now.saturating_duration_since(cohort.ended).as_secs_f64();
        let mut span = (learned.last + DEVIATIONS * learned.deviation).max(1e-6);
        if cohort.arrived >= PACE_MIN {
            // Those before may have been held up by a batch that ran.
            span = span.min(PACE_MARGIN * passed * returning / cohort.arrived as f64);
        }
        // As if they came evenly: late in the span few are still to come.
        let late = returning * (1.0 - passed / span);
        let calls = late.min(returning - cohort.arrived as f64);
        if calls < CALLS_MIN {
            return None;
        }
        let seconds = span * (1.0 - CALLS_MIN / returning);
        let until = cohort.ended + Duration::try_from_secs_f64(seconds).ok()?;
        Some(Expected { calls, until: until.min(cohort.until) }).filter(|it| it.until > now)
    }

    /// Learns from batches whose callers have returned, or return no more.
    fn learn_until(&mut self, now: Instant) {
        while let Some(cohort) = self.cohorts.front()
            && (cohort.until <= now || cohort.arrived == cohort.size)
        {
            let share = cohort.arrived as f64 / cohort.size.max(1) as f64;
            let last = cohort.last.saturating_duration_since(cohort.ended).as_secs_f64();
            let class = size_class(cohort.size);
            if self.by_size.len() <= class {
                self.by_size.resize(class + 1, ReturnTimes::default());
            }
            if let Some(learned) = self.by_size.get_mut(class) {
                learned.learn(share, last);
            }
            self.cohorts.pop_front();
        }
    }
}

impl ReturnTimes {
    fn learn(&mut self, share: f64, last: f64) {
        self.samples = self.samples.saturating_add(1);
        let part = (1.0 / f64::from(self.samples)).max(LEARNING_MIN);
        self.share += part * (share - self.share);
        if self.last == 0.0 {
            (self.last, self.deviation) = (last, last / 2.0);
        } else if share > 0.0 {
            self.deviation += 2.0 * part.min(0.5) * ((last - self.last).abs() - self.deviation);
            self.last += part * (last - self.last);
        }
    }
}

/// The index in `by_size` of a batch of `size` calls.
fn size_class(size: usize) -> usize {
    size.max(1).ilog2() as usize
}
