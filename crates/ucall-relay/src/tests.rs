//! Relays without sockets: limits at both sides, shortages, and the choice among upstreams.

mod health;
mod long_calls;
mod names;
mod one_caller;
mod stream_turns;

use std::io;
use std::time::Duration;

use ucall_proto::RpcError;
use ucall_proto::json::Reader;
use ucall_server::{NativeOutcome, Token};

use crate::harness::RelayHarness;
use crate::long_call::PIECE_BYTES_MAX;
use crate::options::{RelayOptions, UpstreamAddress, UpstreamOptions};
use crate::rewrite::Rewrite;

#[path = "timeout_tests.rs"]
mod timeouts;

fn options(upstreams: &[&str]) -> RelayOptions {
    let resolve = |name: &&str| UpstreamAddress::parse(name, &UpstreamOptions::default());
    RelayOptions {
        methods: vec!["up.*".to_owned()],
        upstreams: upstreams.iter().map(resolve).collect::<io::Result<_>>().expect("addresses"),
        idempotent: vec!["up.get*".to_owned()],
        hash_param: None,
        rewrite: Rewrite::default(),
        timeout: Duration::from_secs(30),
        outstanding_max: 1024,
        connection_outstanding_max: 128,
        failures_max: 5,
        health: None,
        reply_bytes_max: 1 << 20,
        request_bytes_max: 16 << 20,
    }
}

fn relay(options: RelayOptions) -> RelayHarness {
    RelayHarness::new(options, 1 << 30, 10_000)
}

/// Ends turns until all sockets are connected.
fn connect(relay: &mut RelayHarness) {
    relay.end_turn();
    let is_closed = |relay: &mut RelayHarness| {
        relay.sockets().iter().find(|(_, socket)| !socket.is_open).map(|(number, _)| *number)
    };
    while let Some(number) = is_closed(relay) {
        relay.connected(number, Ok(()));
    }
    relay.end_turn();
}

/// The ids of the calls that a socket was sent, with their params.
fn sent_calls(text: &[u8]) -> Vec<(String, String)> {
    let calls = text.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{"));
    let read = |line: &[u8]| {
        let found = Reader::new(line).members([&b"id"[..], b"params"]).unwrap_or_default();
        found.map(|it| String::from_utf8_lossy(it.unwrap_or_default()).into_owned()).into()
    };
    calls.map(read).collect()
}

/// Replies to all calls with their params.
fn answer(relay: &mut RelayHarness) {
    let numbers: Vec<u32> = relay.sockets().keys().copied().collect();
    for number in numbers {
        let sent = relay.sockets().get_mut(&number).map(|it| std::mem::take(&mut it.sent));
        let sent = sent.unwrap_or_default();
        let is_http = sent.starts_with(b"POST");
        for (id, params) in sent_calls(&sent) {
            let body = format!(r#"{{"id":{id},"result":{params}}}"#);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let head = if is_http { head } else { String::new() };
            relay.receive(number, (head + &body).as_bytes());
        }
    }
    relay.end_turn();
}

fn results(relay: &mut RelayHarness) -> Vec<(Token, String)> {
    let text = |(token, outcome)| match outcome {
        NativeOutcome::Reply(Ok(text)) => (token, String::from_utf8_lossy(&text).into_owned()),
        other => (token, format!("{other:?}")),
    };
    relay.replies().into_iter().map(text).collect()
}

fn code(result: Result<Token, RpcError>) -> Option<i64> {
    result.err().map(|error| error.code)
}

const OVERLOADED: Option<i64> = Some(RpcError::OVERLOADED);

#[test]
fn an_idle_connection_is_closed_before_the_upstream_closes_it() {
    for (scheme, idle) in [("http", 4), ("tcp", 30)] {
        let mut relay = relay(options(&[&format!("{scheme}://127.0.0.1:1")]));
        assert_eq!(code(relay.call("up.f", "[]", "{}")), None);
        connect(&mut relay);
        let idle = Duration::from_secs(idle);
        // It is not idle while a call waits for its reply.
        relay.now += idle - Duration::from_secs(1);
        relay.end_turn();
        answer(&mut relay);
        assert_eq!(results(&mut relay).len(), 1);
        let closes_at = relay.now + idle;
        assert!(relay.deadline().is_some_and(|at| at <= closes_at), "{scheme}");
        relay.now = closes_at - Duration::from_millis(1);
        relay.end_turn();
        assert_eq!(relay.sockets().len(), 1, "{scheme}");
        relay.now = closes_at;
        relay.end_turn();
        assert_eq!(relay.sockets().len(), 0, "{scheme}");
    }
}

#[test]
fn a_full_upstream_leaves_calls_to_others() {
    for scheme in ["tcp", "http"] {
        // Of so many the two that a call may go to are often full.
        let upstreams: [_; 16] = std::array::from_fn(|port| format!("{scheme}://127.0.0.1:{port}"));
        let options = options(&upstreams.each_ref().map(String::as_str));
        let mut relay = relay(RelayOptions { outstanding_max: 3, ..options });
        let calls = (0..48).map(|_| code(relay.call("up.f", "[]", "{}")));
        assert_eq!(calls.collect::<Vec<_>>(), [None; 48]);
        assert_eq!(code(relay.call("up.f", "[]", "{}")), OVERLOADED);
        connect(&mut relay);
        answer(&mut relay);
        assert_eq!(results(&mut relay).len(), 48);
        assert_eq!(code(relay.call("up.f", "[]", "{}")), None);
    }
}

#[test]
fn a_value_that_picks_a_full_upstream_goes_to_no_other() {
    let options = options(&["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]);
    let hash_param = Some("user".to_owned());
    let mut relay = relay(RelayOptions { outstanding_max: 3, hash_param, ..options });
    let calls = (0..4).map(|_| code(relay.call("up.f", r#"{"user":1}"#, "{}")));
    assert_eq!(calls.collect::<Vec<_>>(), [None, None, None, OVERLOADED]);
}

#[test]
fn a_relay_reads_nothing_while_the_caller_of_a_stream_is_slow() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    let token = relay.call("up.f", "[]", r#"{"progressToken":1}"#).expect("it is taken");
    connect(&mut relay);
    for is_slow in [true, false, true] {
        relay.set_paused(token, is_slow);
        relay.end_turn();
        assert!(relay.sockets().values().all(|socket| socket.is_paused == is_slow));
    }
    relay.cancel(token);
    relay.end_turn();
    assert!(relay.sockets().values().all(|socket| !socket.is_paused));
}

#[test]
fn a_shortage_of_descriptors_is_no_failure_of_the_upstream() {
    let options = options(&["http://127.0.0.1:1"]);
    let mut relay = RelayHarness::new(RelayOptions { failures_max: 1, ..options }, 1 << 30, 1);
    let first = relay.call("up.f", "[1]", "{}").expect("it is taken");
    let second = relay.call("up.f", "[2]", "{}").expect("it is taken");
    connect(&mut relay);
    let [(token, error)] = &relay.replies()[..] else { panic!("one reply") };
    let NativeOutcome::Reply(Err(error)) = error else { panic!("an error") };
    assert_eq!((*token, error.code), (second, RpcError::OVERLOADED));
    let data = String::from_utf8_lossy(error.data.as_deref().unwrap_or_default()).into_owned();
    assert!(data.contains("retry_after_ms") && data.contains("open files"), "{data}");
    answer(&mut relay);
    assert_eq!(results(&mut relay), [(first, "[1]".to_owned())]);
    let third = relay.call("up.f", "[3]", "{}").expect("the circuit is closed");
    relay.end_turn();
    answer(&mut relay);
    assert_eq!(results(&mut relay), [(third, "[3]".to_owned())]);
    assert_eq!(relay.warnings(), [""; 0]);
}

#[test]
fn a_hundred_calls_share_a_connection() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    for (calls, sockets) in [(100, 1), (1, 2), (99, 2), (1, 3)] {
        for _ in 0..calls {
            relay.call("up.f", "[]", "{}").expect("it is taken");
        }
        relay.end_turn();
        assert_eq!(relay.sockets().len(), sockets);
    }
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 201);
}

#[test]
fn a_call_above_256_kib_has_a_connection_of_its_own() {
    let shared = 256 * 1024;
    let around = r#"{"jsonrpc":"2.0","method":"up.f","params":["#.len() + r#"""]"#.len();
    for (bytes, sockets) in [(shared, 1), (shared + 1, 2)] {
        let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
        relay.call("up.f", "[]", "{}").expect("it is taken");
        let params = format!("[\"{}\"]", "x".repeat(bytes - around));
        relay.call("up.f", &params, "{}").expect("it is taken");
        connect(&mut relay);
        assert_eq!(relay.sockets().len(), sockets, "{bytes}");
        answer(&mut relay);
        assert_eq!(results(&mut relay).len(), 2);
    }
}

#[test]
fn a_call_passes_eight_relays() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    for (hops, expected) in [("7", None), ("8", Some(RpcError::UPSTREAM_UNAVAILABLE)), ("-1", None)]
    {
        let meta = format!(r#"{{"hops":{hops}}}"#);
        assert_eq!(code(relay.call("up.f", "[]", &meta)), expected, "{hops}");
    }
    connect(&mut relay);
    let sent: Vec<u8> = relay.sockets().values().flat_map(|socket| socket.sent.clone()).collect();
    assert!(String::from_utf8_lossy(&sent).contains(r#""hops":8"#));
}

#[test]
fn a_lost_call_that_was_not_sent_is_sent_once_more_on_another_connection() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    let token = relay.call("up.f", "[1]", "{}").expect("it is taken");
    relay.end_turn();
    relay.connected(0, Err(io::ErrorKind::ConnectionRefused.into()));
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay), [(token, "[1]".to_owned())]);
}

#[test]
fn an_event_advances_only_its_connection() {
    const CALLS: u32 = 300;
    let mut relay = relay(options(&["http://127.0.0.1:1"]));
    for number in 0..CALLS {
        let meta = if number % 2 == 0 { r#"{"timeout_ms":10}"# } else { "{}" };
        relay.call("up.f", "[]", meta).expect("it is taken");
        relay.end_turn();
    }
    for number in 0..CALLS {
        relay.connected(number, Ok(()));
        relay.end_turn();
    }
    relay.now += Duration::from_millis(10);
    relay.end_turn();
    answer(&mut relay);
    assert_eq!(relay.replies().len(), CALLS as usize);
    // Connect, send, and end.
    assert_eq!(relay.advanced(), 3 * CALLS as usize);
}

#[test]
fn a_connection_keeps_no_memory_of_the_longest_call() {
    for scheme in ["tcp", "http"] {
        let mut relay = relay(options(&[&format!("{scheme}://127.0.0.1:1")]));
        let params = format!("[\"{}\"]", "x".repeat(1_000_000));
        relay.call("up.f", &params, "{}").expect("it is taken");
        connect(&mut relay);
        while relay.deadline() == Some(relay.now) {
            relay.end_turn();
        }
        answer(&mut relay);
        assert_eq!((results(&mut relay).len(), relay.sockets().len()), (1, 1));
        assert!(relay.held_bytes() <= 64 << 10, "{scheme}: {} bytes", relay.held_bytes());
    }
}

#[test]
fn a_long_call_that_waits_is_held_once() {
    for scheme in ["tcp", "http"] {
        let mut relay = relay(options(&[&format!("{scheme}://127.0.0.1:1")]));
        let params = format!("[\"{}\"]", "x".repeat(1_000_000));
        for is_call in [true, false] {
            match is_call {
                true => assert_eq!(code(relay.call("up.f", &params, "{}")), None),
                false => relay.notify("up.f", &params).expect("it is taken"),
            }
            relay.end_turn();
        }
        assert_eq!(relay.sockets().len(), 2);
        // And the first piece of each.
        let expected = 2 * params.len()..2 * (params.len() + PIECE_BYTES_MAX + 4096);
        assert!(expected.contains(&relay.held_bytes()), "{scheme}: {} bytes", relay.held_bytes());
    }
}

#[test]
fn a_reply_before_its_call_mixes_up_no_calls() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    relay.call("up.f", "[0]", "{}").expect("it is taken");
    connect(&mut relay);
    answer(&mut relay);
    relay.sockets().values_mut().for_each(|socket| socket.is_sending = true);
    // A hostile upstream guesses the id of a call that waits for the end of a send.
    let early = relay.call("up.f", "[1]", "{}").expect("it is taken");
    relay.end_turn();
    relay.receive(0, br#"{"id":0,"result":"guessed"}"#);
    relay.end_turn();
    let late = relay.call("up.f", "[2]", "{}").expect("it is taken");
    relay.end_turn();
    relay.disconnect(0, io::ErrorKind::ConnectionReset.into());
    connect(&mut relay);
    answer(&mut relay);
    let results = results(&mut relay);
    assert!(results.contains(&(early, "\"guessed\"".to_owned())), "{results:?}");
    assert!(results.contains(&(late, "[2]".to_owned())), "{results:?}");
}

const REFUSAL: &[u8] = br#"{"id":null,"error":{"code":-32600,"message":"too long"}}"#;

#[test]
fn a_call_that_an_upstream_refuses_fails_alone_if_it_is_the_only_one() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    for _ in 0..10 {
        let token = relay.call("up.f", "[]", "{}").expect("it is taken");
        connect(&mut relay);
        relay.receive(0, REFUSAL);
        relay.end_turn();
        let [(replied, NativeOutcome::Reply(Err(error)))] = &relay.replies()[..] else {
            panic!("one error")
        };
        assert_eq!((*replied, error.code), (token, -32600));
        // The upstream may be about to close: the next call has a connection of its own.
        assert_eq!(relay.sockets().len(), 0);
    }
}

#[test]
fn a_lost_call_has_the_reason_of_its_own_upstream() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]));
    for (number, error) in [(0, io::ErrorKind::TimedOut), (1, io::ErrorKind::ConnectionReset)] {
        for _ in 0..50 {
            relay.call("up.f", "[]", "{}").expect("it is taken");
        }
        connect(&mut relay);
        relay.disconnect(number, error.into());
        relay.end_turn();
        let replies = relay.replies();
        assert!(!replies.is_empty());
        for (_, reply) in replies {
            let NativeOutcome::Reply(Err(reply)) = reply else { panic!("{reply:?}") };
            let data = String::from_utf8(reply.data.unwrap_or_default()).unwrap_or_default();
            assert!(data.contains(&io::Error::from(error).to_string()), "{data}");
        }
    }
}

#[test]
fn a_call_that_an_upstream_refuses_does_not_open_its_circuit() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    for has_notified in [false, true].repeat(5) {
        let calls = if has_notified { 1 } else { 2 };
        for _ in 0..calls {
            relay.call("up.f", "[]", "{}").expect("it is taken");
        }
        if has_notified {
            relay.notify("up.f", "[]").expect("it is taken");
        }
        connect(&mut relay);
        // It may be for any of them.
        relay.receive(0, REFUSAL);
        relay.end_turn();
        let replies = relay.replies();
        assert_eq!(replies.len(), calls);
        for (_, reply) in replies {
            let NativeOutcome::Reply(Err(error)) = reply else { panic!("{reply:?}") };
            let data = String::from_utf8(error.data.unwrap_or_default()).unwrap_or_default();
            assert!(error.code == -32005 && data.contains("too long"), "{data}");
        }
        assert_eq!(relay.sockets().len(), 0);
    }
}

#[test]
fn an_upstream_that_drains_gets_no_more_calls_on_that_connection() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    let first = relay.call("up.f", "[1]", "{}").expect("it is taken");
    connect(&mut relay);
    relay.receive(0, br#"{"jsonrpc":"2.0","method":"$/drain","params":{"read":1}}"#);
    relay.now += Duration::from_millis(1);
    let second = relay.call("up.f", "[2]", "{}").expect("it is taken");
    connect(&mut relay);
    assert_eq!(relay.sockets().len(), 2);
    let sent = |relay: &mut RelayHarness, socket| sent_calls(&relay.sockets()[&socket].sent).len();
    assert_eq!((sent(&mut relay, 0), sent(&mut relay, 1)), (1, 1));
    answer(&mut relay);
    let results = results(&mut relay);
    assert!(results.contains(&(first, "[1]".to_owned())) && results.len() == 2, "{results:?}");
    assert!(results.contains(&(second, "[2]".to_owned())));
    relay.end_turn();
    assert_eq!(relay.sockets().keys().collect::<Vec<_>>(), [&1]);
    // It still drains: no further connection would reach a successor.
    relay.receive(1, br#"{"jsonrpc":"2.0","method":"$/drain"}"#);
    relay.call("up.f", "[3]", "{}").expect("it is taken");
    connect(&mut relay);
    assert_eq!((relay.sockets().len(), sent(&mut relay, 1)), (1, 1));
}

#[test]
fn calls_go_to_other_upstreams_while_one_drains() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]));
    for _ in 0..50 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
    }
    connect(&mut relay);
    answer(&mut relay);
    relay.receive(0, br#"{"jsonrpc":"2.0","method":"$/drain"}"#);
    relay.end_turn();
    assert_eq!(relay.sockets().keys().collect::<Vec<_>>(), [&1]);
    for _ in 0..50 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
    }
    connect(&mut relay);
    assert_eq!(relay.sockets().len(), 1);
    relay.now += Duration::from_secs(2);
    for _ in 0..50 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
    }
    connect(&mut relay);
    assert_eq!(relay.sockets().len(), 2);
}

#[test]
fn nothing_is_left_once_all_calls_have_ended() {
    for scheme in ["tcp", "http"] {
        let mut relay = relay(options(&[&format!("{scheme}://127.0.0.1:1")]));
        for number in 0..250 {
            let token = relay.call("up.f", "[]", r#"{"timeout_ms":5000}"#).expect("it is taken");
            if number % 5 == 0 {
                relay.cancel(token);
            }
            connect(&mut relay);
        }
        while let Some(deadline) = relay.deadline() {
            relay.now = relay.now.max(deadline);
            relay.end_turn();
        }
        assert_eq!((relay.replies().len(), relay.waiting()), (200, 0));
        assert_eq!((relay.sockets().len(), relay.held_bytes()), (0, 0));
    }
}
