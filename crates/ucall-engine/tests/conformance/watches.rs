//! Watched descriptors, wakers and deadlines.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use ucall_engine::{Completion, Engine, Readiness};

use crate::harness::Harness;

const READABLE: Readiness = Readiness { readable: true, writable: false };
const WRITABLE: Readiness = Readiness { readable: false, writable: true };

pub fn reports_a_pipe_once_for_each_arming(harness: &mut Harness<impl Engine>) {
    let (mut output, mut input) = std::io::pipe().unwrap();
    let watch = harness.engine.watch(output.as_fd(), READABLE).unwrap();
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
    input.write_all(b"a").unwrap();
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, READABLE));
    // Not armed: more bytes are no news.
    input.write_all(b"b").unwrap();
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
    // Armed again: existing readiness is reported.
    harness.engine.rewatch(watch, READABLE).unwrap();
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, READABLE));
    assert_eq!(output.read(&mut [0; 8]).unwrap(), 2);
    harness.engine.rewatch(watch, READABLE).unwrap();
    harness.engine.rewatch(watch, READABLE).unwrap();
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
    drop(input);
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, READABLE));
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
}

pub fn reports_existing_readiness(harness: &mut Harness<impl Engine>) {
    let (output, mut input) = std::io::pipe().unwrap();
    input.write_all(b"a").unwrap();
    let watch = harness.engine.watch(output.as_fd(), READABLE).unwrap();
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, READABLE));
}

pub fn watches_for_writing(harness: &mut Harness<impl Engine>) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let watch = harness.engine.watch(ours.as_fd(), READABLE).unwrap();
    harness.turn_until_quiet();
    // A change of mind while armed.
    harness.engine.rewatch(watch, WRITABLE).unwrap();
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, WRITABLE));
    harness.engine.rewatch(watch, READABLE).unwrap();
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
    (&theirs).write_all(b"a").unwrap();
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, READABLE));
    harness.engine.rewatch(watch, Readiness { readable: true, writable: true }).unwrap();
    assert!(harness.turn_until(|harness| harness.ready.pop()).1.writable);
}

/// asyncio's own descriptors are watched like this, through the one descriptor of a selector.
pub fn watches_an_epoll_descriptor(harness: &mut Harness<impl Engine>) {
    let (mut output, mut input) = std::io::pipe().unwrap();
    let mut inner = mio::Poll::new().unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&output);
    let mut source = mio::unix::SourceFd(&descriptor);
    inner.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE).unwrap();
    // SAFETY: `inner` outlives the borrow.
    let borrowed =
        unsafe { std::os::fd::BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&inner)) };
    let watch = harness.engine.watch(borrowed, READABLE).unwrap();
    for _ in 0..50 {
        input.write_all(b"a").unwrap();
        assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (watch, READABLE));
        let mut events = mio::Events::with_capacity(1);
        inner.poll(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(output.read(&mut [0; 8]).unwrap(), 1);
        harness.engine.rewatch(watch, READABLE).unwrap();
    }
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
    harness.engine.close(watch);
}

pub fn forgets_a_closed_watch(harness: &mut Harness<impl Engine>) {
    let (output, mut input) = std::io::pipe().unwrap();
    let watch = harness.engine.watch(output.as_fd(), READABLE).unwrap();
    input.write_all(b"a").unwrap();
    harness.engine.close(watch);
    harness.engine.rewatch(watch, READABLE).unwrap();
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
    let again = harness.engine.watch(output.as_fd(), READABLE).unwrap();
    assert_ne!(again, watch);
    assert_eq!(harness.turn_until(|harness| harness.ready.pop()), (again, READABLE));
}

pub fn wakes_from_another_thread(harness: &mut Harness<impl Engine>) {
    let waker = harness.engine.waker();
    let (done, rounds) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        for _ in 0..2000 {
            waker.wake().unwrap();
            // Each wake is reported once: the next one only after the engine has reported this one.
            rounds.recv_timeout(crate::harness::TEST_TIMEOUT).unwrap();
        }
        for _ in 0..1000 {
            waker.wake().unwrap();
        }
    });
    for round in 1..=2000 {
        harness.turn_until(|harness| (harness.woken >= round).then_some(()));
        assert_eq!(harness.woken, round);
        done.send(()).unwrap();
    }
    thread.join().unwrap();
    harness.turn_until(|harness| (harness.woken > 2000).then_some(()));
    harness.turn_until_quiet();
    assert!(harness.woken <= 3000);
}

pub fn wakers_outlive_the_engine(harness: &mut Harness<impl Engine>) {
    let waker = harness.engine.waker();
    harness.engine = (harness.make)();
    waker.clone().wake().unwrap_or(());
    harness.turn_until_quiet();
    assert_eq!(harness.woken, 0);
}

pub fn returns_at_the_deadline(harness: &mut Harness<impl Engine>) {
    let (clock, mut completions) = (harness.engine.clock(), Vec::new());
    for millis in [1, 30, 100, 60, 1] {
        let deadline = clock.now() + Duration::from_millis(millis);
        harness.engine.wait(Some(deadline), &mut completions).unwrap();
        assert!(completions.is_empty());
        assert!(clock.now() >= deadline, "too early");
    }
}

pub fn a_far_deadline_delays_no_nearer_one(harness: &mut Harness<impl Engine>) {
    let clock = harness.engine.clock();
    let far = clock.now() + 10 * crate::harness::TEST_TIMEOUT;
    let waker = harness.engine.waker();
    for millis in [60, 1, 100] {
        waker.wake().unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            harness.engine.wait(Some(far), &mut completions).unwrap();
        }
        let near = clock.now() + Duration::from_millis(millis);
        completions.clear();
        harness.engine.wait(Some(near), &mut completions).unwrap();
        assert!(completions.is_empty());
        assert!(clock.now() >= near, "too early");
        assert!(clock.now() < far, "too late");
    }
}

pub fn polls_once_when_the_deadline_has_passed(harness: &mut Harness<impl Engine>) {
    let (mut peer, _) = harness.connection();
    let mut completions = Vec::new();
    let passed = harness.engine.clock().now();
    harness.engine.wait(Some(passed), &mut completions).unwrap();
    assert!(completions.is_empty());
    crate::harness::write(&mut peer, b"hello");
    // A poll reports every arrival without waiting.
    let started = Instant::now();
    while completions.is_empty() {
        harness.engine.wait(Some(passed), &mut completions).unwrap();
        assert!(started.elapsed() < crate::harness::TEST_TIMEOUT);
    }
    assert!(matches!(completions[0], Completion::Received(_)));
}
