//! The calls that wait, in the order in which batches take them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{BySlot, HasSlot, Waiting};

/// How much earlier a call counts as arrived for a step of its priority.
const PRIORITY_STEP: Duration = Duration::from_secs(1);
/// The calls whose weights are compared are so many times those of a batch.
const COMPARED_BATCHES: usize = 4;

/// The rank of a call: microseconds of arrival less its priority, then the order of arrival.
pub(super) type Rank = (i64, u64);

/// The calls that wait.
#[derive(Debug)]
pub(super) struct Queue<T> {
    calls: BTreeMap<Rank, Waiting<T>>,
    ranks: BySlot<T, Rank>,
    /// When the first call arrived.
    began: Option<Instant>,
    pushed: u64,
    weight: u64,
    with_deadline: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            calls: BTreeMap::new(),
            ranks: BySlot::default(),
            began: None,
            pushed: 0,
            weight: 0,
            with_deadline: 0,
        }
    }
}

impl<T: HasSlot> Queue<T> {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The first of the calls, in their order.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = T> {
        self.calls.values().take(count).map(|waiting| waiting.call)
    }

    /// The sum of all weights.
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) fn average_weight(&self) -> f64 {
        match self.calls.len() {
            0 => 1.0,
            calls => self.weight as f64 / calls as f64,
        }
    }

    pub(super) fn has_deadlines(&self) -> bool {
        self.with_deadline > 0
    }

    /// When the call arrived that has waited longest.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.calls.values().map(|waiting| waiting.since).min()
    }

    /// Enqueues a call. Returns its rank.
    pub(super) fn push(&mut self, waiting: Waiting<T>) -> Rank {
        let began = *self.began.get_or_insert(waiting.since);
        let micros = waiting.since.saturating_duration_since(began).as_micros() as i64;
        let step = PRIORITY_STEP.as_micros() as i64;
        let rank = (micros - i64::from(waiting.priority) * step, self.pushed);
        self.pushed += 1;
        self.insert(rank, waiting);
        rank
    }

    /// Enqueues a call in its old place.
    pub(super) fn insert(&mut self, rank: Rank, waiting: Waiting<T>) {
        self.weight = self.weight.saturating_add(waiting.weight);
        self.with_deadline += usize::from(waiting.deadline.is_some());
        self.ranks.insert(waiting.call, rank);
        self.calls.insert(rank, waiting);
    }

    pub(super) fn remove(&mut self, call: T) -> Option<Waiting<T>> {
        let rank = self.ranks.remove(call)?;
        let waiting = self.calls.remove(&rank)?;
        self.forget(&waiting);
        Some(waiting)
    }

    fn forget(&mut self, waiting: &Waiting<T>) {
        self.weight = self.weight.saturating_sub(waiting.weight);
        self.with_deadline -= usize::from(waiting.deadline.is_some());
    }

    /// Takes the first call, and others up to these limits. Returns them by their ranks.
    pub(super) fn take(
        &mut self,
        size_max: usize,
        weight_max: Option<u64>,
    ) -> Vec<(Rank, Waiting<T>)> {
        let ranks = self.choose(size_max.max(1), weight_max.unwrap_or(u64::MAX));
        let mut calls = Vec::with_capacity(ranks.len());
        for rank in ranks {
            if let Some(waiting) = self.calls.remove(&rank) {
                self.ranks.remove(waiting.call);
                self.forget(&waiting);
                calls.push((rank, waiting));
            }
        }
        calls
    }

    fn choose(&self, size_max: usize, weight_max: u64) -> Vec<Rank> {
        let compared = self.calls.iter().take(size_max.saturating_mul(COMPARED_BATCHES));
        let mut candidates: Vec<(Rank, u64)> =
            compared.map(|(rank, waiting)| (*rank, waiting.weight)).collect();
        let first = candidates.first().map_or(0, |(_, weight)| *weight);
        if self.calls.len() > size_max || self.weight > weight_max {
            // Stable, so calls of one weight keep their order.
            candidates.sort_by_key(|(_, weight)| weight.abs_diff(first));
        }
        let mut left = weight_max;
        let fits = |(index, (_, weight)): &(usize, (Rank, u64))| {
            let fits = *index == 0 || *weight <= left;
            left = left.saturating_sub(if fits { *weight } else { 0 });
            fits
        };
        let chosen = candidates.into_iter().enumerate().filter(fits).take(size_max);
        let mut ranks: Vec<Rank> = chosen.map(|(_, (rank, _))| rank).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Takes the calls whose deadline is before that moment.
    pub(super) fn take_before(&mut self, moment: Instant) -> Vec<T> {
        let is_late = |waiting: &&Waiting<T>| waiting.deadline.is_some_and(|it| it < moment);
        let late = self.calls.values().filter(is_late);
        let calls: Vec<T> = late.map(|waiting| waiting.call).collect();
        for call in &calls {
            self.remove(*call);
        }
        calls
    }
}
