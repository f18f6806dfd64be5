//! Which calls a batch has, and when it starts.

use std::time::{Duration, Instant};

use super::super::{BatchLimits, Batcher, Full, Waiting};
use super::origin;
use super::simulator::{micros, rules};

const MILLI: Duration = micros(1000);

/// A batcher, and the time that its test gives it.
struct Bench {
    batcher: Batcher<u32>,
    origin: Instant,
    now: Instant,
}

impl Bench {
    fn new(rules: BatchLimits) -> Self {
        let now = origin();
        Self { batcher: Batcher::new(rules), origin: now, now }
    }

    fn waiting(&self, call: u32) -> Waiting<u32> {
        Waiting { call, since: self.now, deadline: None, priority: 0, weight: 1 }
    }

    fn push(&mut self, call: u32) {
        self.batcher.push(self.waiting(call)).unwrap();
    }

    fn push_weight(&mut self, call: u32, weight: u64) {
        self.batcher.push(Waiting { weight, ..self.waiting(call) }).unwrap();
    }

    fn push_priority(&mut self, call: u32, priority: i8) {
        self.batcher.push(Waiting { priority, ..self.waiting(call) }).unwrap();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn next(&mut self) -> Option<Vec<u32>> {
        self.batcher.next(self.now)
    }

    /// Runs a batch of the calls that wait for that time.
    fn run(&mut self, time: Duration) -> Vec<u32> {
        let calls = self.next().expect("a batch");
        self.pass(time);
        self.batcher.finished(calls[0], self.now);
        calls
    }

    /// Runs some batches of one call, each for that time.
    fn learn(&mut self, time: Duration) {
        for call in 1000..1008 {
            self.push(call);
            self.run(time);
            self.pass(10 * time);
        }
    }
}

#[test]
fn calls_wait_while_a_batch_runs() {
    let mut bench = Bench::new(rules(2));
    assert_eq!(bench.next(), None);
    bench.push(1);
    assert_eq!(bench.next(), Some(vec![1]));
    for call in 2..5 {
        bench.push(call);
    }
    assert_eq!(bench.next(), None);
    assert_eq!(bench.batcher.due(), None);
    bench.batcher.finished(1, bench.now);
    assert_eq!(bench.batcher.due(), Some(bench.now));
    assert_eq!(bench.next(), Some(vec![2, 3]));
    assert_eq!(bench.batcher.waiting(), 1);
}

#[test]
fn a_call_waits_for_others_as_long_as_the_limits_say() {
    let mut bench = Bench::new(BatchLimits { wait_max: 2 * MILLI, ..rules(3) });
    bench.push(1);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.batcher.due(), Some(bench.origin + 2 * MILLI));
    bench.pass(MILLI);
    bench.push(2);
    assert_eq!(bench.next(), None);
    bench.pass(MILLI);
    assert_eq!(bench.next(), Some(vec![1, 2]));
    bench.batcher.finished(1, bench.now);
    // A batch that is full waits for nothing.
    for call in 3..6 {
        bench.push(call);
    }
    assert_eq!(bench.next(), Some(vec![3, 4, 5]));
}

#[test]
fn waits_that_bring_no_calls_end() {
    let mut bench = Bench::new(BatchLimits { wait_max: 2 * MILLI, ..rules(3) });
    let mut waits = 0;
    for call in 0..64 {
        bench.push(call);
        if bench.next().is_none() {
            waits += 1;
            bench.pass(2 * MILLI);
            assert_eq!(bench.next(), Some(vec![call]));
        }
        bench.pass(MILLI);
        bench.batcher.finished(call, bench.now);
        bench.pass(10 * MILLI);
    }
    assert_eq!(waits, 5);
}

#[test]
fn a_step_of_priority_is_worth_a_second() {
    let mut bench = Bench::new(rules(1));
    bench.push(0);
    bench.next();
    bench.push_priority(1, 0);
    bench.pass(900 * MILLI);
    bench.push_priority(2, 1);
    bench.push_priority(3, -1);
    bench.push_priority(4, 1);
    bench.pass(200 * MILLI);
    bench.push_priority(5, 1);
    bench.push_priority(6, 2);
    bench.batcher.finished(0, bench.now);
    let order: Vec<u32> = (0..6).map(|_| bench.run(MILLI)[0]).collect();
    assert_eq!(order, [6, 2, 4, 1, 5, 3]);
}

#[test]
fn no_more_calls_wait_than_the_limits_allow() {
    let mut bench = Bench::new(BatchLimits { waiting_max: Some(2), ..rules(1) });
    bench.learn(5 * MILLI);
    bench.push(0);
    bench.next();
    bench.push(1);
    bench.push(2);
    let full = Err(Full { retry_after: 5 * MILLI });
    assert_eq!(bench.batcher.push(bench.waiting(3)), full);
    assert_eq!(bench.batcher.check_full(), full);
    assert!(bench.batcher.remove(1));
    assert!(!bench.batcher.remove(1));
    bench.push(3);
    bench.batcher.finished(0, bench.now);
    assert_eq!(bench.next(), Some(vec![2]));
}

#[test]
fn a_batch_has_no_more_weight_than_the_limits_allow() {
    let mut bench = Bench::new(BatchLimits { weight_max: Some(10), ..rules(8) });
    for (call, weight) in [(1, 6), (2, 3), (3, 11), (4, 3), (5, 3)] {
        bench.push_weight(call, weight);
    }
    assert_eq!(bench.run(MILLI), [1, 2]);
    assert_eq!(bench.run(MILLI), [3]);
    assert_eq!(bench.run(MILLI), [4, 5]);
}

#[test]
fn calls_of_close_weights_share_a_batch_when_more_wait_than_fit() {
    let mut bench = Bench::new(rules(2));
    for (call, weight) in [(1, 10), (2, 500), (3, 11), (4, 510), (5, 90)] {
        bench.push_weight(call, weight);
    }
    assert_eq!(bench.run(MILLI), [1, 3]);
    assert_eq!(bench.run(MILLI), [2, 4]);
    assert_eq!(bench.run(MILLI), [5]);
}

#[test]
fn deadlines_that_cannot_be_met_are_found_before_the_batch() {
    let mut bench = Bench::new(rules(8));
    bench.learn(5 * MILLI);
    let late = Waiting { deadline: Some(bench.now + 4 * MILLI), ..bench.waiting(1) };
    let early = Waiting { deadline: Some(bench.now + 6 * MILLI), ..bench.waiting(2) };
    bench.batcher.push(late).unwrap();
    bench.batcher.push(early).unwrap();
    assert_eq!(bench.batcher.take_unmeetable(bench.now), Some((vec![1], 5 * MILLI)));
    assert_eq!(bench.run(MILLI), [2]);
}

#[test]
fn a_time_by_which_no_call_runs_is_doubted() {
    let mut bench = Bench::new(rules(8));
    bench.learn(5 * MILLI);
    let mut refused = 0;
    while refused < 100 {
        let deadline = Some(bench.now + 2 * MILLI);
        bench.batcher.push(Waiting { deadline, ..bench.waiting(refused) }).unwrap();
        if bench.batcher.take_unmeetable(bench.now).is_none_or(|(calls, _)| calls.is_empty()) {
            break;
        }
        refused += 1;
    }
    assert_eq!(refused, 4);
    assert_eq!(bench.run(MILLI), [4]);
}

#[test]
fn a_batch_that_hangs_does_not_hold_up_the_second() {
    let mut bench = Bench::new(BatchLimits { running_max: 2, ..rules(8) });
    bench.learn(MILLI);
    // Batches beside others take as long as both in a row.
    for _ in 0..40 {
        bench.push(1);
        bench.next();
        bench.push(2);
        let is_second = bench.next().is_some();
        bench.pass(2 * MILLI);
        bench.batcher.finished(1, bench.now);
        if is_second {
            bench.batcher.finished(2, bench.now);
        } else {
            bench.pass(20 * MILLI);
            bench.run(MILLI);
        }
        bench.pass(20 * MILLI);
    }
    bench.push(1);
    bench.next();
    bench.push(2);
    assert_eq!(bench.next(), None);
    let due = bench.batcher.due().expect("the first is overdue then");
    bench.now = due;
    assert_eq!(bench.next(), Some(vec![2]));
}

/// A batcher of batches that begin elsewhere, and its first batch, which has begun.
fn elsewhere(size_max: usize) -> Bench {
    let mut bench = Bench::new(BatchLimits { ahead_max: 1, ..rules(size_max) });
    bench.push(0);
    assert_eq!(bench.next(), Some(vec![0]));
    bench.batcher.began(0, bench.now);
    bench
}

#[test]
fn a_full_batch_is_formed_ahead() {
    let mut bench = elsewhere(2);
    bench.push(1);
    assert_eq!(bench.next(), None, "a call that arrives yet may join it");
    (2..6).for_each(|call| bench.push(call));
    assert_eq!(bench.next(), Some(vec![1, 2]));
    assert_eq!(bench.next(), None, "one ahead at most");
    bench.pass(MILLI);
    bench.batcher.finished(0, bench.now);
    bench.batcher.began(1, bench.now);
    assert_eq!(bench.next(), Some(vec![3, 4]));
    bench.pass(MILLI);
    bench.batcher.finished(1, bench.now);
    bench.batcher.began(3, bench.now);
    assert_eq!(bench.next(), None);
    bench.batcher.finished(3, bench.now);
    assert_eq!(bench.next(), Some(vec![5]));
}

#[test]
fn a_batch_ahead_is_outdated_when_a_call_of_it_ends_or_is_overtaken() {
    let mut bench = elsewhere(2);
    bench.push(1);
    bench.push(2);
    assert_eq!(bench.next(), Some(vec![1, 2]));
    bench.push(3);
    assert!(!bench.batcher.take_recall() && !bench.batcher.is_outdated(1));
    bench.push_priority(4, 1);
    assert!(bench.batcher.take_recall() && bench.batcher.is_outdated(1));
    assert!(!bench.batcher.take_recall(), "once");
    assert_eq!(bench.batcher.put_back(1, bench.now), [1, 2]);
    assert_eq!(bench.next(), Some(vec![4, 1]));
    assert!(bench.batcher.remove(1) && bench.batcher.take_recall());
    assert!(bench.batcher.is_outdated(4));
    assert_eq!(bench.batcher.put_back(4, bench.now), [4]);
    assert_eq!(bench.next(), Some(vec![4, 2]));
    bench.batcher.finished(0, bench.now);
    bench.batcher.began(4, bench.now);
    assert!(!bench.batcher.remove(2), "it runs");
    assert!(!bench.batcher.take_recall() && !bench.batcher.is_outdated(4));
}

#[test]
fn batches_are_not_formed_ahead_again_and_again() {
    let mut bench = elsewhere(1);
    bench.push(1);
    let tries = (0..10).take_while(|_| {
        let formed = bench.next();
        bench.batcher.put_back(1, bench.now);
        formed.is_some()
    });
    assert_eq!(tries.count(), 4);
    bench.batcher.finished(0, bench.now);
    assert_eq!(bench.next(), Some(vec![1]));
}

#[test]
fn the_time_of_a_batch_begins_in_its_process() {
    let mut bench = Bench::new(BatchLimits { ahead_max: 1, ..rules(1) });
    for call in 0..8 {
        bench.push(call);
        assert_eq!(bench.next(), Some(vec![call]));
        bench.pass(10 * MILLI);
        bench.batcher.began(call, bench.now);
        bench.pass(MILLI);
        bench.batcher.finished(call, bench.now);
    }
    let waiting = Waiting { deadline: Some(bench.now + 2 * MILLI), ..bench.waiting(8) };
    bench.batcher.push(waiting).unwrap();
    assert!(bench.batcher.take_unmeetable(bench.now).unwrap().0.is_empty(), "it takes 1 ms");
    // A batch ahead begins after the one that runs.
    assert_eq!(bench.next(), Some(vec![8]));
    bench.batcher.began(8, bench.now);
    let late = Waiting { deadline: Some(bench.now + MILLI * 3 / 2), ..bench.waiting(9) };
    bench.batcher.push(late).unwrap();
    assert_eq!(bench.batcher.take_unmeetable(bench.now).unwrap().0, [9]);
}

#[test]
fn calls_of_a_batch_ahead_are_waiting_ones() {
    let limits = BatchLimits { ahead_max: 1, waiting_max: Some(2), ..rules(1) };
    let mut bench = Bench::new(limits);
    for call in 0..2 {
        bench.push(call);
        assert_eq!(bench.next(), Some(vec![call]));
    }
    bench.push(2);
    assert!(bench.batcher.check_full().is_err(), "one ahead, and one in the queue");
    assert!(bench.batcher.remove(1) && bench.batcher.check_full().is_ok());
}
