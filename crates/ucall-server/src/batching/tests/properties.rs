//! What holds for all calls, whatever a batcher has learned.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::{BatchLimits, Batcher, Waiting};
use super::origin;
use super::simulator::{micros, rules as limits};

#[derive(Clone, Debug)]
enum Step {
    Push { priority: i8, weight: u64, timeout: Option<u64> },
    Remove(prop::sample::Index),
    Pass(u64),
    Finish(usize),
}

fn step(weight_max: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (-2..3_i8, 1..=weight_max, prop::option::weighted(0.1, 1..5000_u64))
            .prop_map(|(priority, weight, timeout)| Step::Push { priority, weight, timeout }),
        1 => any::<prop::sample::Index>().prop_map(Step::Remove),
        3 => (1..4000_u64).prop_map(Step::Pass),
        2 => (0..4_usize).prop_map(Step::Finish),
    ]
}

struct Model {
    batcher: Batcher<usize>,
    rules: BatchLimits,
    now: Instant,
    waiting: BTreeMap<usize, Waiting<usize>>,
    running: Vec<(usize, Instant)>,
    started: BTreeSet<usize>,
    longest: Duration,
    /// Since when no batch runs.
    free_since: Option<Instant>,
}

impl Model {
    fn apply(&mut self, step: &Step, call: usize) {
        match step {
            Step::Push { priority, weight, timeout } => {
                let (since, deadline) = (self.now, timeout.map(|it| self.now + micros(it)));
                let (priority, weight) = (*priority, *weight);
                let waiting = Waiting { call, since, deadline, priority, weight };
                let is_full = self.rules.waiting_max.is_some_and(|max| self.waiting.len() >= max);
                assert_eq!(self.batcher.push(waiting).is_err(), is_full);
                if !is_full {
                    self.waiting.insert(call, waiting);
                }
            }
            Step::Remove(index) if !self.waiting.is_empty() => {
                let call = *self.waiting.keys().nth(index.index(self.waiting.len())).unwrap();
                assert!(self.batcher.remove(call));
                self.waiting.remove(&call);
            }
            Step::Finish(index) if !self.running.is_empty() => {
                let (first, started) = self.running.remove(index % self.running.len());
                self.batcher.finished(first, self.now);
                self.longest = self.longest.max(self.now - started);
                if self.running.is_empty() {
                    self.free_since = Some(self.now);
                }
            }
            Step::Pass(time) => self.now += micros(*time),
            Step::Remove(_) | Step::Finish(_) => {}
        }
        self.start_batches();
    }

    fn start_batches(&mut self) {
        let unmeetable = self.batcher.take_unmeetable(self.now);
        for call in unmeetable.map(|(calls, _)| calls).unwrap_or_default() {
            let waiting = self.waiting.remove(&call).expect("it waits");
            assert!(waiting.deadline.is_some_and(|it| it < self.now + self.longest));
        }
        while let Some(calls) = self.batcher.next(self.now) {
            self.check_batch(&calls);
            self.running.push((calls[0], self.now));
            self.free_since = None;
        }
        assert!(self.running.len() <= self.rules.running_max);
        assert_eq!(self.batcher.waiting(), self.waiting.len());
        if self.running.is_empty() && !self.waiting.is_empty() {
            self.check_wait();
        }
    }

    fn check_batch(&mut self, calls: &[usize]) {
        assert!(calls.len() <= self.rules.size_max);
        let of_batch: Vec<_> =
            calls.iter().map(|call| self.waiting.remove(call).expect("it waits")).collect();
        let weight: u64 = of_batch.iter().map(|waiting| waiting.weight).sum();
        assert!(calls.len() == 1 || self.rules.weight_max.is_none_or(|max| weight <= max));
        for waiting in &of_batch {
            assert!(self.started.insert(waiting.call), "it ran before");
            // Those of its kind that are left came later.
            let overtaken = self.waiting.values().find(|it| {
                it.priority == waiting.priority
                    && it.weight == waiting.weight
                    && it.call < waiting.call
            });
            assert!(overtaken.is_none(), "{overtaken:?} before {waiting:?}");
        }
    }

    /// Nothing runs and calls wait: for no longer than the rules and a batch.
    fn check_wait(&self) {
        let due = self.batcher.due().expect("calls wait for a moment");
        assert!(due > self.now);
        let oldest = self.waiting.values().map(|waiting| waiting.since).min().unwrap();
        let free_since = self.free_since.unwrap_or(oldest).max(oldest);
        let longest = self.free_since.map_or(Duration::ZERO, |_| self.longest);
        let by_returns = self.free_since.unwrap_or(oldest) + longest;
        let bound = (oldest + self.rules.wait_max).max(by_returns);
        assert!(due <= bound.max(free_since), "{:?}", due - self.now);
    }
}

proptest! {
    #[test]
    fn no_call_is_lost_or_runs_twice_or_waits_too_long(
        size_max in 1..6_usize,
        wait_max in prop_oneof![Just(0), 1..3000_u64],
        running_max in 1..4_usize,
        waiting_max in prop::option::of(1..20_usize),
        weight_max in prop::option::of(3..9_u64),
        steps in prop::collection::vec(step(3), 0..200),
    ) {
        let wait_max = micros(wait_max);
        let limits = BatchLimits { size_max, wait_max, running_max, ..limits(1) };
        let rules = BatchLimits { waiting_max, weight_max, ..limits };
        let mut model = Model {
            batcher: Batcher::new(rules),
            rules,
            now: origin(),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            started: BTreeSet::new(),
            longest: Duration::ZERO,
            free_since: None,
        };
        for (call, step) in steps.iter().enumerate() {
            model.apply(step, call);
        }
        while !model.running.is_empty() || !model.waiting.is_empty() {
            model.apply(&Step::Pass(3000), 0);
            model.apply(&Step::Finish(0), 0);
        }
    }
}

#[derive(Clone, Debug)]
enum AheadStep {
    Push(i8),
    /// A call ends.
    Remove(usize),
    /// A process ends its batch, and begins its next one.
    Finish,
    Pass(u64),
}

fn ahead_step() -> impl Strategy<Value = AheadStep> {
    prop_oneof![
        5 => (-1..2_i8).prop_map(AheadStep::Push),
        1 => (0..99_usize).prop_map(AheadStep::Remove),
        2 => Just(AheadStep::Finish),
        1 => (1..2000_u64).prop_map(AheadStep::Pass),
    ]
}

proptest! {
    /// One process with a batch ahead, which is taken back whenever it is outdated.
    #[test]
    fn batches_ahead_have_the_calls_that_should_be_next(
        size_max in 1..4_usize,
        steps in prop::collection::vec(ahead_step(), 0..150),
    ) {
        let rules = BatchLimits { ahead_max: 1, ..limits(size_max) };
        let (mut batcher, mut now) = (Batcher::new(rules), origin());
        // The first has begun.
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let (mut waiting, mut begun) = (BTreeMap::new(), BTreeSet::new());
        for (call, step) in steps.iter().enumerate() {
            match step {
                AheadStep::Push(priority) => {
                    let (since, priority) = (now, *priority);
                    let pushed = Waiting { call, since, deadline: None, priority, weight: 1 };
                    batcher.push(pushed).unwrap();
                    waiting.insert(call, priority);
                }
                AheadStep::Remove(index) => {
                    let call = waiting.keys().nth(*index % waiting.len().max(1)).copied();
                    if let Some(call) = call {
                        waiting.remove(&call);
                        prop_assert!(batcher.remove(call));
                    }
                }
                AheadStep::Finish if !batches.is_empty() => {
                    batcher.finished(batches.remove(0)[0], now);
                    begin(&mut batcher, &batches, now, &mut waiting, &mut begun);
                }
                AheadStep::Finish => {}
                AheadStep::Pass(time) => now += micros(*time),
            }
            if batcher.take_recall() {
                let ahead = batches.pop().unwrap();
                prop_assert!(batcher.is_outdated(ahead[0]));
                let back = batcher.put_back(ahead[0], now);
                prop_assert!(back.iter().all(|call| waiting.contains_key(call)));
            }
            while let Some(calls) = batcher.next(now) {
                batches.push(calls);
                if batches.len() == 1 {
                    begin(&mut batcher, &batches, now, &mut waiting, &mut begun);
                }
            }
            prop_assert!(batches.len() <= 2);
            if let Some(ahead) = batches.get(1) {
                // Those that are left are not more urgent than any of them.
                let least = ahead.iter().map(|call| waiting[call]).min();
                let left = waiting.iter().filter(|(call, _)| !ahead.contains(call));
                prop_assert!(left.map(|(_, priority)| *priority).max() <= least);
            }
        }
        prop_assert_eq!(batcher.running(), batches.len());
    }
}

/// The first batch begins.
fn begin(
    batcher: &mut Batcher<usize>,
    batches: &[Vec<usize>],
    now: Instant,
    waiting: &mut BTreeMap<usize, i8>,
    begun: &mut BTreeSet<usize>,
) {
    let Some(calls) = batches.first() else { return };
    batcher.began(calls[0], now);
    for call in calls {
        assert!(waiting.remove(call).is_some(), "it has ended");
        assert!(begun.insert(*call), "it ran before");
    }
}
