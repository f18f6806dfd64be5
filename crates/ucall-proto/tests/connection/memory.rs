//! What all connections together may hold in memory.

use std::time::Duration;

use ucall_proto::{Limits, NextAction};

use crate::harness::{Driver, later, post, sum, sum_reply};

const MAX: usize = 1 << 20;

fn small() -> Driver {
    let mut limits = Limits::default();
    limits.held_bytes_max = MAX;
    Driver::with_limits(limits)
}

/// An HTTP request whose body has `padding` bytes before its call.
fn padded(padding: usize) -> String {
    post(&(" ".repeat(padding) + &sum(1)))
}

fn chunked(chunk: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{chunk}",
        chunk.len(),
    )
}

fn is_answered(driver: &mut Driver) -> bool {
    driver.sent().contains(&sum_reply(1))
}

#[test]
fn complete_requests_hold_no_memory() {
    let mut driver = small();
    driver.hold_in_others(0, 2 * MAX);
    for _ in 0..3 {
        driver.receive(post(&sum(1)).as_bytes());
        assert!(is_answered(&mut driver));
        assert_eq!(driver.held_bytes(), 2 * MAX);
    }
}

#[test]
fn held_bytes_are_released_however_a_request_ends() {
    let large = padded(300_000);
    let chunk = " ".repeat(20_000);
    for begin in [&large[..1000], &sum(1)[..10], &chunked(&chunk), &large[..200_000]] {
        let mut driver = small();
        driver.receive(begin.as_bytes());
        assert!(driver.held_bytes() >= begin.len() / 2, "{begin:.40}");
        driver.advance_time(Duration::from_secs(4000));
        assert_eq!(driver.held_bytes(), 0, "{begin:.40}");

        let mut driver = small();
        driver.receive(begin.as_bytes());
        driver.handle_eof();
        assert_eq!(driver.held_bytes(), 0, "{begin:.40}");
    }
    let mut driver = small();
    driver.receive(&large.as_bytes()[..1000]);
    driver.receive(&large.as_bytes()[1000..]);
    assert!(is_answered(&mut driver));
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn replies_that_wait_for_others_are_counted() {
    let mut driver = small();
    driver.receive((post(&later(1)) + &post(&later(2))).as_bytes());
    let [first, second] = driver.service.deferred[..] else { panic!("two are deferred") };
    let before = driver.held_bytes();
    driver.complete(second, Ok(&vec![b'1'; 10_000]));
    assert!((10_000..10_500).contains(&(driver.held_bytes() - before)));
    driver.complete(first, Ok(b"1"));
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn new_requests_are_served_at_the_memory_limit_and_told_to_retry_past_it() {
    let cut = |text: &str| text.as_bytes()[..text.len() - 5].to_vec();
    let begun = [cut(&padded(100)), cut(&sum(1)), cut(&chunked("   "))];
    for begin in &begun {
        let mut driver = small();
        driver.hold_in_others(0, MAX);
        driver.receive(begin);
        assert_eq!((driver.sent(), driver.connection.next_action()).0, "");

        let mut driver = small();
        driver.hold_in_others(0, MAX + 1);
        driver.receive(begin);
        let reply = driver.sent();
        let is_overloaded_reply = match begin[0] {
            b'{' => reply.contains("-32003") && reply.contains("retry_after_ms"),
            _ => reply.contains(" 503 ") && reply.contains("Retry-After: 1\r\n"),
        };
        assert!(is_overloaded_reply, "{reply}");
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
}

#[test]
fn a_partial_request_waits_for_memory() {
    let request = chunked(&" ".repeat(100)) + "\r\n";
    let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", sum(1).len(), sum(1));
    let mut driver = small();
    driver.receive(request.as_bytes());
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.hold_in_others(0, MAX);
    driver.receive(&rest.as_bytes()[..1]);
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    assert!(driver.connection.is_waiting_for_memory());
    driver.hold_in_others(MAX, 0);
    driver.resume();
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.receive(&rest.as_bytes()[1..]);
    assert!(is_answered(&mut driver));
}

#[test]
fn a_partial_request_after_a_deferred_call_waits_for_memory() {
    let bodies = [chunked(&" ".repeat(100)), padded(300_000)[..1000].to_owned()];
    for begun in [&bodies[0], &bodies[1], &sum(1)[..10]] {
        let is_raw = begun.starts_with('{');
        let first = if is_raw { later(1) } else { post(&later(1)) };
        let mut driver = small();
        driver.hold_in_others(0, MAX - 10_000);
        driver.receive((first + begun).as_bytes());
        assert!(!driver.connection.is_waiting_for_memory(), "{begun:.40}");
        driver.hold_in_others(MAX - 10_000, MAX);
        driver.receive(if begun.contains("chunked") { b"\r\n" } else { b" " });
        assert!(driver.connection.is_waiting_for_memory(), "{begun:.40}");
        assert_eq!(driver.connection.next_action(), NextAction::Pause, "{begun:.40}");
    }
}

#[test]
fn a_partial_request_after_a_deferred_call_keeps_its_timeout() {
    let refusals =
        [(padded(300_000), 30, " 408 "), (post(&sum(2)), 10, " 408 "), (sum(2), 30, "-32700")];
    for (request, seconds, refusal) in refusals {
        let len = if seconds == 10 { 20 } else { request.len().min(1000) - 10 };
        let first = if request.starts_with('{') { later(1) } else { post(&later(1)) };
        let mut driver = Driver::new();
        driver.receive((first + &request[..len]).as_bytes());
        driver.advance_time(Duration::from_secs(seconds - 1));
        assert_eq!(driver.sent(), "");
        assert_ne!(driver.connection.next_action(), NextAction::DiscardInput);
        driver.advance_time(Duration::from_secs(1));
        assert!(driver.held_bytes() < 500);
        let call = driver.service.deferred[0];
        driver.complete(call, Ok(b"3"));
        let sent = driver.sent();
        assert!(sent.contains(refusal) && sent.contains("\"result\":3"), "{sent}");
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn one_waiting_request_may_exceed_the_budget_until_it_is_complete() {
    let request = chunked(&" ".repeat(100)) + "\r\n";
    let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", sum(1).len(), sum(1));
    let mut driver = small();
    driver.receive(request.as_bytes());
    driver.hold_in_others(0, MAX);
    driver.receive(&rest.as_bytes()[..1]);
    assert!(driver.connection.is_waiting_for_memory());
    driver.connection.allow_over_budget();
    driver.resume();
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.receive(&rest.as_bytes()[1..20]);
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.receive(&rest.as_bytes()[20..]);
    assert!(is_answered(&mut driver));
    assert!(!driver.connection.may_exceed_budget());
}

#[test]
fn a_request_waiting_for_memory_keeps_its_timeout() {
    let mut driver = small();
    driver.receive(chunked(" ").as_bytes());
    driver.hold_in_others(0, 2 * MAX);
    driver.receive(b"\r\n");
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    driver.advance_time(Duration::from_secs(29));
    assert_eq!(driver.sent(), "");
    driver.advance_time(Duration::from_secs(1));
    assert!(driver.sent().contains(" 408 "));
    assert_eq!(driver.held_bytes(), 2 * MAX);
}

#[test]
fn progress_reported_by_the_engine_extends_the_timeout_of_a_large_body() {
    let mut driver = Driver::new();
    driver.receive(&padded(300_000).as_bytes()[..1000]);
    assert_eq!(driver.connection.next_action(), NextAction::Fill);
    let target = driver.poll_target();
    for _ in 0..3 {
        driver.advance_time(Duration::from_secs(29));
        driver.handle_progress();
    }
    assert_eq!(driver.sent(), "");
    driver.advance_time(Duration::from_secs(29));
    assert_eq!(driver.sent(), "");
    driver.advance_time(Duration::from_secs(1));
    assert!(driver.sent().contains(" 408 "));
    driver.return_target(target.expect("a target for a large body"));
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_closing_connection_releases_its_held_bytes() {
    let mut driver = Driver::new();
    driver.receive(&post(&sum(1)).as_bytes()[..90]);
    assert!(driver.held_bytes() > 0);
    driver.release();
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_large_body_reuses_the_memory_of_an_earlier_one() {
    let mut driver = Driver::new();
    let request = padded(1_000_000);
    let held_at_first = |driver: &mut Driver| {
        driver.receive(&request.as_bytes()[..70_000]);
        let (mut held, mut rest) = (0, &request.as_bytes()[70_000..]);
        while driver.connection.next_action() == NextAction::Fill {
            let mut target = driver.poll_target().expect("a target for a large body");
            held = if held == 0 { driver.held_bytes() } else { held };
            rest = &rest[target.write(rest)..];
            driver.return_target(target);
        }
        assert!(is_answered(driver));
        held
    };
    assert!(held_at_first(&mut driver) < 200_000, "at first memory grows with what has come");
    assert!(held_at_first(&mut driver) > 1_000_000);
    driver.receive(&padded(200_000).as_bytes()[..70_000]);
    assert!(driver.held_bytes() < 300_000, "a smaller body holds no more memory than it needs");
}
