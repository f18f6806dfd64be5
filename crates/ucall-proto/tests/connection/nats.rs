//! Calls through a NATS broker.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ucall_proto::{Connection, Limits, NatsObserver, NatsOptions, NextAction, RpcError};

use crate::harness::Driver;

const METHODS: [&str; 6] = ["sum", "echo", "later", "large", "missing", "update"];
const SUM: usize = 1;
const ECHO: usize = 2;
const LATER: usize = 3;
const LARGE: usize = 4;
const MISSING: usize = 5;
const UPDATE: usize = 6;
const CANCEL: usize = 7;

/// The method and the code of the error of each call that has ended.
#[derive(Debug, Default)]
pub struct Ended(Mutex<Vec<(usize, Option<i64>)>>);

impl NatsObserver for Ended {
    fn call_ended(&self, method: usize, _: Instant, error: Option<&RpcError>) {
        self.0.lock().unwrap().push((method, error.map(|error| error.code)));
    }
}

impl Ended {
    fn take(&self) -> Vec<(usize, Option<i64>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn broker_with(limits: Limits) -> (Driver, Arc<Ended>) {
    let (mut driver, ended) = (Driver::with_limits(limits), Arc::new(Ended::default()));
    let options = NatsOptions {
        methods: METHODS.map(str::to_owned).to_vec(),
        payload_bytes_max: 200,
        calls_max: 2,
        calls_bytes_max: 2_000,
        observer: ended.clone(),
    };
    driver.connection = Connection::to_broker(driver.now, &driver.limits, options);
    (driver, ended)
}

fn broker() -> (Driver, Arc<Ended>) {
    broker_with(Limits::default())
}

fn message(subscription: usize, reply: &str, payload: &str) -> String {
    format!("MSG models.x {subscription} {reply} {}\r\n{payload}\r\n", payload.len())
}

fn with_headers(subscription: usize, reply: &str, headers: &str, payload: &str) -> String {
    let headers = format!("NATS/1.0\r\n{headers}\r\n");
    let (length, total) = (headers.len(), headers.len() + payload.len());
    format!("HMSG models.x {subscription} {reply} {length} {total}\r\n{headers}{payload}\r\n")
}

/// What the broker gets for `input`, proven to be the same however the input is cut.
fn answer(input: &str) -> String {
    let sent_for = |pieces: &[&[u8]]| {
        let (mut driver, _) = broker();
        pieces.iter().for_each(|piece| driver.receive(piece));
        driver.sent()
    };
    let bytes = input.as_bytes();
    let whole = sent_for(&[bytes]);
    for at in 0..=bytes.len() {
        let (front, back) = bytes.split_at(at);
        assert_eq!(sent_for(&[front, back]), whole, "cut at {at}");
    }
    assert_eq!(sent_for(&bytes.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
    whole
}

/// The code in the headers of the only reply, which has an error.
fn error_code(sent: &str) -> i64 {
    assert!(sent.starts_with("HPUB ") && sent.matches("PUB ").count() == 1, "{sent}");
    let (_, rest) = sent.split_once("Nats-Service-Error-Code: ").unwrap();
    rest.split("\r\n").next().unwrap().parse().unwrap()
}

#[test]
fn messages_are_calls_and_their_replies_go_to_their_subjects() {
    let sent = answer(&(message(SUM, "r1", "[2,3]") + &message(ECHO, "r2", "") + "PING\r\n"));
    assert_eq!(sent, "PUB r1 1\r\n5\r\nPUB r2 4\r\nnull\r\nPONG\r\n");
    let sent = answer(&message(ECHO, "r", " {\"a\": [1]}\n"));
    assert_eq!(sent, "PUB r 10\r\n{\"a\": [1]}\r\n");
    assert_eq!(answer("INFO {}\r\n+OK\r\n-ERR 'Permissions Violation'\r\nPONG\r\n"), "");
}

#[test]
fn payloads_that_are_no_params_call_nothing() {
    for payload in ["5", "{", "NaN", "[1] [2]", "[1], \"method\": \"update\"", "\"[1]\"", "[\u{1}]"]
    {
        let (mut driver, ended) = broker();
        driver.receive(message(SUM, "r", payload).as_bytes());
        assert_eq!(error_code(&driver.sent()), -32600, "{payload}");
        assert_eq!(ended.take(), [(0, Some(-32600))]);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
    let (mut driver, _) = broker();
    driver.receive(b"MSG a 1 r 5\r\n[\"\xff\"]\r\n");
    assert_eq!(error_code(&driver.sent()), -32600);
    let deep = "[".repeat(129) + &"]".repeat(129);
    assert_eq!(error_code(&answer(&message(ECHO, "r", &deep))), -32600);
}

#[test]
fn errors_have_their_headers_and_their_payload() {
    let sent = answer(&message(MISSING, "r", "[]"));
    let headers = "NATS/1.0\r\nNats-Service-Error-Code: -32601\r\nNats-Service-Error: \
                   Method not found\r\n\r\n";
    let payload = r#"{"code":-32601,"message":"Method not found"}"#;
    let total = headers.len() + payload.len();
    assert_eq!(sent, format!("HPUB r {} {total}\r\n{headers}{payload}\r\n", headers.len()));
}

#[test]
fn a_message_without_a_reply_subject_is_a_notification() {
    let (mut driver, ended) = broker();
    driver.receive(b"MSG models.update 6 3\r\n[1]\r\nMSG models.sum 1 1\r\n5\r\n");
    assert_eq!(
        (driver.sent().as_str(), &driver.service.notified[..]),
        ("", &["update".to_owned()][..])
    );
    assert_eq!(ended.take(), [(UPDATE - 1, None), (SUM - 1, Some(-32600))]);
}

#[test]
fn deferred_calls_are_answered_as_they_end() {
    let (mut driver, ended) = broker();
    driver.receive((message(LATER, "r1", "") + &message(LATER, "r2", "")).as_bytes());
    driver.receive(message(SUM, "r3", "[1]").as_bytes());
    assert_eq!(error_code(&driver.sent()), -32003, "two are under way");
    let [first, second] = driver.service.deferred[..] else { panic!() };
    driver.complete(second, Ok(b"2"));
    driver.receive(message(SUM, "r4", "[1]").as_bytes());
    driver.complete(first, Err(&RpcError::new(7, "no")));
    let sent = driver.sent();
    assert!(sent.starts_with("PUB r2 1\r\n2\r\nPUB r4 1\r\n1\r\nHPUB r1 "), "{sent}");
    let calls = [(0, Some(-32003)), (LATER - 1, None), (SUM - 1, None), (LATER - 1, Some(7))];
    assert_eq!(ended.take(), calls);
    driver.complete(first, Ok(b"1"));
    assert_eq!((driver.sent().as_str(), driver.held_bytes()), ("", 0));
}

#[test]
fn the_messages_of_calls_under_way_are_bounded() {
    let (mut driver, ended) = broker();
    driver.receive(message(LATER, "r1", &format!("[{}]", "1".repeat(1_995))).as_bytes());
    driver.receive(message(SUM, "r2", "[12]").as_bytes());
    assert_eq!(error_code(&driver.sent()), -32003);
    driver.receive(message(SUM, "r3", "[1]").as_bytes());
    assert_eq!(driver.sent(), "PUB r3 1\r\n1\r\n");
    driver.complete(driver.service.deferred[0], Ok(b"1"));
    driver.receive(message(SUM, "r4", "[12]").as_bytes());
    assert!(driver.sent().ends_with("PUB r4 2\r\n12\r\n"));
    assert_eq!(ended.take().len(), 4);
}

#[test]
fn a_call_is_cancelled_by_its_id_without_a_reply() {
    let (mut driver, ended) = broker();
    driver.receive(with_headers(LATER, "r", "Ucall-Call-Id: call 1\r\n", "").as_bytes());
    driver.receive(message(CANCEL, "", "call 2").replace("  ", " ").as_bytes());
    assert_eq!(driver.service.cancelled, []);
    driver.receive(message(CANCEL, "", "call 1").replace("  ", " ").as_bytes());
    assert_eq!(driver.service.cancelled, driver.service.deferred);
    assert_eq!(ended.take(), [(LATER - 1, Some(-32800))]);
    let number = driver.service.deferred[0];
    driver.complete(number, Ok(b"1"));
    assert_eq!(driver.sent(), "");
    assert!(driver.connection.quiet_since().is_some());
}

#[test]
fn replies_above_the_broker_s_limit_become_errors() {
    assert_eq!(answer(&message(LARGE, "r", "[198]")).len(), "PUB r 200\r\n\r\n".len() + 200);
    let sent = answer(&message(LARGE, "r", "[199]"));
    assert_eq!(error_code(&sent), -32603);
    assert!(sent.contains("the reply of 201 bytes is longer than max_payload of the broker, 200"));
}

#[test]
fn a_payload_above_the_limit_is_answered_and_skipped() {
    let mut limits = Limits::default();
    limits.body_bytes_max = 10;
    let (mut driver, _) = broker_with(limits);
    driver.receive(message(ECHO, "r1", "[1234567]").as_bytes());
    assert_eq!(driver.sent(), "PUB r1 9\r\n[1234567]\r\n");
    let long = message(ECHO, "r2", "[123456789]") + &message(SUM, "r3", "[1]");
    long.as_bytes().chunks(3).for_each(|piece| driver.receive(piece));
    let sent = driver.sent();
    assert!(sent.contains("max_body_bytes") && sent.ends_with("PUB r3 1\r\n1\r\n"), "{sent}");
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn malformed_headers_are_refused() {
    let valid = with_headers(ECHO, "r", "Authorization: Bearer x\r\n", "[1]");
    assert_eq!(answer(&valid), "PUB r 3\r\n[1]\r\n");
    for headers in ["x\r\n", "x : y\r\n", "x: a\u{1}\r\n", "\r\nx: y\r\n"] {
        let sent = answer(&with_headers(ECHO, "r", headers, "[1]"));
        assert_eq!(error_code(&sent), -32600, "{headers:?}");
    }
    let many = "a: b\r\n".repeat(101);
    assert_eq!(error_code(&answer(&with_headers(ECHO, "r", &many, "[1]"))), -32600);
}

#[test]
fn a_broker_that_breaks_the_protocol_is_left() {
    for input in ["HTTP/1.1 200 OK\r\n", "MSG a 1\r\n", "MSG a 1 r 1\r\nabc"] {
        let (mut driver, _) = broker();
        driver.receive(message(LATER, "r", "").as_bytes());
        driver.receive(input.as_bytes());
        assert_eq!(driver.connection.next_action(), NextAction::Close, "{input}");
        assert!(driver.connection.has_deferred() && driver.sent().is_empty());
    }
}

#[test]
fn messages_of_unknown_subscriptions_are_ignored() {
    assert_eq!(answer(&(message(0, "r", "[]") + &message(8, "r", "[]"))), "");
}

#[test]
fn a_silent_broker_is_pinged_and_left() {
    let (mut driver, _) = broker();
    let interval = driver.limits.ping_interval;
    driver.advance_time(interval * 9 / 10);
    assert_eq!((driver.sent().as_str(), driver.connection.evictable_since()), ("", None));
    driver.advance_time(interval / 5);
    assert_eq!(driver.sent(), "PING\r\n");
    driver.receive(b"PONG\r\n");
    for _ in 0..2 {
        driver.advance_time(interval);
        assert_eq!(driver.sent(), "PING\r\n");
    }
    driver.advance_time(interval);
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_broker_that_stops_within_a_message_is_left() {
    let (mut driver, _) = broker();
    driver.receive(b"MSG a 1 r 5\r\n[1");
    driver.advance_time(driver.limits.body_timeout + Duration::from_secs(1));
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn subscriptions_end_and_calls_go_on() {
    let (mut driver, _) = broker();
    driver.receive(message(LATER, "r1", "").as_bytes());
    let mut out = Vec::new();
    driver.connection.unsubscribe(&mut out);
    let expected: String = (1..=7).map(|number| format!("UNSUB {number}\r\n")).collect();
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    driver.receive(message(SUM, "r2", "[1]").as_bytes());
    let number = driver.service.deferred[0];
    driver.complete(number, Ok(b"2"));
    assert_eq!(driver.sent(), "PUB r2 1\r\n1\r\nPUB r1 1\r\n2\r\n");
}

#[test]
fn a_broker_that_ends_the_stream_ends_the_calls() {
    let (mut driver, _) = broker();
    driver.receive(message(LATER, "r", "").as_bytes());
    driver.handle_eof();
    assert_eq!(driver.connection.next_action(), NextAction::Close);
    assert!(driver.connection.has_deferred());
}

#[test]
fn reading_pauses_while_output_waits() {
    let (mut driver, _) = broker();
    driver.queued_bytes = driver.limits.output_bytes_max + 1;
    driver.receive(message(SUM, "r", "[1]").as_bytes());
    assert_eq!((driver.sent().as_str(), driver.connection.next_action()), ("", NextAction::Pause));
    driver.queued_bytes = 0;
    driver.resume();
    assert_eq!(driver.sent(), "PUB r 1\r\n1\r\n");
}
