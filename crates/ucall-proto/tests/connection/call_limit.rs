//! The limit on the calls of one connection, and what gets through while requests wait.

use ucall_proto::{Limits, NextAction};

use crate::harness::{Driver, later, sum, sum_reply};
use crate::items::{cancel, cancelled, reply, stream};
use crate::websocket::{CLOSE, PING, frame, frames, message};

fn limits(calls: usize) -> Limits {
    let mut limits = Limits::default();
    limits.connection_calls_max = calls;
    limits
}

fn begun(driver: &Driver) -> usize {
    driver.service.deferred.len()
}

#[test]
fn streams_and_calls_of_batches_count() {
    let mut driver = Driver::with_limits(limits(4));
    driver.receive((stream(1, "1") + &format!("[{},{}]", later(2), later(3))).as_bytes());
    driver.receive(later(4).as_bytes());
    driver.receive((later(5) + &sum(6)).as_bytes());
    assert_eq!((begun(&driver), driver.sent().as_str()), (4, ""), "the fifth call waits");
    let second = driver.service.deferred[1];
    driver.complete(second, Ok(b"2"));
    assert_eq!(begun(&driver), 5, "it begins when any of them ends");
    assert_eq!(driver.sent(), "");
    driver.end_last("5");
    assert_eq!(driver.sent(), reply(5, "5") + "\n" + &sum_reply(6) + "\n");
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
}

#[test]
fn a_batch_begins_whole() {
    let mut driver = Driver::with_limits(limits(2));
    driver.receive((format!("[{},{},{}]", later(1), later(2), later(3)) + &later(4)).as_bytes());
    assert_eq!(begun(&driver), 3);
}

#[test]
fn a_request_to_cancel_gets_through_requests_that_wait() {
    let waiting = later(3) + " \n" + &sum(4) + &stream(5, "5");
    let input = waiting + &cancel("7") + &cancel("2");
    for piece in [1, 7, input.len()] {
        let mut driver = Driver::with_limits(limits(2));
        driver.receive((stream(1, "1") + &stream(2, "2")).as_bytes());
        input.as_bytes().chunks(piece).for_each(|bytes| driver.receive(bytes));
        // The call that was cancelled makes room for those that wait.
        assert_eq!((driver.sent(), begun(&driver)), (cancelled("2") + "\n", 3));
        driver.receive(cancel("1").as_bytes());
        let expected = cancelled("1") + "\n" + &sum_reply(4) + "\n";
        assert_eq!((driver.sent(), begun(&driver)), (expected, 4));
        assert_eq!(driver.service.cancelled.len(), 2);
    }
}

#[test]
fn the_same_over_websocket_with_control_frames() {
    let waiting = [message(later(3)), message(sum(4)), frame(PING, "p")].concat();
    let long = message(format!("{}{}", " ".repeat(70_000), sum(5)));
    let input = [waiting, message(cancel("2")), message(stream(6, "6")), long].concat();
    for piece in [1, 7, input.len()] {
        let mut driver = Driver::with_limits(limits(2)).upgraded();
        driver.receive(&[message(stream(1, "1")), message(stream(2, "2"))].concat());
        input.chunks(piece).for_each(|bytes| driver.receive(bytes));
        let texts: Vec<String> = frames(&driver.sent_bytes()).into_iter().map(|it| it.1).collect();
        assert_eq!(texts, ["p".to_owned(), cancelled("2")]);
        assert_eq!(begun(&driver), 3);
        assert_eq!(driver.connection.next_action(), NextAction::Pause, "more than 64 KiB wait");
        driver.end_last("3");
        let texts: Vec<String> = frames(&driver.sent_bytes()).into_iter().map(|it| it.1).collect();
        assert_eq!(texts, [reply(3, "3"), sum_reply(4)]);
    }
    let mut driver = Driver::with_limits(limits(1)).upgraded();
    driver.receive(&[message(stream(1, "1")), message(sum(2))].concat());
    driver.receive(&frame(CLOSE, 1000_u16.to_be_bytes()));
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn a_request_to_cancel_a_call_that_waits_stays_behind_it() {
    let mut driver = Driver::with_limits(limits(1));
    driver.receive((stream(1, "1") + &later(2) + &cancel("2") + &sum(3)).as_bytes());
    assert_eq!((driver.sent().as_str(), begun(&driver)), ("", 1));
    driver.receive(cancel("1").as_bytes());
    let expected = [cancelled("1"), cancelled("2"), sum_reply(3)].map(|line| line + "\n").concat();
    assert_eq!(driver.sent(), expected);
    assert_eq!(begun(&driver), 2);
}

#[test]
fn reading_pauses_past_64_kib_of_requests_that_wait() {
    let mut driver = Driver::with_limits(limits(1));
    driver.receive((stream(1, "1") + &later(2)).as_bytes());
    let spaces = " ".repeat(60_000);
    driver.receive(spaces.as_bytes());
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.receive(" ".repeat(6_000).as_bytes());
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    driver.end_last("1");
    assert_eq!((driver.sent(), begun(&driver)), (reply(1, "1") + "\n", 2));
    driver.end_last("2");
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
}

#[test]
fn what_is_no_json_is_refused_when_its_turn_comes() {
    let mut driver = Driver::with_limits(limits(1));
    driver.receive((later(1) + &sum(2) + "x" + &cancel("1")).as_bytes());
    assert_eq!(driver.sent(), "");
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    driver.end_last("1");
    let sent = driver.sent();
    assert!(sent.starts_with(&(reply(1, "1") + "\n" + &sum_reply(2) + "\n")), "{sent}");
    assert!(sent.contains("-32700"), "{sent}");
}

#[test]
fn a_search_ends_with_the_wait_of_its_connection() {
    let mut driver = Driver::with_limits(limits(1));
    let sums: String = (2..22).map(sum).collect();
    driver.receive((stream(1, "1") + &sums + "{").as_bytes());
    driver.end_last("1");
    let expected: String = (2..22).map(|id| sum_reply(id) + "\n").collect();
    assert_eq!(driver.sent(), reply(1, "1") + "\n" + &expected);
    // The document that begins with the brace, and two more.
    let rest = stream(22, "22") + &later(23) + &cancel("22");
    driver.receive(&rest.as_bytes()[1..]);
    assert_eq!((driver.sent(), begun(&driver)), (cancelled("22") + "\n", 3));
}
