//! How connections end, by the clock and by themselves.

use std::time::Duration;

use ucall_proto::{EvictionClass, Limits, NextAction};

use crate::harness::{Driver, later, post, sum};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_idle_connection_is_closed_and_a_used_one_is_not() {
    let mut driver = Driver::new();
    for id in 1..4 {
        driver.advance_time(74 * SECOND);
        driver.receive(post(&sum(id)).as_bytes());
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        assert_eq!(driver.connection.evictable_since(), Some((EvictionClass::Idle, driver.now)));
    }
    driver.advance_time(75 * SECOND);
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_head_times_out_after_ten_seconds_however_it_is_split() {
    let mut driver = Driver::new();
    for byte in post(&sum(1)).as_bytes().chunks(1).take(10) {
        driver.receive(byte);
        driver.advance_time(SECOND);
    }
    let sent = driver.sent();
    assert!(sent.starts_with("HTTP/1.1 408 "), "{sent}");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    driver.advance_time(SECOND);
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_body_times_out_when_stalled_or_below_the_minimum_rate() {
    let head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n";
    let mut driver = Driver::new();
    driver.receive(head);
    driver.advance_time(29 * SECOND);
    driver.receive(b"x");
    driver.advance_time(4 * SECOND);
    assert_eq!(driver.sent(), "");
    driver.advance_time(SECOND);
    assert!(driver.sent().starts_with("HTTP/1.1 408 "));
    let mut driver = Driver::new();
    driver.receive(head);
    driver.advance_time(30 * SECOND);
    assert!(driver.sent().starts_with("HTTP/1.1 408 "));
}

#[test]
fn each_pipelined_request_has_its_own_timeout() {
    let options = "OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        sum(1).len(),
        sum(1)
    );
    let in_body = |request: &str| request.len() - 20;
    for (request, cut) in [
        (post(&sum(1)), 10),
        (post(&sum(1)), in_body(&post(&sum(1)))),
        (options, 10),
        (chunked.clone(), in_body(&chunked)),
        (sum(1), 10),
    ] {
        let mut driver = Driver::new();
        let (front, back) = request.split_at(cut);
        driver.receive(front.as_bytes());
        for _ in 0..100 {
            driver.advance_time(5 * SECOND);
            driver.receive(format!("{back}{front}").as_bytes());
            assert!(!driver.sent().contains("Timeout"), "{request}");
            assert_eq!(driver.connection.next_action(), NextAction::Receive, "{request}");
        }
    }
}

#[test]
fn a_chunked_body_is_timed_by_its_received_bytes() {
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (start, piece) in [("{\"a\":\"", "x"), (head, "1\r\nx\r\n")] {
        let mut driver = Driver::new();
        driver.receive(start.as_bytes());
        for _ in 0..29 {
            driver.advance_time(SECOND);
            driver.receive(piece.as_bytes());
        }
        assert_eq!(
            (driver.sent(), driver.connection.next_action()),
            (String::new(), NextAction::Receive)
        );
        driver.advance_time(SECOND);
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput, "{start}");
    }
    // A body at the required rate may take any time.
    let mut driver = Driver::new();
    driver.receive(b"{\"a\":\"");
    for _ in 0..300 {
        driver.receive(&[b'x'; 1024]);
        driver.advance_time(SECOND);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
}

#[test]
fn a_request_after_a_deferred_one_counts_once() {
    let mut driver = Driver::new();
    driver.limits.exchanges_max = Some(3);
    driver.receive([post(&later(1)), post(&sum(2))].concat().as_bytes());
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert!(!driver.sent().contains("close"));
    driver.receive(post(&sum(3)).as_bytes());
    assert!(driver.sent().contains("Connection: close"));
}

#[test]
fn a_stalled_raw_document_gets_an_error_and_is_closed() {
    let mut driver = Driver::new();
    driver.receive(b"{\"jsonrpc\"");
    driver.advance_time(30 * SECOND);
    assert!(driver.sent().contains("within 30 s"));
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn no_deadline_applies_while_a_call_runs() {
    let mut driver = Driver::new();
    driver.receive(post(&later(1)).as_bytes());
    assert_eq!(driver.connection.deadline(&driver.limits), None);
    assert_eq!(driver.connection.evictable_since(), None);
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert_eq!(driver.connection.deadline(&driver.limits), Some(driver.now + 75 * SECOND));
}

#[test]
fn input_after_the_last_request_is_discarded_up_to_a_limit() {
    let mut driver = Driver::new();
    driver.receive(b"garbage\n");
    assert!(driver.sent().starts_with("HTTP/1.1 400 "));
    for _ in 0..4 {
        driver.receive(&[b'x'; 64 << 10]);
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
    driver.receive(b"x");
    assert_eq!(
        (driver.sent(), driver.connection.next_action()),
        (String::new(), NextAction::Close)
    );
}

#[test]
fn the_discard_limit_is_configurable() {
    let mut limits = Limits::default();
    (limits.discarded_bytes_max, limits.discard_timeout) = (10, 3 * SECOND);
    let mut driver = Driver::with_limits(limits);
    driver.receive(b"garbage\n");
    driver.receive(&[b'x'; 10]);
    driver.advance_time(2 * SECOND);
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    driver.receive(b"x");
    assert_eq!(driver.connection.next_action(), NextAction::Close);
    let mut limits = Limits::default();
    limits.discard_timeout = 3 * SECOND;
    let mut driver = Driver::with_limits(limits);
    driver.receive(b"garbage\n");
    driver.advance_time(3 * SECOND);
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_peer_that_half_closes_first_is_closed_at_once() {
    let mut driver = Driver::new();
    driver.receive(post(&sum(1)).as_bytes());
    driver.handle_eof();
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_connection_closes_after_its_last_exchange() {
    for (request, is_http) in [(post(&sum(1)), true), (sum(1), false)] {
        let mut driver = Driver::new();
        driver.limits.exchanges_max = Some(3);
        driver.receive(request.repeat(2).as_bytes());
        assert!(!driver.sent().contains("Connection: close"));
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        driver.receive(request.repeat(2).as_bytes());
        let sent = driver.sent();
        assert_eq!(sent.matches("result").count(), 1, "one more, and no other");
        assert_eq!(sent.contains("Connection: close"), is_http);
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
}

#[test]
fn a_connection_closes_past_its_lifetime_and_an_idle_one_at_it() {
    for (request, is_http) in [(post(&sum(1)), true), (sum(1), false)] {
        let mut driver = Driver::new();
        driver.limits.lifetime = Some(20 * SECOND);
        driver.receive(request.as_bytes());
        driver.now += 20 * SECOND;
        driver.receive(request.as_bytes());
        assert_eq!(driver.sent().contains("Connection: close"), is_http);
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
        let mut driver = Driver::new();
        driver.limits.lifetime = Some(20 * SECOND);
        driver.receive(request.as_bytes());
        driver.advance_time(19 * SECOND);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        driver.advance_time(SECOND);
        assert_eq!(driver.connection.next_action(), NextAction::Close);
    }
}
