//! Every limit in time, on the clock of the fake engine: what happens at the limit, and that
//! nothing happens before it.
//!
//! A sweep finds passed deadlines once a second. Those of these connections are whole seconds after
//! the first sweep, so they end in that very moment. Dates, logs and cookies have the same clock.

use std::io::Write;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertificateParams, date_time_ymd};
use ucall_engine::fake::{FakePeer, SendMode};
use ucall_proto::tls::ClientConfig;
use ucall_server::{AccessLog, Drain, LogFormat, Message, WorkerConfig};

use crate::admission_queues::{
    TlsPeer, tls_harness, tls_harness_of, trusting, write_identity, write_identity_of,
};
use crate::harness::{Harness, call, post, reply, text};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A head without its body of `length` bytes.
fn head(length: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
}

/// The head of a WebSocket, and frames of a client, which are masked with zeros.
fn websocket(frames: &[u8]) -> Vec<u8> {
    let head = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    [head.as_bytes(), frames].concat()
}

const PING: [u8; 2] = [0x89, 0];
const PONG: [u8; 6] = [0x8A, 0x80, 0, 0, 0, 0];

/// A client that sends this and then nothing: after how long the worker ends its side, what the
/// client has read by then, and after how long the connection is closed.
fn ended(sent: &[u8], configure: impl FnOnce(&mut WorkerConfig)) -> (Duration, Vec<u8>, Duration) {
    let mut harness = Harness::with(configure);
    let peer = harness.connect();
    if !sent.is_empty() {
        peer.write(sent);
    }
    harness.turn();
    // The sends of a reply have nothing to do with time.
    let mut received = Vec::new();
    let waited = harness.turn_until(|_| {
        received.extend(peer.read());
        peer.has_ended()
    });
    received.extend(peer.read());
    (waited, received, waited + harness.turn_until(|_| peer.is_closed()))
}

#[test]
fn a_silent_client_is_refused_or_closed_at_each_limit() {
    let whole = post(&call("echo", "[]", "1"));
    let part = &call("echo", "[]", "1")[..9];
    let cases = [
        ("nothing", String::new(), 75, ""),
        ("a whole request", whole.clone(), 75, " 200 "),
        ("a whole document", call("echo", "[]", "1"), 75, "\"result\":[]"),
        ("part of a head", "POST / HTTP/1.1\r\n".to_owned(), 10, " 408 "),
        ("white space", "\n".to_owned(), 10, "expected the rest of the document within 10 s"),
        ("part of the next head", whole + "PO", 10, " 408 "),
        ("part of a body", head(100) + "{", 30, " 408 "),
        ("no part of a body", head(100), 30, " 408 "),
        ("part of a large body", head(300_000) + "{", 30, " 408 "),
        ("part of a document", part.to_owned(), 30, "expected the rest of the document within 30"),
    ];
    for (what, sent, seconds, expected) in cases {
        let (waited, received, closed) = ended(sent.as_bytes(), |_| {});
        assert_eq!(waited, seconds * SECOND, "{what}");
        let received = String::from_utf8_lossy(&received);
        assert!(received.contains(expected), "{what}: {received}");
        assert_eq!(received.is_empty(), expected.is_empty(), "{what}: {received}");
        let discards = received.contains(" 408 ") || received.contains("expected the rest");
        let discard_time = if discards { SECOND } else { Duration::ZERO };
        assert_eq!(closed - waited, discard_time, "{what}: the client closes by itself");
    }
}

#[test]
fn each_limit_has_its_option() {
    let whole = post(&call("echo", "[]", "1"));
    let after = |sent: &str, configure: fn(&mut WorkerConfig)| ended(sent.as_bytes(), configure).0;
    assert_eq!(after(&whole, |config| config.limits.idle_timeout = 5 * SECOND), 5 * SECOND);
    assert_eq!(after("POST", |config| config.limits.head_timeout = 3 * SECOND), 3 * SECOND);
    assert_eq!(after(&head(9), |config| config.limits.body_timeout = 4 * SECOND), 4 * SECOND);
    assert_eq!(after(&whole, |config| config.limits.lifetime = Some(6 * SECOND)), 6 * SECOND);
    let discards = |config: &mut WorkerConfig| config.limits.discard_timeout = 7 * SECOND;
    let (waited, _, closed) = ended(b"GARBAGE\n", discards);
    assert_eq!((waited, closed), (Duration::ZERO, 7 * SECOND));
}

/// One byte of each second, until the time for the whole body is over: 30 s, and one for each KiB.
#[test]
fn a_body_that_trickles_is_refused_below_a_kilobyte_a_second() {
    for kilobytes in [2, 200] {
        let mut harness = Harness::new();
        let peer = harness.connect();
        peer.write(head(kilobytes << 10).as_bytes());
        harness.turn();
        let began = harness.now();
        while !peer.has_ended() {
            harness.advance(SECOND);
            peer.write(b"1");
            harness.turn();
        }
        let seconds = 30 + kilobytes as u32;
        assert_eq!(harness.now() - began, seconds * SECOND, "{kilobytes} KiB");
        assert!(text(&peer).contains(" 408 "));
    }
}

#[test]
fn a_head_that_trickles_is_refused_after_ten_seconds() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(b"POST / HTTP/1.1\r\nX: ");
    harness.turn();
    let began = harness.now();
    while !peer.has_ended() {
        harness.advance(SECOND);
        peer.write(b"x");
        harness.turn();
    }
    assert_eq!(harness.now() - began, 10 * SECOND);
    assert!(text(&peer).contains(" 408 "));
}

#[test]
fn a_body_at_two_kilobytes_a_second_is_received() {
    let request = post(&call("echo", &format!("[\"{}\"]", "y".repeat(200_000)), "1"));
    let mut harness = Harness::new();
    let peer = harness.connect();
    for piece in request.as_bytes().chunks(2 << 10) {
        peer.write(piece);
        harness.turns(2);
        harness.advance(SECOND);
    }
    assert!(text(&peer).contains("yyyy"));
}

#[test]
fn a_slow_large_body_is_received() {
    let request = post(&call("echo", &format!("[\"{}\"]", "y".repeat(300_000)), "1"));
    let mut harness = Harness::new();
    let peer = harness.connect();
    for piece in request.as_bytes().chunks(29 << 10) {
        peer.write(piece);
        harness.turns(3);
        harness.advance(29 * SECOND);
    }
    assert!(text(&peer).contains("yyyy"));
}

#[test]
fn requests_keep_a_connection_open() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    for _ in 0..20 {
        harness.advance(75 * SECOND - MS);
        peer.write(post(&call("echo", "[]", "1")).as_bytes());
        harness.turn();
        assert!(text(&peer).contains(" 200 "));
    }
    peer.write(post(&call("later", "[]", "1")).as_bytes());
    harness.turn();
    harness.advance(3600 * SECOND);
    harness.complete("1", Ok(b"true".to_vec()));
    assert!(text(&peer).contains(" 200 "), "a call that runs keeps it open");
    assert_eq!(harness.turn_until(|_| peer.is_closed()), 75 * SECOND);
}

#[test]
fn a_client_that_takes_nothing_is_closed_and_a_slow_one_is_not() {
    let mut harness = Harness::new();
    let (stuck, slow) = (harness.connect(), harness.connect());
    stuck.set_send_mode(SendMode::Stalled);
    // A step in each wait, each of which takes a second.
    slow.set_send_mode(SendMode::InSteps(1_000));
    for peer in [&stuck, &slow] {
        peer.write(call("large", "[100000]", "1").as_bytes());
    }
    harness.turn();
    assert_eq!(harness.turn_until(|_| stuck.is_closed()), 30 * SECOND);
    assert!(!slow.is_closed());
    let mut received = String::new();
    harness.turn_until(|_| {
        received += &text(&slow);
        received.ends_with('\n')
    });
    assert_eq!(received.len(), reply("1", "").len() + 100_002);
}

#[test]
fn a_silent_websocket_is_pinged_twice_then_closed() {
    let mut harness = Harness::new();
    let (silent, answering) = (harness.connect(), harness.connect());
    for peer in [&silent, &answering] {
        peer.write(&websocket(b""));
    }
    harness.turn();
    assert!(text(&silent).contains(" 101 ") && text(&answering).contains(" 101 "));
    let (mut pings, began) = (Vec::new(), harness.now());
    harness.turn_until(|harness| {
        if answering.read() == PING {
            answering.write(&PONG);
        }
        if silent.read() == PING {
            pings.push((harness.now() - began).as_secs());
        }
        silent.has_ended()
    });
    assert_eq!(pings, [20, 40]);
    // A Pong may have arrived that is not read yet.
    assert_eq!(harness.now() - began, 61 * SECOND);
    harness.advance(20 * SECOND);
    assert!(!answering.has_ended());
}

#[test]
fn an_incomplete_message_closes_a_websocket() {
    let (waited, received, _) = ended(&websocket(&[0x81, 0x85, 0, 0, 0, 0, b'{']), |_| {});
    assert_eq!(waited, 30 * SECOND);
    assert!(String::from_utf8_lossy(&received).contains("(body_timeout)"));
}

#[test]
fn a_tls_handshake_has_ten_seconds() {
    let (mut harness, client) = tls_harness();
    let silent = harness.connect();
    let half = TlsPeer::begin(&mut harness, client.clone());
    let mut whole = TlsPeer::begin(&mut harness, client);
    harness.turns(3);
    half.peer.read();
    for _ in 0..6 {
        whole.exchange();
        harness.turn();
    }
    assert!(!whole.tls.is_handshaking());
    let closed_after = |harness: &mut Harness, peer: &FakePeer| {
        harness.turn_until(|_| peer.has_ended() || peer.is_closed())
    };
    assert_eq!(closed_after(&mut harness, &silent), 10 * SECOND);
    assert_eq!(closed_after(&mut harness, &half.peer), Duration::ZERO);
    whole.call();
    harness.turns(2);
    whole.exchange();
    assert_eq!(String::from_utf8_lossy(&whole.received), reply("1", "[]"));
    assert_eq!(closed_after(&mut harness, &whole.peer), 75 * SECOND);
}

#[test]
fn a_new_certificate_is_used_by_handshakes_a_second_after_the_last_check() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("identity.pem");
    let old = write_identity(&file);
    let mut harness = tls_harness_of(&file);
    let is_served = |harness: &mut Harness, client: &Arc<ClientConfig>| {
        let peer = TlsPeer::begin(harness, client.clone());
        let_agree(harness, vec![peer]);
    };
    is_served(&mut harness, &old);
    let before = std::fs::read(&file).unwrap();
    let new = write_identity(&file);
    harness.advance(SECOND - MS);
    is_served(&mut harness, &trusting(&before));
    harness.advance(MS);
    is_served(&mut harness, &new);
    // An idle worker takes no turns meanwhile.
    let next = write_identity(&file);
    harness.network.advance(100 * SECOND);
    is_served(&mut harness, &next);
    // Of two handshakes on connections that were accepted before, one waits for its turn.
    let open = [harness.connect(), harness.connect()];
    let last = write_identity(&file);
    harness.network.advance(SECOND);
    let late = open.map(|peer| TlsPeer::begin_on(peer, last.clone()));
    let_agree(&mut harness, late.into());
}

fn let_agree(harness: &mut Harness, mut peers: Vec<TlsPeer>) {
    for _ in 0..6 {
        harness.turn();
        for peer in &mut peers {
            peer.exchange();
        }
    }
    assert!(peers.iter().all(|peer| !peer.tls.is_handshaking()));
}

#[test]
fn certificates_that_are_not_valid_are_warned_of_at_the_start_and_when_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("identity.pem");
    let write_valid = |not_before, not_after| {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (not_before, not_after);
        write_identity_of(&file, params);
    };
    // The time of a test begins on 2001-09-09, at 01:46:40.
    write_valid(date_time_ymd(2000, 1, 1), date_time_ymd(2001, 9, 9));
    let mut harness = tls_harness_of(&file);
    let take_warnings =
        |harness: &mut Harness| mem::take(&mut harness.worker.handler_mut().warnings);
    let [expired] = &take_warnings(&mut harness)[..] else { panic!("one line") };
    let until = "the certificate has expired: it was valid until 2001-09-09T00:00:00Z";
    assert_eq!(*expired, format!("TLS: {}: {until}", file.display()));
    write_valid(date_time_ymd(2001, 9, 9), date_time_ymd(2001, 9, 10));
    harness.advance(2 * SECOND);
    assert_eq!(take_warnings(&mut harness), [""; 0]);
    write_valid(date_time_ymd(2001, 9, 10), date_time_ymd(2002, 1, 1));
    harness.advance(2 * SECOND);
    harness.advance(2 * SECOND);
    let since = "the certificate is not valid before 2001-09-10T00:00:00Z";
    let lines = take_warnings(&mut harness);
    assert_eq!(lines, [format!("TLS: {}: {since}", file.display())]);
}

#[test]
fn a_call_that_arrives_in_a_long_wait_has_all_its_time() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let request = call("later", "[]", "1").replace("}", r#","_meta":{"timeout_ms":500}}"#);
    peer.write(request.as_bytes());
    let network = harness.network.clone();
    let wait = move || network.advance(10 * SECOND);
    harness.worker.handler_mut().after_wait = Some(Box::new(wait));
    harness.turn();
    assert_eq!(harness.turn_until(|_| peer.sends() > 0), 500 * MS);
    assert!(text(&peer).contains("-32001"));
}

#[test]
fn the_shortest_deadline_of_a_call_counts() {
    let header = |ms: u32, body: &str| {
        post(body).replace("\r\n\r\n", &format!("\r\nUcall-Timeout-Ms: {ms}\r\n\r\n"))
    };
    let meta = |ms: u32| {
        let body = call("later", "[]", "1");
        body.replace("}", &format!(r#","_meta":{{"timeout_ms":{ms}}}}}"#))
    };
    let requests = [
        (header(250, &call("later", "[]", "1")), 250),
        (meta(300), 300),
        (header(400, &meta(350)), 350),
        (header(300, &meta(350)), 300),
    ];
    for (request, ms) in requests {
        let mut harness = Harness::new();
        let peer = harness.connect();
        peer.write(request.as_bytes());
        harness.turn();
        let mut received = String::new();
        let waited = harness.turn_until(|_| {
            received += &text(&peer);
            !received.is_empty()
        });
        assert_eq!(waited, ms * MS, "{request}");
        assert!(received.contains("-32001"), "{received}");
        assert!(received.contains(&format!("expected a reply within {ms} ms")), "{received}");
    }
}

#[test]
fn a_drain_serves_then_refuses_then_stops() {
    let mut harness = Harness::new();
    let (busy, quiet) = (harness.connect(), harness.connect());
    busy.write(call("later", "[]", "1").as_bytes());
    quiet.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&quiet), reply("1", "[]"));
    harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    harness.turn();
    let notice = "{\"jsonrpc\":\"2.0\",\"method\":\"$/drain\"}\n";
    assert_eq!((text(&busy), text(&quiet)), (notice.to_owned(), notice.to_owned()));
    harness.advance(99 * MS);
    busy.write(call("echo", "[2]", "2").as_bytes());
    harness.turn();
    assert_eq!(text(&busy), reply("2", "[2]"));
    assert!(!quiet.is_closed());
    // What arrives from here on does so after its caller could know.
    harness.turn_until(|_| quiet.is_closed());
    assert!(!busy.is_closed());
    busy.write(call("echo", "[3]", "3").as_bytes());
    harness.turn();
    assert!(text(&busy).contains(r#""id":3,"error":{"code":-32002,"#));
    harness.complete("1", Ok(b"1".to_vec()));
    assert_eq!(text(&busy), reply("1", "1"));
    busy.shut_down();
    assert!(harness.turn_until(Harness::has_stopped) < 50 * MS);
}

#[test]
fn a_call_received_before_a_late_drain_check_is_answered() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&peer), reply("1", "[]"));
    harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    harness.turn();
    let (late, network) = (peer.clone(), harness.network.clone());
    harness.worker.handler_mut().after_wait = Some(Box::new(move || {
        late.write(call("echo", "[]", "2").as_bytes());
        network.advance(150 * MS);
    }));
    harness.turn();
    assert!(harness.worker.handler_mut().after_wait.is_none());
    harness.turn();
    assert!(text(&peer).contains(r#""id":2,"#));
    harness.turn_until(|_| peer.is_closed());
}

#[test]
fn a_drain_abandons_calls_at_its_timeout_and_sends_for_two_seconds_more() {
    let mut harness = Harness::new();
    let (reads, stalls) = (harness.connect(), harness.connect());
    stalls.set_send_mode(SendMode::Stalled);
    for peer in [&reads, &stalls] {
        peer.write(call("later", "[]", "1").as_bytes());
    }
    harness.turn();
    harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    harness.turn();
    let mut received = String::new();
    let waited = harness.turn_until(|_| {
        received += &text(&reads);
        received.contains(r#""id":1,"error":{"code":-32007,"#)
    });
    assert_eq!(waited, 10 * SECOND);
    assert!(!harness.has_stopped() && !stalls.is_closed());
    let flushed = harness.turn_until(Harness::has_stopped);
    assert!((2 * SECOND..2 * SECOND + 20 * MS).contains(&flushed), "{flushed:?}");
    assert!(stalls.is_closed());
}

#[test]
fn a_delayed_drain_serves_as_before_for_its_delay() {
    let mut harness = Harness::with(|config| config.shutdown_delay = 5 * SECOND);
    let peer = harness.connect();
    peer.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&peer), reply("1", "[]"));
    harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    harness.turn();
    harness.advance(5 * SECOND - MS);
    let new = harness.connect();
    new.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!((text(&new), text(&peer)), (reply("1", "[]"), String::new()));
    harness.advance(MS);
    assert!(text(&peer).contains("$/drain"));
    assert!(harness.turn_until(Harness::has_stopped) < 200 * MS);
}

#[test]
fn dates_advance_with_the_clock() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let date = |harness: &mut Harness| {
        peer.write(post(&call("echo", "[]", "1")).as_bytes());
        harness.turn();
        let reply = text(&peer);
        reply.lines().find_map(|line| line.strip_prefix("Date: ")).unwrap().to_owned()
    };
    assert_eq!(date(&mut harness), "Sun, 09 Sep 2001 01:46:40 GMT");
    harness.advance(SECOND);
    assert_eq!(date(&mut harness), "Sun, 09 Sep 2001 01:46:41 GMT");
}

/// What a log has written.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_of_the_access_log_has_the_time_and_the_duration() {
    let output = Output::default();
    let log = Arc::new(AccessLog::new(LogFormat::Json, 1.0, Box::new(output.clone())));
    log.start(Arc::default()).unwrap();
    let mut harness = Harness::with(|config| config.access_log = Some(log.clone()));
    let peer = harness.connect();
    harness.advance(2 * SECOND);
    peer.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    log.flush(60 * SECOND);
    let lines = output.text();
    assert!(lines.contains("2001-09-09T01:46:42.000"), "{lines}");
    assert!(lines.contains(r#""duration_ms":0.000,"#), "{lines}");
}
