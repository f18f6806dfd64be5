//! Batches that are formed and have not begun, which may be taken back.
//!
//! Their calls are still calls that wait: one may end, or be overtaken by a more urgent one. Then
//! the batch is outdated. Its owner takes it back, unless it has begun meanwhile, and its calls
//! have their old places in the queue.

use std::time::Instant;

use super::queue::Rank;
use super::{Batcher, HasSlot, Running, Waiting};

/// The calls of a batch that has not begun.
#[derive(Debug)]
pub(super) struct InHand<T> {
    calls: Vec<(Rank, Waiting<T>)>,
    is_outdated: bool,
}

impl<T: HasSlot> InHand<T> {
    /// These calls, in their order.
    pub(super) fn new(calls: Vec<(Rank, Waiting<T>)>) -> Self {
        Self { calls, is_outdated: false }
    }

    /// Removes a call. Returns whether it was one of them.
    pub(super) fn remove(&mut self, call: T) -> bool {
        let before = self.calls.len();
        self.calls.retain(|(_, waiting)| waiting.call != call);
        let has_removed = self.calls.len() < before;
        self.is_outdated |= has_removed;
        has_removed
    }

    /// A call with this rank arrives. Returns whether it outdates the batch.
    pub(super) fn call_arrived(&mut self, rank: Rank) -> bool {
        let is_overtaken = self.calls.last().is_some_and(|(last, _)| rank < *last);
        let outdates = is_overtaken && !self.is_outdated;
        self.is_outdated |= is_overtaken;
        outdates
    }
}

impl<T: HasSlot> Batcher<T> {
    /// The batch with this first call begins.
    pub fn began(&mut self, first: T, now: Instant) {
        self.count_time(now);
        if let Some(batch) = self.running.iter_mut().find(|batch| batch.first == first) {
            (batch.started, batch.in_hand) = (now, None);
            self.concurrency.batch_starts();
        }
    }

    /// Whether the batch with this first call should be taken back.
    pub fn is_outdated(&self, first: T) -> bool {
        let batch = self.running.iter().find(|batch| batch.first == first);
        batch.and_then(|batch| batch.in_hand.as_ref()).is_some_and(|it| it.is_outdated)
    }

    /// Whether a batch has become outdated since this was last called.
    pub fn take_recall(&mut self) -> bool {
        std::mem::take(&mut self.is_recalled)
    }

    /// Takes back the batch with this first call. Returns those of its calls that wait again; the
    /// others have ended.
    pub fn put_back(&mut self, first: T, now: Instant) -> Vec<T> {
        let Some(index) = self.running.iter().position(|batch| batch.first == first) else {
            return Vec::new();
        };
        let Some(in_hand) = self.running.remove(index).in_hand else { return Vec::new() };
        self.due = Some(now);
        for (rank, waiting) in &in_hand.calls {
            self.queue.insert(*rank, *waiting);
        }
        in_hand.calls.into_iter().map(|(_, waiting)| waiting.call).collect()
    }

    /// Whether another batch starts although as many run as may.
    pub(super) fn starts_ahead(&self) -> bool {
        let running_max = self.limits.running_max.saturating_add(self.limits.ahead_max);
        self.ahead_left > 0 && self.running.len() < running_max && self.is_full()
    }

    /// The calls of the batches that are formed ahead.
    pub(super) fn calls_ahead(&self) -> usize {
        let ahead = self.running.iter().skip(self.limits.running_max);
        let in_hand = ahead.filter_map(|batch| batch.in_hand.as_ref());
        in_hand.map(|in_hand| in_hand.calls.len()).sum()
    }

    /// When a batch that is formed now is likely to begin, if one may be.
    pub(super) fn next_begins(&self, now: Instant) -> Option<Instant> {
        if self.running.len() < self.limits.running_max {
            return Some(now);
        }
        let ends = |batch: &Running<T>| Some(batch.started + self.times.fastest(batch.weight)?);
        let first_end = self.running.iter().filter_map(ends).min();
        self.starts_ahead().then(|| first_end.map_or(now, |end| end.max(now)))
    }
}
