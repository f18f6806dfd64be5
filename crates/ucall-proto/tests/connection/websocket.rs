//! A connection that becomes a WebSocket.

use std::sync::Arc;
use std::time::Duration;

use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::websocket::unmask;
use ucall_proto::{
    AuthenticationError, Call, CallOutcome, CallerIdentity, Drain, EvictionClass, Limits,
    LoadState, MessageFraming, NextAction, Reply, Service,
};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
pub const CLOSE: u8 = 0x88;
pub const PING: u8 = 0x89;
const PONG: u8 = 0x8A;
const MINUTE: Duration = Duration::from_secs(60);

/// A client's frame.
pub fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let (payload, key) = (payload.as_ref(), [0x37, 0xfa, 0x21, 0x3d]);
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..126 => frame.push(0x80 | len as u8),
        len @ 126..65_536 => frame.extend([&[0xFE][..], &(len as u16).to_be_bytes()].concat()),
        len => frame.extend([&[0xFF][..], &(len as u64).to_be_bytes()].concat()),
    }
    frame.extend(key);
    let start = frame.len();
    frame.extend(payload);
    unmask(&mut frame[start..], key);
    frame
}

pub fn message(text: impl AsRef<[u8]>) -> Vec<u8> {
    frame(TEXT, text)
}

fn close(code: u16) -> Vec<u8> {
    frame(CLOSE, code.to_be_bytes())
}

pub fn upgrade(lines: &str) -> String {
    format!(
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\r\n"
    )
}

/// The frames of a server, and the head of HTTP before them.
pub fn frames(mut out: &[u8]) -> Vec<(u8, String)> {
    if out.starts_with(b"HTTP/1.1 101 ") {
        let end = out.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        out = &out[end + 4..];
    }
    let mut frames = Vec::new();
    while let [first, len, rest @ ..] = out {
        let (len, rest) = match len {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            127 => (u64::from_be_bytes(rest[..8].try_into().unwrap()) as usize, &rest[8..]),
            len => (usize::from(*len), rest),
        };
        let (payload, rest) = rest.split_at(len);
        let payload = if *first == CLOSE && len > 0 {
            let code = u16::from_be_bytes([payload[0], payload[1]]);
            format!("{code} {}", std::str::from_utf8(&payload[2..]).unwrap())
        } else {
            String::from_utf8(payload.to_vec()).unwrap()
        };
        frames.push((*first, payload));
        out = rest;
    }
    frames
}

fn replies(texts: &[&str]) -> Vec<(u8, String)> {
    texts.iter().map(|text| (TEXT, (*text).to_owned())).collect()
}

impl<S: Service> Driver<S> {
    /// Upgrades the connection.
    pub fn upgraded(mut self) -> Self {
        self.receive(upgrade("").as_bytes());
        assert!(self.out.starts_with(b"HTTP/1.1 101 "), "{}", self.out.escape_ascii());
        self.out.clear();
        self
    }

    fn frames(&mut self) -> Vec<(u8, String)> {
        frames(&std::mem::take(&mut self.out))
    }

    /// The code of the only frame, which is a Close frame, and proof that nothing more is read.
    fn closed_with(&mut self) -> u16 {
        let frames = self.frames();
        let [(CLOSE, text)] = &frames[..] else { panic!("expected a Close frame: {frames:?}") };
        assert_eq!(self.connection.next_action(), NextAction::DiscardInput);
        let code = text[..4].parse().unwrap();
        self.receive(&[message(sum(1)), frame(PING, "")].concat());
        assert!(self.out.is_empty(), "nothing follows a Close frame");
        code
    }
}

fn socket() -> Driver {
    Driver::new().upgraded()
}

/// The frames that a connection answers an upgrade and this stream with, proven to be the same
/// however it is cut.
fn answer(stream: &[u8]) -> Vec<(u8, String)> {
    let input = [upgrade("").as_bytes(), stream].concat();
    let answer_in = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut driver = Driver::new();
        pieces.for_each(|piece| driver.receive(piece));
        (driver.frames(), driver.connection.next_action())
    };
    let whole = answer_in(&mut [&*input].into_iter());
    for at in 0..=input.len() {
        let (front, back) = input.split_at(at);
        assert_eq!(answer_in(&mut [front, back].into_iter()), whole, "cut at {at}");
    }
    assert_eq!(answer_in(&mut input.chunks(1)), whole, "byte by byte");
    whole.0
}

#[test]
fn each_message_is_a_document_and_gets_one_frame() {
    let stream = [
        message(sum(1)),
        frame(BINARY, sum(2)),
        message(format!(" [{},{}]\n", sum(3), sum(4))),
        message(r#"{"jsonrpc":"2.0","method":"update"}"#),
        frame(0x01, &sum(5)[..9]),
        frame(PING, "between"),
        frame(0x80, &sum(5)[9..]),
    ];
    let batch = format!("[{},{}]", sum_reply(3), sum_reply(4));
    let mut expected = replies(&[&sum_reply(1), &sum_reply(2), &batch]);
    expected.push((PONG, "between".into()));
    expected.push((TEXT, sum_reply(5)));
    assert_eq!(answer(&stream.concat()), expected);
}

#[test]
fn replies_of_every_length_are_framed() {
    for len in [0, 80, 200, 65_000, 70_000, 3] {
        let mut driver = socket();
        let call = format!(r#"{{"jsonrpc":"2.0","method":"large","params":[{len}],"id":1}}"#);
        driver.receive(&message(call));
        let expected = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(len));
        assert_eq!(driver.frames(), [(TEXT, expected)]);
    }
}

#[test]
fn text_that_is_no_json_gets_an_error_and_the_connection_stays_open() {
    for text in ["", "hello", "{", "{}{}", "\0", &(sum(1) + &sum(2))] {
        let sent = answer(&[message(text), message(sum(9))].concat());
        assert_eq!(sent.len(), 2, "{text}: {sent:?}");
        assert!(sent[0].1.contains("-32700"), "{text}: {sent:?}");
        assert_eq!(sent[1], (TEXT, sum_reply(9)));
    }
}

#[test]
fn what_violates_the_protocol_closes_with_its_code() {
    for (stream, code) in [
        (frame(TEXT, b"\xFF"), 1007),
        (frame(TEXT, b"{\"\xFF\"}"), 1007),
        ([frame(0x01, "{\""), frame(0x00, b"\xED\xA0\x80")].concat(), 1007),
        (frame(BINARY, b"\x01\x02"), 1003),
        (frame(BINARY, b""), 1003),
        (vec![0x81, 0x01, b'x'], 1002),
        (frame(0xC1, "{}"), 1002),
        (frame(0x83, ""), 1002),
        (frame(CLOSE, b"\x03\xED"), 1002),
    ] {
        let sent = answer(&[message(sum(1)), stream].concat());
        let [reply, (CLOSE, close)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(*reply, (TEXT, sum_reply(1)));
        assert!(close.starts_with(&code.to_string()), "{close}");
    }
    // Bytes that are not JSON at all, in a message that says so.
    let sent = answer(&frame(BINARY, b"{\"\xFF\"}"));
    assert!(sent[0].1.contains("-32700"), "{sent:?}");
}

#[test]
fn a_close_frame_is_answered_with_its_code_and_ends_the_connection() {
    for (stream, code) in [(close(1000), 1000), (close(4321), 4321), (frame(CLOSE, ""), 1000)] {
        let mut driver = socket();
        driver.receive(&stream);
        assert_eq!(driver.closed_with(), code);
        driver.handle_eof();
        assert_eq!(driver.connection.next_action(), NextAction::Close);
    }
}

#[test]
fn a_peer_that_closes_gives_up_its_calls() {
    let mut driver = socket();
    driver.receive(&[message(later(1)), close(1000)].concat());
    assert_eq!(driver.closed_with(), 1000);
    assert!(driver.connection.has_deferred());
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert!(driver.out.is_empty());
}

#[test]
fn the_end_of_the_stream_without_a_close_frame_cancels_the_calls() {
    let mut driver = socket();
    driver.receive(&message(later(1)));
    driver.handle_eof();
    assert_eq!((driver.frames(), driver.connection.next_action()), (vec![], NextAction::Close));
    assert!(driver.connection.has_deferred());
}

#[test]
fn replies_are_sent_as_they_finish() {
    let mut driver = socket();
    let batch = format!("[{},{}]", later(3), sum(4));
    driver.receive(&[message(later(1)), message(later(2)), message(batch)].concat());
    driver.receive(&message(sum(5)));
    assert_eq!(driver.frames(), replies(&[&sum_reply(5)]));
    let [first, second, third] = driver.service.deferred[..] else { panic!("three calls") };
    for (call, expected) in [
        (second, r#"{"jsonrpc":"2.0","id":2,"result":"x"}"#.to_owned()),
        (third, format!(r#"[{{"jsonrpc":"2.0","id":3,"result":"x"}},{}]"#, sum_reply(4))),
        (first, r#"{"jsonrpc":"2.0","id":1,"result":"x"}"#.to_owned()),
    ] {
        driver.complete(call, Ok(b"\"x\""));
        assert_eq!(driver.frames(), [(TEXT, expected)]);
    }
}

#[test]
fn the_server_may_send_messages_until_it_closes() {
    let mut driver = socket();
    assert_eq!(driver.connection.message_framing(), Some(MessageFraming::Frame));
    driver.receive(&close(1000));
    assert_eq!(driver.connection.message_framing(), None);
}

#[test]
fn requests_before_the_upgrade_are_answered_first() {
    let mut driver = Driver::new();
    let requests = post(&sum(1)) + &post(&later(2)) + &upgrade("");
    driver.receive(&[requests.as_bytes(), &message(sum(3))].concat());
    assert_eq!(bodies(&driver.sent()), [sum_reply(1)]);
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"2"));
    let out = std::mem::take(&mut driver.out);
    let at = out.windows(13).position(|window| window == b"HTTP/1.1 101 ").unwrap();
    assert!(out[..at].ends_with(br#""result":2}"#));
    assert_eq!(frames(&out[at..]), replies(&[&sum_reply(3)]));
}

#[test]
fn an_upgrade_is_refused_as_any_request() {
    for (request, status) in [
        (upgrade("").replace("13", "8"), 426),
        (upgrade("").replace("==", ""), 400),
        (upgrade("").replace("localhost", "rebound.example"), 403),
        (upgrade("Origin: https://foreign.example\r\n"), 403),
        (upgrade("").replace("/ws", "/other"), 404),
        (upgrade("").replace("websocket", "h2c"), 404),
    ] {
        let (reply, next_action) = crate::harness::answer(&request);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{request}\n{reply}");
        assert_eq!(next_action, NextAction::DiscardInput);
        assert_eq!(reply.contains("Sec-WebSocket-Version: 13\r\n"), status == 426);
    }
    for at in ["GET / ", "GET http://localhost/ws "] {
        let mut driver = Driver::new();
        driver.receive(upgrade("Origin: http://localhost\r\n").replace("GET /ws ", at).as_bytes());
        assert!(driver.out.starts_with(b"HTTP/1.1 101 "), "{at}");
    }
}

#[test]
fn a_server_that_drains_or_is_overloaded_upgrades_nothing() {
    for (drain, load, text) in [
        (Drain::Serving, LoadState::Normal, "the server is shutting down"),
        (Drain::No, LoadState::Overloaded, "the server is overloaded"),
    ] {
        let mut driver = Driver::new();
        (driver.drain, driver.load) = (drain, load);
        driver.receive(upgrade("").as_bytes());
        let reply = driver.sent();
        assert!(reply.starts_with("HTTP/1.1 503 ") && reply.contains(text), "{reply}");
    }
}

#[test]
fn a_drain_ends_with_code_1001_after_the_replies() {
    let mut driver = socket();
    driver.receive(&message(later(1)));
    driver.drain = Drain::Serving;
    driver.receive(&message(sum(2)));
    assert_eq!(driver.frames(), replies(&[&sum_reply(2)]));
    assert_eq!(driver.connection.quiet_since(), None, "a call is in flight");
    driver.drain = Drain::Refusing;
    driver.receive(&message(sum(3)));
    let last = r#"{"jsonrpc":"2.0","method":"$/drain","params":{"read":3}}"#;
    assert_eq!(driver.frames(), replies(&[&sum_reply(3), last]));
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    let sent = driver.frames();
    let [(TEXT, reply), (CLOSE, close)] = &sent[..] else { panic!("{sent:?}") };
    assert!(reply.contains("\"id\":1") && close.starts_with("1001"), "{sent:?}");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn a_connection_that_closes_at_once_says_so() {
    let mut driver = socket();
    let expected = Some((EvictionClass::WebSocket, driver.now));
    assert_eq!(driver.connection.evictable_since(), expected);
    assert_eq!(driver.connection.quiet_since(), Some(driver.now));
    let mut out = Vec::new();
    driver.connection.close_notify(&mut out);
    assert!(frames(&out)[0].1.starts_with("1001"), "{out:?}");
    let mut out = Vec::new();
    Driver::new().connection.close_notify(&mut out);
    assert!(out.is_empty());
}

#[test]
fn the_last_exchange_and_the_lifetime_end_with_code_1001() {
    let mut limits = Limits::default();
    limits.exchanges_max = Some(2);
    let mut driver = Driver::with_limits(limits).upgraded();
    driver.receive(&[message(sum(1)), message(sum(2)), message(sum(3))].concat());
    let sent = driver.frames();
    assert_eq!(sent[..2], replies(&[&sum_reply(1), &sum_reply(2)]));
    assert!(sent.len() == 3 && sent[2].1.starts_with("1001"), "{sent:?}");

    let mut limits = Limits::default();
    limits.lifetime = Some(Duration::from_secs(5));
    let mut driver = Driver::with_limits(limits).upgraded();
    driver.advance_time(Duration::from_secs(5));
    assert!(driver.frames()[0].1.starts_with("1001"));
}

#[test]
fn a_silent_peer_is_pinged_and_closed_after_the_last_unanswered_ping() {
    let mut driver = socket();
    let interval = driver.limits.ping_interval;
    for _ in 0..3 {
        driver.advance_time(interval - Duration::from_millis(1));
        assert!(driver.out.is_empty());
        driver.advance_time(Duration::from_millis(1));
        assert_eq!(driver.frames(), [(PING, String::new())]);
        driver.receive(&frame(PONG, ""));
    }
    for _ in 0..driver.limits.unanswered_pings_max {
        driver.advance_time(interval);
        assert_eq!(driver.frames(), [(PING, String::new())]);
    }
    driver.advance_time(interval);
    assert!(driver.out.is_empty(), "a Pong may have arrived without being read");
    driver.advance_time(Duration::from_secs(1));
    assert_eq!(driver.closed_with(), 1008);
}

#[test]
fn a_stall_of_the_server_closes_no_peer() {
    let mut driver = socket();
    let interval = driver.limits.ping_interval;
    for _ in 0..20 {
        // The process stands still for long, and then finds the deadline before the Pong.
        driver.now += 100 * interval;
        driver.advance_time(Duration::ZERO);
        assert!(driver.frames().iter().all(|(first, _)| *first == PING));
        driver.receive(&frame(PONG, ""));
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
}

#[test]
fn a_peer_that_waits_for_a_reply_is_pinged_and_one_that_cannot_be_read_is_not() {
    let mut driver = socket();
    driver.receive(&message(later(1)));
    driver.advance_time(MINUTE);
    assert_eq!(driver.frames()[0].0, PING);
    let mut limits = Limits::default();
    limits.pipeline_max = 1;
    let mut driver = Driver::with_limits(limits).upgraded();
    driver.receive(&[message(later(1)), message(sum(2))].concat());
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.advance_time(100 * MINUTE);
    assert!(driver.out.is_empty());
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert_eq!(driver.frames().len(), 2, "the reply, and that to the message that waited");
}

#[test]
fn a_message_that_is_not_complete_in_time_closes_the_connection() {
    let fragment = frame(0x01, "{");
    for part in [&message(sum(1))[..9], &message(sum(1))[..1], &fragment] {
        let mut driver = socket();
        driver.receive(part);
        driver.advance_time(driver.limits.body_timeout);
        assert_eq!(driver.closed_with(), 1008);
    }
}

#[test]
fn pings_wait_while_their_replies_are_not_read() {
    let mut driver = socket();
    driver.queued_bytes = driver.limits.output_bytes_max + 1;
    driver.receive(&frame(PING, "x").repeat(100));
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    assert!(driver.out.is_empty());
    driver.queued_bytes = 0;
    driver.resume();
    assert_eq!(driver.frames().len(), 100);
}

#[test]
fn limits_close_with_code_1009_and_name_themselves() {
    let mut limits = Limits::default();
    (limits.frame_bytes_max, limits.body_bytes_max, limits.message_frames_max) = (100, 150, 3);
    let pad = |len: usize| format!("{:len$}", sum(1));
    let split = |text: String, frames: usize| {
        let pieces: Vec<_> = text.as_bytes().chunks(text.len().div_ceil(frames)).collect();
        let last = pieces.len() - 1;
        let frames = pieces
            .iter()
            .enumerate()
            .map(|(at, piece)| frame(u8::from(at == 0) | if at == last { 0x80 } else { 0 }, piece));
        frames.collect::<Vec<_>>().concat()
    };
    for (allowed, rejected, name) in [
        (split(pad(100), 1), split(pad(101), 1), "max_frame_bytes"),
        (split(pad(150), 2), split(pad(151), 2), "max_body_bytes"),
        (split(pad(90), 3), split(pad(90), 5), "max_message_frames"),
    ] {
        let mut driver = Driver::with_limits(limits.clone()).upgraded();
        driver.receive(&allowed);
        assert_eq!(driver.frames(), replies(&[&sum_reply(1)]), "{name}");
        driver.receive(&rejected);
        let (_, text) = &frames(&driver.out)[0];
        assert!(text.starts_with("1009") && text.contains(name), "{name}: {text}");
        assert_eq!(driver.closed_with(), 1009);
    }
}

#[test]
fn a_large_message_is_received_into_a_target() {
    let mut driver = socket();
    let text = "x".repeat(300_000);
    let call = format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{text}"],"id":1}}"#);
    let stream = message(call);
    driver.receive(&stream[..1000]);
    assert_eq!(driver.connection.next_action(), NextAction::Fill);
    let mut rest = &stream[1000..];
    while let Some(mut target) = driver.poll_target() {
        rest = &rest[target.write(rest)..];
        driver.return_target(target);
    }
    assert!(rest.len() < 100_000, "most of the frame went into targets");
    driver.receive(rest);
    assert!(driver.frames()[0].1.contains(&text));
    driver.receive(&message(sum(2)));
    assert_eq!(driver.frames(), replies(&[&sum_reply(2)]));
}

#[test]
fn without_memory_a_message_that_begins_is_refused_with_code_1013() {
    let fragment = frame(0x01, "{");
    for part in [&message(sum(1))[..9], &fragment] {
        let mut driver = socket();
        let max = driver.limits.held_bytes_max;
        driver.hold_in_others(0, max + 1);
        driver.receive(&message(sum(1)));
        assert_eq!(driver.frames(), replies(&[&sum_reply(1)]), "a whole message needs none");
        driver.receive(part);
        assert_eq!(driver.closed_with(), 1013);
    }
}

#[test]
fn a_message_that_has_begun_waits_for_memory() {
    let text = message(sum(1));
    let (first, rest) = (frame(0x01, &sum(1)[..9]), frame(0x80, &sum(1)[9..]));
    for (begun, rest) in [(&text[..9], &text[9..]), (&first[..], &rest[..])] {
        let mut driver = socket();
        driver.receive(begun);
        let max = driver.limits.held_bytes_max;
        driver.hold_in_others(0, max + 1);
        driver.handle_progress();
        assert_eq!(driver.connection.next_action(), NextAction::Pause);
        driver.receive(&rest[..4]);
        assert_eq!((driver.frames(), driver.connection.next_action()), (vec![], NextAction::Pause));
        driver.hold_in_others(max + 1, 0);
        driver.resume();
        driver.receive(&rest[4..]);
        assert_eq!(driver.frames(), replies(&[&sum_reply(1)]));
    }
}

#[test]
fn fragments_are_held_memory_until_their_message_ends() {
    let mut driver = socket();
    driver.receive(&frame(0x02, vec![b' '; 100_000]));
    assert!(driver.held_bytes() >= 100_000);
    driver.receive(&frame(0x80, sum(1)));
    assert_eq!((driver.frames(), driver.held_bytes()), (replies(&[&sum_reply(1)]), 0));
}

/// Knows one token.
struct Guarded {
    /// The headers that each caller was authenticated by.
    seen: Vec<String>,
    identities: usize,
}

impl Service for Guarded {
    fn call(&mut self, _: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        reply.result().extend_from_slice(b"true");
        CallOutcome::Done
    }

    fn requires_authentication(&self) -> bool {
        true
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        _: Option<&Arc<TlsSession>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let head = head.unwrap();
        self.seen.push(String::from_utf8(head.header_block().to_vec()).unwrap());
        match head.header("Authorization") {
            Some(b"Bearer s3cret") => Ok(Arc::new(())),
            _ => Err(AuthenticationError::Unauthorized),
        }
    }

    fn set_identity(&mut self, _: &CallerIdentity) {
        self.identities += 1;
    }
}

#[test]
fn a_caller_is_authenticated_at_the_upgrade_for_all_messages() {
    let token = "czNjcmV0";
    for (lines, is_known) in [
        ("", false),
        ("Authorization: Bearer s3cret\r\n", true),
        ("Sec-WebSocket-Protocol: jsonrpc, bearer.czNjcmV0\r\n", true),
        ("Sec-WebSocket-Protocol: jsonrpc, bearer.b3RoZXI\r\n", false),
    ] {
        let service = Guarded { seen: Vec::new(), identities: 0 };
        let mut driver = Driver::serving(service, Limits::default());
        let input = [upgrade(lines).as_bytes(), &message(sum(1)), &message(sum(2))].concat();
        driver.receive(&input);
        let text = String::from_utf8_lossy(&driver.out).into_owned();
        assert_eq!(text.starts_with("HTTP/1.1 101 "), is_known, "{text}");
        assert_eq!(text.starts_with("HTTP/1.1 401 "), !is_known, "{text}");
        assert!(!text.contains(token), "the token is not sent back");
        let Guarded { seen, identities } = &driver.service;
        assert_eq!((seen.len(), *identities), (1, if is_known { 2 } else { 0 }));
        assert!(!seen[0].contains(token), "only the Authorization header has it: {seen:?}");
    }
}
