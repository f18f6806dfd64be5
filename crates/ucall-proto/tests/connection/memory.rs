//! What all connections together may hold in memory.

use std::time::Duration;

use ucall_proto::{Limits, Wish};

use crate::harness::{Driver, later, post, sum, sum_reply};

const MAX: usize = 1 << 20;

fn small() -> Driver {
    let mut limits = Limits::default();
    limits.held_bytes_max = MAX;
    Driver::with_limits(limits)
}

/// A request over HTTP whose body takes so many bytes more than its call.
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
fn requests_that_come_whole_hold_nothing() {
    let mut driver = small();
    driver.hold_elsewhere(0, 2 * MAX);
    for _ in 0..3 {
        driver.receive(post(&sum(1)).as_bytes());
        assert!(is_answered(&mut driver));
        assert_eq!(driver.held_bytes(), 2 * MAX);
    }
}

#[test]
fn what_is_held_is_given_back_however_a_request_ends() {
    let large = padded(300_000);
    let chunk = " ".repeat(20_000);
    for begin in [&large[..1000], &sum(1)[..10], &chunked(&chunk), &large[..200_000]] {
        let mut driver = small();
        driver.receive(begin.as_bytes());
        assert!(driver.held_bytes() >= begin.len() / 2, "{begin:.40}");
        driver.pass(Duration::from_secs(4000));
        assert_eq!(driver.held_bytes(), 0, "{begin:.40}");

        let mut driver = small();
        driver.receive(begin.as_bytes());
        driver.end();
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
fn the_last_byte_that_is_allowed_is_and_newcomers_past_it_are_told_to_come_again() {
    let cut = |text: &str| text.as_bytes()[..text.len() - 5].to_vec();
    let begun = [cut(&padded(100)), cut(&sum(1)), cut(&chunked("   "))];
    for begin in &begun {
        let mut driver = small();
        driver.hold_elsewhere(0, MAX);
        driver.receive(begin);
        assert_eq!((driver.sent(), driver.connection.wish()).0, "");

        let mut driver = small();
        driver.hold_elsewhere(0, MAX + 1);
        driver.receive(begin);
        let reply = driver.sent();
        let told = match begin[0] {
            b'{' => reply.contains("-32003") && reply.contains("retry_after_ms"),
            _ => reply.contains(" 503 ") && reply.contains("Retry-After: 1\r\n"),
        };
        assert!(told, "{reply}");
        assert_eq!(driver.connection.wish(), Wish::Finish);
    }
}

#[test]
fn what_has_begun_waits_until_there_is_memory() {
    let request = chunked(&" ".repeat(100)) + "\r\n";
    let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", sum(1).len(), sum(1));
    let mut driver = small();
    driver.receive(request.as_bytes());
    assert_eq!(driver.connection.wish(), Wish::Receive);
    driver.hold_elsewhere(0, MAX);
    driver.receive(&rest.as_bytes()[..1]);
    assert_eq!(driver.connection.wish(), Wish::Pause);
    assert!(driver.connection.is_starved());
    driver.hold_elsewhere(MAX, 0);
    driver.proceed();
    assert_eq!(driver.connection.wish(), Wish::Receive);
    driver.receive(&rest.as_bytes()[1..]);
    assert!(is_answered(&mut driver));
}

#[test]
fn what_has_begun_behind_a_call_that_waits_waits_for_memory_too() {
    let bodies = [chunked(&" ".repeat(100)), padded(300_000)[..1000].to_owned()];
    for begun in [&bodies[0], &bodies[1], &sum(1)[..10]] {
        let is_raw = begun.starts_with('{');
        let first = if is_raw { later(1) } else { post(&later(1)) };
        let mut driver = small();
        driver.hold_elsewhere(0, MAX - 10_000);
        driver.receive((first + begun).as_bytes());
        assert!(!driver.connection.is_starved(), "{begun:.40}");
        driver.hold_elsewhere(MAX - 10_000, MAX);
        driver.receive(if begun.contains("chunked") { b"\r\n" } else { b" " });
        assert!(driver.connection.is_starved(), "{begun:.40}");
        assert_eq!(driver.connection.wish(), Wish::Pause, "{begun:.40}");
    }
}

#[test]
fn what_has_begun_behind_a_call_that_waits_has_no_more_time_than_others() {
    let refusals =
        [(padded(300_000), 30, " 408 "), (post(&sum(2)), 10, " 408 "), (sum(2), 30, "-32700")];
    for (request, seconds, refusal) in refusals {
        let len = if seconds == 10 { 20 } else { request.len().min(1000) - 10 };
        let first = if request.starts_with('{') { later(1) } else { post(&later(1)) };
        let mut driver = Driver::new();
        driver.receive((first + &request[..len]).as_bytes());
        driver.pass(Duration::from_secs(seconds - 1));
        assert_eq!(driver.sent(), "");
        assert_ne!(driver.connection.wish(), Wish::Finish);
        driver.pass(Duration::from_secs(1));
        assert!(driver.held_bytes() < 500);
        let exchange = driver.service.deferred[0];
        driver.complete(exchange, Ok(b"3"));
        let sent = driver.sent();
        assert!(sent.contains(refusal) && sent.contains("\"result\":3"), "{sent}");
        assert_eq!(driver.connection.wish(), Wish::Finish);
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn one_of_those_that_wait_may_come_whole_and_no_more() {
    let request = chunked(&" ".repeat(100)) + "\r\n";
    let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", sum(1).len(), sum(1));
    let mut driver = small();
    driver.receive(request.as_bytes());
    driver.hold_elsewhere(0, MAX);
    driver.receive(&rest.as_bytes()[..1]);
    assert!(driver.connection.is_starved());
    driver.connection.allow_over_budget();
    driver.proceed();
    assert_eq!(driver.connection.wish(), Wish::Receive);
    driver.receive(&rest.as_bytes()[1..20]);
    assert_eq!(driver.connection.wish(), Wish::Receive);
    driver.receive(&rest.as_bytes()[20..]);
    assert!(is_answered(&mut driver));
    assert!(!driver.connection.may_exceed_budget());
}

#[test]
fn what_waits_for_memory_has_no_more_time_than_others() {
    let mut driver = small();
    driver.receive(chunked(" ").as_bytes());
    driver.hold_elsewhere(0, 2 * MAX);
    driver.receive(b"\r\n");
    assert_eq!(driver.connection.wish(), Wish::Pause);
    driver.pass(Duration::from_secs(29));
    assert_eq!(driver.sent(), "");
    driver.pass(Duration::from_secs(1));
    assert!(driver.sent().contains(" 408 "));
    assert_eq!(driver.held_bytes(), 2 * MAX);
}

#[test]
fn progress_that_the_engine_tells_gives_a_large_body_more_time() {
    let mut driver = Driver::new();
    driver.receive(&padded(300_000).as_bytes()[..1000]);
    assert_eq!(driver.connection.wish(), Wish::Fill);
    let target = driver.target();
    for _ in 0..3 {
        driver.pass(Duration::from_secs(29));
        driver.note_progress();
    }
    assert_eq!(driver.sent(), "");
    driver.pass(Duration::from_secs(29));
    assert_eq!(driver.sent(), "");
    driver.pass(Duration::from_secs(1));
    assert!(driver.sent().contains(" 408 "));
    driver.receive_target(target.expect("a target for a large body"));
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_connection_that_closes_gives_back_what_it_held() {
    let mut driver = Driver::new();
    driver.receive(&post(&sum(1)).as_bytes()[..90]);
    assert!(driver.held_bytes() > 0);
    driver.release();
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_large_body_comes_in_one_go_where_one_of_its_size_was_before() {
    let mut driver = Driver::new();
    let request = padded(1_000_000);
    let targets = |driver: &mut Driver| {
        driver.receive(&request.as_bytes()[..70_000]);
        let (mut count, mut rest) = (0, &request.as_bytes()[70_000..]);
        while driver.connection.wish() == Wish::Fill {
            let mut target = driver.target().expect("a target for a large body");
            rest = &rest[target.write(rest)..];
            driver.receive_target(target);
            count += 1;
        }
        assert!(is_answered(driver));
        count
    };
    assert!(targets(&mut driver) > 2, "at first memory grows with what has come");
    assert_eq!(targets(&mut driver), 1);
    driver.receive(&padded(200_000).as_bytes()[..70_000]);
    assert!(driver.held_bytes() < 300_000, "a smaller body holds no more memory than it needs");
}
