//! WebSockets of applications.

use std::time::Duration;

use ucall_proto::http1::{Head, Methods};
use ucall_proto::websocket::MessageKind;
use ucall_proto::{Call, CallNumber, CallOutcome, Limits, NextAction, Reply, Service};

use crate::harness::Driver;
use crate::websocket::{CLOSE, PING, frame, frames, message, upgrade};

const PONG: u8 = 0x8A;
/// A little more than the time between two Pings.
const INTERVAL: Duration = Duration::from_secs(21);

/// An application that takes messages while it has room.
#[derive(Default)]
struct Room {
    number: Option<CallNumber>,
    room: usize,
    taken: Vec<String>,
    end: Option<(u16, String)>,
}

impl Service for Room {
    fn call(&mut self, _: &Call<'_>, _: &mut Reply<'_>) -> CallOutcome {
        panic!("there are no calls")
    }

    fn route_methods(&self, _: &[u8]) -> Methods {
        Methods::named("GET").unwrap()
    }

    fn is_mounted(&self, _: &Head<'_>) -> bool {
        true
    }

    fn respond_streamed(&mut self, call: &Call<'_>, _: &mut Reply<'_>) -> CallOutcome {
        self.number = Some(call.number);
        CallOutcome::Stream
    }

    fn takes_body(&mut self, _: CallNumber) -> bool {
        self.room > 0
    }

    fn take_message(&mut self, _: CallNumber, _: MessageKind, payload: &[u8]) {
        self.room = self.room.saturating_sub(1);
        self.taken.push(String::from_utf8(payload[..1].to_vec()).unwrap());
    }

    fn end_messages(&mut self, _: CallNumber, code: u16, reason: &str) {
        self.end.get_or_insert((code, reason.to_owned()));
    }
}

/// An open WebSocket, whose application has room for so many messages.
fn socket(room: usize, limits: Limits) -> Driver<Room> {
    let mut driver = Driver::serving(Room { room, ..Room::default() }, limits);
    driver.receive(upgrade("").replace("/ws", "/room").as_bytes());
    let number = driver.service.number.unwrap();
    assert!(driver.item(number, "HTTP/1.1 101 \r\n\r\n"));
    assert!(driver.sent().starts_with("HTTP/1.1 101 "));
    driver
}

fn sent(driver: &mut Driver<Room>) -> Vec<(u8, String)> {
    frames(&driver.sent_bytes())
}

/// The application has room again.
fn make_room(driver: &mut Driver<Room>, room: usize) {
    driver.service.room = room;
    driver.resume();
}

#[test]
fn a_ping_gets_through_messages_that_wait() {
    for is_cut in [false, true] {
        let mut driver = socket(1, Limits::default());
        let input =
            [message("a"), message("b"), frame(PING, "p"), message("c"), frame(PING, "q")].concat();
        let pieces = input.chunks(if is_cut { 1 } else { input.len() });
        pieces.for_each(|piece| driver.receive(piece));
        assert_eq!(sent(&mut driver), [(PONG, "p".into()), (PONG, "q".into())]);
        assert_eq!(driver.service.taken, ["a"]);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        make_room(&mut driver, 5);
        assert_eq!(driver.service.taken, ["a", "b", "c"]);
        assert!(sent(&mut driver).is_empty() && driver.service.end.is_none());
        driver.receive(&message("d"));
        assert_eq!(driver.service.taken, ["a", "b", "c", "d"]);
    }
}

#[test]
fn a_ping_gets_through_the_fragments_of_a_message() {
    let mut driver = socket(0, Limits::default());
    driver.receive(&[frame(0x01, "a"), frame(PING, "p"), frame(0x80, "b")].concat());
    assert_eq!(sent(&mut driver), [(PONG, "p".into())]);
    make_room(&mut driver, 1);
    assert_eq!(driver.service.taken, ["a"]);
}

#[test]
fn what_precedes_a_close_frame_is_passed_on_without_room() {
    let close = frame(CLOSE, [&1000_u16.to_be_bytes()[..], b"bye"].concat());
    let mut driver = socket(0, Limits::default());
    driver.receive(&[message("a"), frame(PING, "p"), message("b")].concat());
    assert!(driver.service.taken.is_empty());
    driver.receive(&[message("c"), close, message("d")].concat());
    assert_eq!(driver.service.taken, ["a", "b", "c"]);
    assert_eq!(driver.service.end, Some((1000, "bye".into())));
    assert_eq!(sent(&mut driver), [(PONG, "p".into()), (CLOSE, "1000 ".into())]);
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn what_precedes_the_end_of_the_stream_is_passed_on_without_room() {
    let mut driver = socket(0, Limits::default());
    driver.receive(&[message("a"), message("b"), frame(0x01, "part")].concat());
    driver.handle_eof();
    assert_eq!(driver.service.taken, ["a", "b"]);
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_silent_client_is_pinged_while_messages_wait() {
    let mut driver = socket(0, Limits::default());
    driver.receive(&message("a"));
    for _ in 0..5 {
        driver.advance_time(INTERVAL);
        assert_eq!(sent(&mut driver), [(PING, String::new())]);
        driver.resume();
        driver.receive(&frame(PONG, ""));
    }
    take_two_pings(&mut driver);
    driver.advance_time(INTERVAL);
    driver.advance_time(Duration::from_secs(2));
    let [(CLOSE, reason)] = &sent(&mut driver)[..] else { panic!("expected a Close frame") };
    assert!(reason.starts_with("1008 ") && reason.contains("max_unanswered_pings"), "{reason}");
    assert_eq!(driver.service.end.as_ref().unwrap().0, 1008);
}

fn take_two_pings(driver: &mut Driver<Room>) {
    for _ in 0..2 {
        driver.advance_time(INTERVAL);
        assert_eq!(sent(driver), [(PING, String::new())]);
        driver.resume();
    }
}

#[test]
fn an_application_that_takes_nothing_of_much_that_waits_ends() {
    let mut driver = socket(1, Limits::default());
    driver.receive(&message("a"));
    driver.receive(&message("b".repeat(40_000)).repeat(2));
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    for _ in 0..2 {
        driver.advance_time(INTERVAL);
        assert_eq!(sent(&mut driver), [(PING, String::new())]);
    }
    // It is alive if it takes one.
    make_room(&mut driver, 1);
    driver.receive(&message("b".repeat(40_000)));
    take_two_pings(&mut driver);
    driver.advance_time(INTERVAL);
    driver.advance_time(Duration::from_secs(2));
    let reason = "the application receives no messages";
    assert_eq!(sent(&mut driver), [(CLOSE, format!("1013 {reason}"))]);
    assert_eq!(driver.service.end, Some((1013, reason.into())));
}

#[test]
fn the_lifetime_ends_a_connection_whose_messages_wait() {
    let mut limits = Limits::default();
    limits.lifetime = Some(Duration::from_secs(50));
    for waiting in [1, 80_000] {
        let mut driver = socket(0, limits.clone());
        driver.receive(&message("a".repeat(waiting)));
        driver.receive(&message("a"));
        driver.advance_time(Duration::from_secs(30));
        driver.receive(&frame(PONG, ""));
        sent(&mut driver);
        driver.advance_time(Duration::from_secs(21));
        let [(CLOSE, reason)] = &sent(&mut driver)[..] else { panic!("expected a Close frame") };
        assert!(reason.starts_with("1001 "), "{reason}");
    }
}
