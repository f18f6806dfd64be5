//! Watched descriptors, wakers and deadlines.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use ucall_engine::{Completion, Engine, Readiness};

use crate::lab::Lab;

const READABLE: Readiness = Readiness { readable: true, writable: false };
const WRITABLE: Readiness = Readiness { readable: false, writable: true };

pub fn reports_a_pipe_once_for_each_arming(lab: &mut Lab<impl Engine>) {
    let (mut output, mut input) = std::io::pipe().unwrap();
    let watch = lab.engine.watch(output.as_fd(), READABLE).unwrap();
    lab.settle();
    assert!(lab.ready.is_empty());
    input.write_all(b"a").unwrap();
    assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, READABLE));
    // Not armed: more bytes are no news.
    input.write_all(b"b").unwrap();
    lab.settle();
    assert!(lab.ready.is_empty());
    // Armed: what is still there is.
    lab.engine.rewatch(watch, READABLE).unwrap();
    assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, READABLE));
    assert_eq!(output.read(&mut [0; 8]).unwrap(), 2);
    lab.engine.rewatch(watch, READABLE).unwrap();
    lab.engine.rewatch(watch, READABLE).unwrap();
    lab.settle();
    assert!(lab.ready.is_empty());
    drop(input);
    assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, READABLE));
    lab.settle();
    assert!(lab.ready.is_empty());
}

pub fn reports_what_is_there_already(lab: &mut Lab<impl Engine>) {
    let (output, mut input) = std::io::pipe().unwrap();
    input.write_all(b"a").unwrap();
    let watch = lab.engine.watch(output.as_fd(), READABLE).unwrap();
    assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, READABLE));
}

pub fn watches_for_writing(lab: &mut Lab<impl Engine>) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let watch = lab.engine.watch(ours.as_fd(), READABLE).unwrap();
    lab.settle();
    // A change of mind while armed.
    lab.engine.rewatch(watch, WRITABLE).unwrap();
    assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, WRITABLE));
    lab.engine.rewatch(watch, READABLE).unwrap();
    lab.settle();
    assert!(lab.ready.is_empty());
    (&theirs).write_all(b"a").unwrap();
    assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, READABLE));
    lab.engine.rewatch(watch, Readiness { readable: true, writable: true }).unwrap();
    assert!(lab.until(|lab| lab.ready.pop()).1.writable);
}

/// This is how asyncio's own descriptors are waited for: all at once, behind one.
pub fn watches_an_epoll_descriptor(lab: &mut Lab<impl Engine>) {
    let (mut output, mut input) = std::io::pipe().unwrap();
    let mut inner = mio::Poll::new().unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&output);
    let mut source = mio::unix::SourceFd(&descriptor);
    inner.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE).unwrap();
    // SAFETY: `inner` outlives the borrow.
    let borrowed =
        unsafe { std::os::fd::BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&inner)) };
    let watch = lab.engine.watch(borrowed, READABLE).unwrap();
    for _ in 0..50 {
        input.write_all(b"a").unwrap();
        assert_eq!(lab.until(|lab| lab.ready.pop()), (watch, READABLE));
        let mut events = mio::Events::with_capacity(1);
        inner.poll(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(output.read(&mut [0; 8]).unwrap(), 1);
        lab.engine.rewatch(watch, READABLE).unwrap();
    }
    lab.settle();
    assert!(lab.ready.is_empty());
    lab.engine.close(watch);
}

pub fn forgets_a_closed_watch(lab: &mut Lab<impl Engine>) {
    let (output, mut input) = std::io::pipe().unwrap();
    let watch = lab.engine.watch(output.as_fd(), READABLE).unwrap();
    input.write_all(b"a").unwrap();
    lab.engine.close(watch);
    lab.engine.rewatch(watch, READABLE).unwrap();
    lab.settle();
    assert!(lab.ready.is_empty());
    let again = lab.engine.watch(output.as_fd(), READABLE).unwrap();
    assert_ne!(again, watch);
    assert_eq!(lab.until(|lab| lab.ready.pop()), (again, READABLE));
}

pub fn wakes_from_another_thread(lab: &mut Lab<impl Engine>) {
    let waker = lab.engine.waker();
    let (done, rounds) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        for _ in 0..2000 {
            waker.wake().unwrap();
            // One wake, one report: the next only after the engine has told of this one.
            rounds.recv_timeout(crate::lab::PATIENCE).unwrap();
        }
        for _ in 0..1000 {
            waker.wake().unwrap();
        }
    });
    for round in 1..=2000 {
        lab.until(|lab| (lab.woken >= round).then_some(()));
        assert_eq!(lab.woken, round);
        done.send(()).unwrap();
    }
    thread.join().unwrap();
    lab.until(|lab| (lab.woken > 2000).then_some(()));
    lab.settle();
    assert!(lab.woken <= 3000);
}

pub fn wakers_outlive_the_engine(lab: &mut Lab<impl Engine>) {
    let waker = lab.engine.waker();
    lab.engine = (lab.make)();
    waker.clone().wake().unwrap_or(());
    lab.settle();
    assert_eq!(lab.woken, 0);
}

pub fn returns_at_the_deadline(lab: &mut Lab<impl Engine>) {
    let mut completions = Vec::new();
    for millis in [1, 30, 100, 60, 1] {
        let deadline = Instant::now() + Duration::from_millis(millis);
        lab.engine.wait(Some(deadline), &mut completions).unwrap();
        assert!(completions.is_empty());
        assert!(Instant::now() >= deadline, "too early");
    }
}

pub fn a_far_deadline_delays_no_nearer_one(lab: &mut Lab<impl Engine>) {
    let far = Instant::now() + 10 * crate::lab::PATIENCE;
    let waker = lab.engine.waker();
    for millis in [60, 1, 100] {
        waker.wake().unwrap();
        let mut completions = Vec::new();
        while completions.is_empty() {
            lab.engine.wait(Some(far), &mut completions).unwrap();
        }
        let near = Instant::now() + Duration::from_millis(millis);
        completions.clear();
        lab.engine.wait(Some(near), &mut completions).unwrap();
        assert!(completions.is_empty());
        assert!(Instant::now() >= near, "too early");
        assert!(Instant::now() < far, "too late");
    }
}

pub fn only_looks_when_the_deadline_has_passed(lab: &mut Lab<impl Engine>) {
    let (mut peer, _) = lab.connection();
    let mut completions = Vec::new();
    let passed = Instant::now();
    lab.engine.wait(Some(passed), &mut completions).unwrap();
    assert!(completions.is_empty());
    crate::lab::write(&mut peer, b"hello");
    // It looks properly: what has come is found without ever waiting.
    let started = Instant::now();
    while completions.is_empty() {
        lab.engine.wait(Some(passed), &mut completions).unwrap();
        assert!(started.elapsed() < crate::lab::PATIENCE);
    }
    assert!(matches!(completions[0], Completion::Received(_)));
}
