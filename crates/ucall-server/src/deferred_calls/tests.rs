//! Unit tests of the registry.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ucall_proto::CallNumber;

use super::*;
use crate::mailbox::Mailbox;

type Calls = DeferredCalls<&'static str, u32>;

const SECOND: Duration = Duration::from_secs(1);

fn calls() -> Calls {
    DeferredCalls::new(10_000, "max_running_calls")
}

fn caller(index: u32, generation: u32) -> Option<CallId> {
    let connection = Id { index, generation };
    Some(CallId { connection, number: CallNumber { request: 7, item: 0 } })
}

fn insert(calls: &mut Calls, caller: Option<CallId>, call: &'static str) -> Token {
    calls.insert(caller, None, Instant::now(), call)
}

fn insert_due(calls: &mut Calls, at: Instant, call: &'static str) -> Token {
    let deadline = Deadline::after(SECOND, at - SECOND);
    calls.insert(caller(1, 1), deadline, Instant::now(), call)
}

#[test]
fn an_outcome_finishes_its_call_once() {
    let mut calls = calls();
    let token = insert(&mut calls, caller(1, 1), "a");
    calls.outcomes().push(token, 1);
    calls.outcomes().push(token, 2);
    assert!(calls.has_outcomes() && calls.contains(token));
    assert_eq!(calls.next_outcome(), Some((token, 1)));
    assert_eq!(calls.finish(token, Instant::now()), Some((caller(1, 1), "a")));
    assert_eq!(calls.next_outcome(), Some((token, 2)));
    assert_eq!((calls.finish(token, Instant::now()), calls.find(token)), (None, None));
    assert!(!calls.has_outcomes() && !calls.contains(token) && calls.count() == 0);
    assert!(calls.of_connection(Id { index: 1, generation: 1 }).is_empty());
}

#[test]
fn no_token_is_used_twice() {
    let mut calls = calls();
    let mut tokens = Vec::new();
    for _ in 0..100 {
        let token = insert(&mut calls, caller(1, 1), "a");
        assert!(!tokens.contains(&token));
        assert_eq!(calls.remove(token), Some("a"));
        tokens.push(token);
    }
    insert(&mut calls, caller(1, 1), "b");
    for token in tokens {
        assert!(calls.find(token).is_none() && calls.remove(token).is_none());
    }
    assert_eq!(calls.count(), 1);
}

#[test]
fn a_connection_has_the_calls_of_its_generation() {
    let mut calls = calls();
    let of_one: Vec<_> = ["a", "b", "c"].map(|call| insert(&mut calls, caller(1, 1), call)).into();
    let other = insert(&mut calls, caller(0, 1), "d");
    let successor = insert(&mut calls, caller(1, 2), "e");
    let notification = insert(&mut calls, None, "f");
    let tokens_of = |calls: &Calls, index, generation| {
        calls.of_connection(Id { index, generation }).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(tokens_of(&calls, 1, 1), of_one);
    calls.remove(of_one[1]);
    assert_eq!(tokens_of(&calls, 1, 1), [of_one[0], of_one[2]]);
    calls.remove(of_one[2]);
    calls.remove(of_one[0]);
    assert_eq!(tokens_of(&calls, 1, 1), []);
    assert_eq!(tokens_of(&calls, 1, 2), [successor]);
    assert_eq!(tokens_of(&calls, 0, 1), [other]);
    let all: HashSet<_> = calls.all().into_iter().map(|token| token.slot).collect();
    assert_eq!(all, [other, successor, notification].map(|token| token.slot).into());
}

#[test]
fn deadlines_expire_in_order_and_only_for_calls_that_wait() {
    let (mut calls, now) = (calls(), Instant::now());
    let late = insert_due(&mut calls, now + 3 * SECOND, "late");
    let ended = insert_due(&mut calls, now + SECOND, "ended");
    let early = insert_due(&mut calls, now + 2 * SECOND, "early");
    calls.remove(ended);
    assert_eq!(calls.pop_expired(now), None);
    assert_eq!(calls.pop_expired(now + SECOND), None);
    let expired = |calls: &mut Calls| calls.pop_expired(now + 3 * SECOND).map(|(token, _)| token);
    assert_eq!(calls.next_deadline(), Some(now + 2 * SECOND));
    assert_eq!([expired(&mut calls), expired(&mut calls)], [Some(early), Some(late)]);
    assert_eq!((expired(&mut calls), calls.next_deadline()), (None, None));
}

#[test]
fn an_outcome_that_was_enqueued_before_the_deadline_comes_second() {
    let mut calls = calls();
    let token = insert_due(&mut calls, Instant::now(), "a");
    let other = insert(&mut calls, caller(2, 1), "b");
    calls.outcomes().push(other, 1);
    calls.outcomes().push(token, 2);
    calls.push_front([(token, 3), (other, 4)].into_iter());
    assert!(calls.has_outcomes());
    let taken: Vec<_> = std::iter::from_fn(|| calls.next_outcome()).collect();
    assert_eq!(taken, [(token, 3), (other, 4), (other, 1), (token, 2)]);
}

#[test]
fn ended_calls_are_pruned_behind_one_that_runs() {
    let (mut calls, now) = (calls(), Instant::now());
    insert_due(&mut calls, now + SECOND, "runs");
    for _ in 0..10_000 {
        let token = insert_due(&mut calls, now + 60 * SECOND, "ends");
        calls.remove(token);
    }
    assert!(calls.deadlines.len() <= 128, "{}", calls.deadlines.len());
    assert_eq!(calls.next_deadline(), Some(now + SECOND));
    assert_eq!((calls.slots.len(), calls.count()), (2, 1));
}

#[test]
fn a_permit_counts_until_it_is_dropped_on_any_thread() {
    let mut calls = Calls::new(2, "max_deferred_calls");
    let permits = [calls.admit(None).unwrap(), calls.admit(None).unwrap()];
    let error = calls.admit(None).unwrap_err();
    let data = br#"{"retry_after_ms":1,"max_deferred_calls":2}"#;
    assert_eq!((error.code, error.data.as_deref()), (RpcError::OVERLOADED, Some(&data[..])));
    thread::spawn(|| drop(permits)).join().unwrap();
    assert_eq!(calls.limit().running(), 0);
    let now = Instant::now();
    let token = calls.insert(None, None, now, "long");
    calls.finish(token, now + 16 * SECOND);
    let _permits = [calls.admit(None).unwrap(), calls.admit(None).unwrap()];
    let data = calls.admit(None).unwrap_err().data.unwrap();
    assert!(data.starts_with(br#"{"retry_after_ms":1000"#), "{}", data.escape_ascii());
}

#[test]
fn the_last_eighth_of_the_limit_is_for_connections_with_few_calls() {
    let mut calls = Calls::new(800, "max_deferred_calls");
    let mut permits = HashMap::<u32, Vec<RunPermit>>::new();
    let mut take = |calls: &mut Calls, index: u32, wanted: usize| {
        let caller = Some(Id { index, generation: 1 });
        let admitted: Vec<_> = (0..wanted).map_while(|_| calls.admit(caller).ok()).collect();
        let count = admitted.len();
        permits.entry(index).or_default().extend(admitted);
        count
    };
    assert_eq!(take(&mut calls, 1, 800), 700, "seven eighths");
    // One that begins in the last eighth leaves eight times its own calls free.
    assert_eq!(take(&mut calls, 2, 800), 12);
    assert_eq!(take(&mut calls, 3, 800), 10);
    assert_eq!((take(&mut calls, 1, 1), take(&mut calls, 2, 1)), (0, 0));
    // Those without a call, and callers that share a connection, may have all.
    assert_eq!((4..1000).map(|index| take(&mut calls, index, 1)).sum::<usize>(), 78);
    assert_eq!((take(&mut calls, 1000, 1), calls.admit(None).is_ok()), (0, false));
    permits.remove(&1);
    assert_eq!(permits.values().map(Vec::len).sum::<usize>(), calls.limit().running());
}

#[test]
fn the_first_of_several_outcomes_wakes_the_worker() {
    let mut calls = calls();
    let woken = Arc::new(AtomicUsize::new(0));
    let counted = woken.clone();
    let mailbox = Mailbox::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    calls.outcomes().set_mailbox(mailbox.clone());
    let token = insert(&mut calls, caller(1, 1), "a");
    for round in 1..4 {
        assert!(mailbox.prepare_to_sleep());
        let senders: Vec<_> = (0..4)
            .map(|number| {
                let outcomes = calls.outcomes().clone();
                thread::spawn(move || outcomes.send_all(vec![(token, number), (token, number)]))
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(woken.load(Ordering::Relaxed), round);
        mailbox.take(&mut Vec::new());
        let taken = std::iter::from_fn(|| calls.next_outcome()).count();
        assert_eq!((taken, calls.has_outcomes()), (8, false));
    }
}

#[test]
fn an_outcome_from_the_worker_s_own_thread_does_not_wake_it() {
    let mut calls = calls();
    let mailbox = Mailbox::new(|| {});
    calls.outcomes().set_mailbox(mailbox.clone());
    let token = insert(&mut calls, caller(1, 1), "a");
    assert!(calls.outcomes().push(token, 1), "the queue was empty");
    assert!(!calls.outcomes().push(token, 2));
    calls.outcomes().send(token, 3);
    assert!(!mailbox.has_messages());
    assert_eq!(calls.next_outcome(), Some((token, 1)));
    assert!(calls.outcomes().push(token, 4), "it was taken");
}
