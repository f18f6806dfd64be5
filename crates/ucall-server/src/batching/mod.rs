//! When calls that wait for one function start together as a batch, and which.
//!
//! A [`Batcher`] has the calls of one function, and no clock: `now` is an argument. It learns from
//! the batches that end, and from what arrives after them:
//!
//! | | learns | which decides |
//! |---|---|---|
//! | [`ServiceTimes`] | t(b), the time of a batch of the weight b | what waiting saves |
//! | [`Returns`] | callers that call again after a reply | how many calls will arrive, and when |
//! | [`Rate`] | calls served per second | what a second of the device is worth |
//! | [`Concurrency`] | the speed of batches at once | whether one may start beside others |
//! | [`Patience`] | whether waiting for `wait_max` brings calls | whether to wait so |
//!
//! A batch starts when it is full. Otherwise it waits for `m` calls that are expected within `w`,
//! while that serves more calls per second: `m > rate * (w + t(q + m) - t(q))`, for `q` calls that
//! wait.
//! Callers in a closed loop come back within a fraction of a millisecond, so all of them share a
//! batch. Arrivals at random are never worth a wait, because `m` is then `rate * w`.
//!
//! Where batches begin later than they are formed, as in other processes, one more may be formed
//! ahead once it is full, since no wait would add to it (`in_hand.rs`).

mod by_slot;
mod concurrency;
mod in_hand;
mod patience;
mod queue;
mod rate;
mod returns;
mod service_times;

use std::time::{Duration, Instant};

pub use self::by_slot::{BySlot, HasSlot};
use self::concurrency::Concurrency;
use self::in_hand::InHand;
use self::patience::Patience;
use self::queue::Queue;
use self::rate::Rate;
use self::returns::Returns;
use self::service_times::ServiceTimes;

/// How much more is expected of a wait than its time is worth: estimates err.
const WAIT_GAIN_MIN: f64 = 1.25;
/// A batch that runs this many times as long as expected no longer holds up others.
const OVERDUE_FACTOR: u32 = 3;
/// Batches are formed ahead this many times while one runs, since some are taken back.
const AHEAD_TRIES: usize = 4;
/// The expected time of a batch, while none has ended.
const TIME_UNKNOWN: Duration = Duration::from_millis(100);

/// The limits of a function's batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimits {
    /// Calls in one batch.
    pub size_max: usize,
    /// How long a call waits for others while a batch could start. Calls that are expected to
    /// return may be waited for beyond it, for at most the time of a batch.
    pub wait_max: Duration,
    /// Batches that run at once.
    pub running_max: usize,
    /// Full batches that are formed while so many run. Unless it is 0, each batch begins when
    /// [`Batcher::began`] says so.
    pub ahead_max: usize,
    /// Calls that wait.
    pub waiting_max: Option<usize>,
    /// The sum of the weights in one batch. A heavier call is a batch of its own.
    pub weight_max: Option<u64>,
}

/// A call that waits for a batch.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<T> {
    /// Names the call.
    pub call: T,
    /// When it arrived.
    pub since: Instant,
    /// When its caller stops to wait.
    pub deadline: Option<Instant>,
    /// A step is worth a second of waiting; see [`Batcher::next`].
    pub priority: i8,
    /// Its part of what a batch costs, such as tokens. 1 if calls cost the same.
    pub weight: u64,
}

/// As many calls wait as may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full {
    /// After this time a place is likely to be free.
    pub retry_after: Duration,
}

/// The calls of one function that wait for a batch or run in one, each named by a `T`.
#[derive(Debug)]
pub struct Batcher<T> {
    limits: BatchLimits,
    queue: Queue<T>,
    running: Vec<Running<T>>,
    times: ServiceTimes,
    returns: Returns,
    rate: Rate,
    concurrency: Concurrency,
    patience: Patience,
    /// When to decide again.
    due: Option<Instant>,
    /// Batches that may be formed ahead before one ends.
    ahead_left: usize,
    /// Whether a batch is to be taken back, since [`Batcher::take_recall`].
    is_recalled: bool,
}

/// A batch that runs, or is about to.
#[derive(Debug)]
struct Running<T> {
    /// Names the batch.
    first: T,
    size: usize,
    weight: u64,
    started: Instant,
    usage: concurrency::Usage,
    /// What it has until it begins, if it may be taken back.
    in_hand: Option<InHand<T>>,
}

enum Decision {
    Start,
    /// Until then, or until calls arrive or a batch ends.
    Wait(Option<Instant>),
}

impl<T: HasSlot> Batcher<T> {
    /// No calls.
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            queue: Queue::default(),
            running: Vec::new(),
            times: ServiceTimes::default(),
            returns: Returns::default(),
            rate: Rate::default(),
            concurrency: Concurrency::default(),
            patience: Patience::default(),
            due: None,
            ahead_left: limits.ahead_max.saturating_mul(AHEAD_TRIES),
            is_recalled: false,
        }
    }

    /// Begins with the times of batches that were measured, each alone, by their weights.
    pub fn seed(&mut self, times: &[(u64, Duration)]) {
        times.iter().for_each(|(weight, took)| self.times.learn(*weight, *took));
        if !times.is_empty() {
            self.concurrency.know_alone();
        }
    }

    /// The number of calls that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The calls that wait and are first in the order of [`Batcher::next`], at most so many.
    pub fn first_waiting(&self, count: usize) -> impl Iterator<Item = T> {
        self.queue.first(count)
    }

    /// The number of batches that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether another call may wait.
    ///
    /// # Errors
    /// [`Full`] if as many wait as may.
    pub fn check_full(&self) -> Result<(), Full> {
        match self.limits.waiting_max {
            Some(max) if self.queue.len() + self.calls_ahead() >= max => {
                Err(Full { retry_after: self.next_time() })
            }
            _ => Ok(()),
        }
    }

    /// Enqueues a call.
    ///
    /// # Errors
    /// [`Full`] if as many wait as may.
    pub fn push(&mut self, waiting: Waiting<T>) -> Result<(), Full> {
        self.check_full()?;
        if self.returns.arrived(waiting.since) == returns::Arrival::New {
            self.patience.call_arrived();
        }
        self.due = Some(self.due.map_or(waiting.since, |due| due.min(waiting.since)));
        let rank = self.queue.push(waiting);
        for in_hand in self.running.iter_mut().filter_map(|batch| batch.in_hand.as_mut()) {
            self.is_recalled |= in_hand.call_arrived(rank);
        }
        Ok(())
    }

    /// Removes a call that waits, for a batch or for the beginning of its batch. Returns whether it
    /// did.
    pub fn remove(&mut self, call: T) -> bool {
        if self.queue.remove(call).is_some() {
            return true;
        }
        let mut in_hand = self.running.iter_mut().filter_map(|batch| batch.in_hand.as_mut());
        let has_waited = in_hand.any(|in_hand| in_hand.remove(call));
        self.is_recalled |= has_waited;
        has_waited
    }

    /// When [`Batcher::next`] may have a batch, unless calls arrive or a batch ends before.
    #[inline]
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.queue.is_empty())
    }

    /// A batch to start now, named by its first call. Its calls are in their order.
    ///
    /// The order is that of arrival, where a step of priority counts as a second: a call is
    /// overtaken by those of a higher priority that arrive within a second a step, and by no
    /// others, so it does not wait for ever. If more calls wait than one batch takes, the batch has
    /// the first of them, and those with weights close to its own.
    pub fn next(&mut self, now: Instant) -> Option<Vec<T>> {
        self.due = None;
        match self.decide(now) {
            Decision::Wait(until) => {
                self.due = until;
                None
            }
            Decision::Start => Some(self.start(now)),
        }
    }

    /// Removes the calls whose deadline passes before a batch that starts now is likely to end.
    /// Returns them with the time of that batch.
    pub fn take_unmeetable(&mut self, now: Instant) -> Option<(Vec<T>, Duration)> {
        if !self.queue.has_deadlines() {
            return None;
        }
        let begins = self.next_begins(now)?;
        let time = self.times.fastest(self.batch_weight(self.queue.len()))?;
        let calls = self.queue.take_before(begins + time);
        if self.queue.is_empty() && !calls.is_empty() {
            // No batch runs that could correct the time.
            self.times.doubt();
        }
        Some((calls, time))
    }

    /// Learns from the batch with this first call, which has ended.
    pub fn finished(&mut self, first: T, now: Instant) {
        let Some(index) = self.running.iter().position(|batch| batch.first == first) else {
            return;
        };
        self.count_time(now);
        let batch = self.running.remove(index);
        self.ahead_left = self.limits.ahead_max.saturating_mul(AHEAD_TRIES);
        self.due = Some(now);
        if batch.in_hand.is_some() {
            return;
        }
        let took = now.saturating_duration_since(batch.started);
        if self.concurrency.learn(&batch.usage, self.times.expected(batch.weight)) {
            self.times.learn(batch.weight, took);
        }
        self.rate.learn(batch.size, now, took);
        self.returns.batch_ended(batch.size, now, took);
    }

    fn decide(&mut self, now: Instant) -> Decision {
        if self.queue.is_empty() {
            return Decision::Wait(None);
        }
        if self.running.len() >= self.limits.running_max {
            return if self.starts_ahead() { Decision::Start } else { Decision::Wait(None) };
        }
        if !self.running.is_empty() && !self.may_run_beside() {
            let overdue = self.overdue_at();
            if overdue.is_none_or(|at| now < at) {
                return Decision::Wait(overdue);
            }
        }
        if self.is_full() {
            return Decision::Start;
        }
        let until = self.wait_for_returns(now).max(self.wait_for_others(now));
        until.filter(|until| *until > now).map_or(Decision::Start, |it| Decision::Wait(Some(it)))
    }

    fn start(&mut self, now: Instant) -> Vec<T> {
        self.patience.batch_starts();
        let taken = self.queue.take(self.limits.size_max, self.limits.weight_max);
        let calls: Vec<T> = taken.iter().map(|(_, waiting)| waiting.call).collect();
        let weights = taken.iter().map(|(_, waiting)| waiting.weight);
        let weight = weights.fold(0, u64::saturating_add);
        if self.running.len() >= self.limits.running_max {
            self.ahead_left = self.ahead_left.saturating_sub(1);
        }
        if let Some(&first) = calls.first() {
            let (size, usage) = (calls.len(), concurrency::Usage::default());
            let in_hand = Some(InHand::new(taken));
            self.running.push(Running { first, size, weight, started: now, usage, in_hand });
            if self.limits.ahead_max == 0 {
                self.began(first, now);
            }
        }
        if !self.queue.is_empty() {
            self.due = Some(now);
        }
        calls
    }

    fn count_time(&mut self, now: Instant) {
        let count = self.running.iter().filter(|batch| batch.in_hand.is_none()).count();
        let running = self.running.iter_mut().filter(|batch| batch.in_hand.is_none());
        self.concurrency.count_time(now, count, running.map(|batch| &mut batch.usage));
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= self.limits.size_max
            || self.limits.weight_max.is_some_and(|max| self.queue.weight() >= max)
    }

    /// Until when to wait for callers that are about to call again.
    fn wait_for_returns(&mut self, now: Instant) -> Option<Instant> {
        let expected = self.returns.expected(now)?;
        let (waiting, free) = (self.queue.len(), self.limits.size_max - self.queue.len());
        let calls = expected.calls.min(free as f64);
        // The last of them comes before the end, as they come evenly.
        let wait =
            expected.until.saturating_duration_since(now).as_secs_f64() * calls / (calls + 1.0);
        let time = |size| self.times.expected(self.batch_weight(size));
        let longer = match (time(waiting), time(waiting + calls.round() as usize)) {
            (Some(now), Some(later)) => later.saturating_sub(now).as_secs_f64(),
            _ => return None,
        };
        let costs = self.rate.calls_per_second() * (wait + longer);
        (calls > WAIT_GAIN_MIN * costs).then_some(expected.until)
    }

    /// Until when to wait for any callers, which the rules allow.
    fn wait_for_others(&mut self, now: Instant) -> Option<Instant> {
        let wait_max = self.limits.wait_max;
        if wait_max.is_zero() {
            return None;
        }
        let until = self.queue.oldest()? + wait_max;
        (until > now && self.patience.waits()).then_some(until)
    }

    /// Whether another batch pays while others run.
    fn may_run_beside(&self) -> bool {
        let present = self.queue.len() + self.running.iter().map(|batch| batch.size).sum::<usize>();
        let calls_per_second = |running: usize| {
            let size = present.div_ceil(running).clamp(1, self.limits.size_max);
            let time = self.times.expected(self.batch_weight(size))?;
            Some(size as f64 / time.as_secs_f64().max(1e-9))
        };
        self.concurrency.may_add(self.running.len(), calls_per_second)
    }

    /// When the batches that run no longer hold up others.
    fn overdue_at(&self) -> Option<Instant> {
        let overdue_at = |batch: &Running<T>| {
            let time = self.times.expected(batch.weight).unwrap_or(TIME_UNKNOWN);
            batch.started + OVERDUE_FACTOR * time * self.limits.running_max.min(8) as u32
        };
        self.running.iter().map(overdue_at).min()
    }

    /// The weight of a batch of so many of the calls that wait.
    fn batch_weight(&self, size: usize) -> u64 {
        let size = size.min(self.limits.size_max) as f64;
        let weight = (size * self.queue.average_weight()).round() as u64;
        weight.min(self.limits.weight_max.unwrap_or(u64::MAX)).max(1)
    }

    /// The expected time of the next batch.
    fn next_time(&self) -> Duration {
        self.times.expected(self.batch_weight(self.queue.len())).unwrap_or(TIME_UNKNOWN)
    }
}

#[cfg(test)]
mod tests;
