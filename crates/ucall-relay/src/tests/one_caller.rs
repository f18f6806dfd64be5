//! What one caller sends harms no other: line breaks, long calls, long replies and late calls.

use ucall_engine::Id;

use super::*;

/// The params of a call whose text up to the params has so many bytes.
fn params_of(text_bytes: usize) -> String {
    let around = r#"{"jsonrpc":"2.0","method":"up.f","params":["#.len() + r#"""]"#.len();
    format!("[\"{}\"]", "x".repeat(text_bytes - around))
}

/// The data of the only reply, an error -32005.
fn reason(relay: &mut RelayHarness) -> String {
    let [(_, NativeOutcome::Reply(Err(error)))] = &relay.replies()[..] else { panic!("one error") };
    assert_eq!(error.code, RpcError::UPSTREAM_UNAVAILABLE);
    String::from_utf8_lossy(error.data.as_deref().unwrap_or_default()).into_owned()
}

#[test]
fn each_call_is_one_line_on_a_shared_connection() {
    // Servers that read lines would run the second line, with the id of another call.
    let smuggled = "[\n{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"admin\"}\r\n]";
    let named = format!("{{\"a\":{smuggled}}}");
    let added = Rewrite::new(Vec::new(), "{\"t\":\n[\r1]}").expect("it is valid");
    for (scheme, is_raw) in [("tcp", true), ("http", false)] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let mut relay = relay(RelayOptions { rewrite: added.clone(), ..options });
        let meta = "{\n\"progressToken\":1,\r\"traceparent\":\"a\\nb\"}";
        // A lost call is sent again from a copy of its text.
        relay.call("up.get", &named, "{}").expect("it is taken");
        connect(&mut relay);
        let written = relay.sockets().get_mut(&0).map(|it| std::mem::take(&mut it.sent));
        relay.disconnect(0, io::ErrorKind::ConnectionReset.into());
        relay.call("up.f", &named, "{}").expect("it is taken");
        relay.call("up.f", &named, meta).expect("it is taken");
        relay.notify("up.f", &named).expect("it is taken");
        connect(&mut relay);
        let mut sent = written.unwrap_or_default();
        relay.sockets().values().for_each(|socket| sent.extend_from_slice(&socket.sent));
        let text = String::from_utf8_lossy(&sent);
        assert_eq!(text.matches("admin").count(), 5, "{text}");
        if is_raw {
            assert!(!text.contains('\r') && text.matches('\n').count() == 5, "{text}");
            assert!(
                sent_calls(&sent).iter().all(|(_, params)| params.ends_with("[ 1]}")),
                "{text}"
            );
        } else {
            // The body has a length, so its bytes stay.
            assert_eq!(text.matches(smuggled).count(), 5, "{text}");
        }
    }
}

const SHARED: usize = 256 << 10;

#[test]
fn a_long_notification_has_a_connection_of_its_own_until_it_is_sent() {
    for (bytes, sockets) in [(SHARED, 1), (SHARED + 1, 2)] {
        let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
        relay.notify("up.f", &params_of(bytes)).expect("it is taken");
        relay.call("up.f", "[]", "{}").expect("it is taken");
        relay.end_turn();
        assert_eq!(relay.sockets().len(), sockets, "{bytes}");
        relay.sockets().values_mut().for_each(|socket| socket.is_sending = true);
        connect(&mut relay);
        relay.call("up.f", "[]", "{}").expect("it is taken");
        relay.end_turn();
        assert_eq!(relay.sockets().len(), sockets, "{bytes}");
        (0..sockets).for_each(|number| relay.finish_send(number as u32));
        relay.end_turn();
        (0..sockets).for_each(|number| relay.finish_send(number as u32));
        relay.end_turn();
        assert_eq!(relay.sockets().len(), 1, "{bytes}: it is closed once all is sent");
        answer(&mut relay);
        assert_eq!(results(&mut relay).len(), 2);
    }
}

#[test]
fn a_refused_notification_costs_no_call_and_is_no_failure() {
    let mut relay = relay(RelayOptions { failures_max: 1, ..options(&["tcp://127.0.0.1:1"]) });
    let waiting = relay.call("up.f", "[1]", "{}").expect("it is taken");
    connect(&mut relay);
    for is_told in [true, false] {
        relay.notify("up.f", &params_of(SHARED + 1)).expect("it is taken");
        relay.end_turn();
        relay.connected(1, Ok(()));
        relay.sockets().get_mut(&1).expect("it has one of its own").is_sending = true;
        relay.end_turn();
        if is_told {
            relay.receive(1, REFUSAL);
        }
        relay.disconnect(1, io::ErrorKind::ConnectionReset.into());
        relay.end_turn();
    }
    answer(&mut relay);
    assert_eq!(results(&mut relay), [(waiting, "[1]".to_owned())]);
    assert_eq!(relay.warnings(), [""; 0]);
}

#[test]
fn long_calls_leave_connections_to_short_ones() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    // More than the connections that short calls may have.
    for number in 0..20 {
        let long = params_of(SHARED + 1);
        match number % 2 {
            0 => relay.notify("up.f", &long).expect("it is taken"),
            _ => assert_eq!(code(relay.call("up.f", &long, "{}")), None),
        }
    }
    relay.call("up.f", "[]", "{}").expect("it is taken");
    relay.end_turn();
    assert_eq!(relay.sockets().len(), 21);
}

#[test]
fn a_long_call_that_an_upstream_closes_is_no_failure() {
    for scheme in ["tcp", "http"] {
        for (bytes, is_failure) in [(SHARED, true), (SHARED + 1, false)] {
            let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
            let mut relay = relay(RelayOptions { failures_max: 1, ..options });
            relay.call("up.f", &params_of(bytes), "{}").expect("it is taken");
            connect(&mut relay);
            relay.disconnect(0, io::ErrorKind::UnexpectedEof.into());
            relay.end_turn();
            assert!(reason(&mut relay).contains("it has closed the connection"));
            assert_eq!(relay.warnings().len(), usize::from(is_failure), "{scheme} {bytes}");
        }
    }
}

#[test]
fn a_call_that_upstreams_may_refuse_is_not_passed_on() {
    const MAX: usize = 2000;
    let trace = r#"{"traceparent":"\"\"","tracestate":"a"}"#;
    for (meta, added) in [("{}", 128), (trace, 128 + (11 + 6 + 4) + (10 + 6 + 2))] {
        for scheme in ["tcp", "http"] {
            let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
            let mut relay = relay(RelayOptions { request_bytes_max: MAX, ..options });
            let [last, first] = [MAX - added, MAX - added + 1].map(params_of);
            assert_eq!(code(relay.call("up.f", &last, meta)), None);
            let error = relay.call("up.f", &first, meta).expect_err("it is too long");
            assert_eq!(error.code, RpcError::INVALID_REQUEST);
            let data = String::from_utf8_lossy(error.data.as_deref().unwrap_or_default());
            assert!(data.contains("2000 bytes") && data.contains("max_request_bytes"), "{data}");
            if meta == "{}" {
                relay.notify("up.f", &last).expect("it is taken");
                relay.notify("up.f", &first).expect_err("it is too long");
            }
            connect(&mut relay);
            let sent: Vec<_> = relay.sockets().values().map(|it| it.sent.clone()).collect();
            let longest = |text: &Vec<u8>| {
                text.split(|byte| *byte == b'\n').map(|line| line.len() + 1).max().unwrap_or(0)
            };
            assert!(sent.iter().map(longest).max().is_some_and(|len| len <= MAX));
        }
    }
}

#[test]
fn a_long_reply_is_an_error_of_its_call_alone() {
    for scheme in ["tcp", "http"] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let options = RelayOptions { failures_max: 1, reply_bytes_max: 1000, ..options };
        let mut relay = relay(options);
        for _ in 0..10 {
            let waiting = relay.call("up.f", "[1]", "{}").expect("it is taken");
            connect(&mut relay);
            relay.call("up.f", "[2]", "{}").expect("it is taken");
            connect(&mut relay);
            let is_last = |text: &[u8]| sent_calls(text).iter().any(|it| it.1 == "[2]");
            let found = relay.sockets().iter().find(|(_, socket)| is_last(&socket.sent));
            let number = *found.expect("it was sent").0;
            let calls = sent_calls(&relay.sockets()[&number].sent);
            let (id, long) = (&calls.last().expect("it was sent").0, "x".repeat(1000));
            let body = format!(r#"{{"id":{id},"result":"{long}"}}"#);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let text = if scheme == "http" { head + &body } else { body };
            relay.sockets().get_mut(&number).expect("it is open").sent =
                calls.first().filter(|it| it.1 == "[1]").map_or(Vec::new(), |(id, _)| {
                    format!("{{\"id\":{id},\"params\":[1]}}\n").into_bytes()
                });
            relay.receive(number, text.as_bytes());
            relay.end_turn();
            assert!(reason(&mut relay).contains("max_reply_bytes"));
            answer(&mut relay);
            assert_eq!(results(&mut relay), [(waiting, "[1]".to_owned())], "{scheme}");
        }
        assert_eq!(relay.warnings(), [""; 0]);
    }
}

#[test]
fn a_stream_with_a_long_item_is_cancelled() {
    let options = options(&["tcp://127.0.0.1:1"]);
    let options = RelayOptions { failures_max: 1, reply_bytes_max: 1000, ..options };
    for long in [1000, 5000] {
        let mut relay = relay(options.clone());
        let token = relay.call("up.f", "[]", r#"{"progressToken":1}"#).expect("it is taken");
        connect(&mut relay);
        let item = |len: usize| {
            let value = "x".repeat(len - 2);
            format!(r#"{{"method":"$/progress","params":{{"token":0,"value":"{value}"}}}}"#)
        };
        relay.receive(0, item(1000).as_bytes());
        relay.receive(0, item(long + 1).as_bytes());
        relay.receive(0, item(3).as_bytes());
        relay.end_turn();
        let replies = relay.replies();
        assert!(matches!(&replies[0], (it, NativeOutcome::Item(_)) if *it == token));
        assert!(matches!(&replies[1], (it, NativeOutcome::Reply(Err(_))) if *it == token));
        assert_eq!(replies.len(), 2);
        let sent = String::from_utf8_lossy(&relay.sockets()[&0].sent).into_owned();
        assert!(sent.contains(r#""$/cancelRequest","params":{"id":0}"#), "{sent}");
        relay.receive(0, br#"{"id":0,"error":{"code":-32800,"message":"cancelled"}}"#);
        relay.end_turn();
        assert_eq!((relay.sockets().len(), relay.warnings()), (1, Vec::new()));
        // An upstream that does not cancel it loses the connection.
        relay.call("up.f", "[]", r#"{"progressToken":1}"#).expect("it is taken");
        relay.end_turn();
        relay.receive(0, item(long + 1).as_bytes());
        relay.end_turn();
        relay.now += Duration::from_secs(1);
        relay.end_turn();
        assert_eq!((relay.sockets().len(), relay.warnings()), (0, Vec::new()));
    }
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const UNAVAILABLE: Option<i64> = Some(RpcError::UPSTREAM_UNAVAILABLE);

/// A call that its caller gives a second, and the second.
fn late_call(relay: &mut RelayHarness) {
    relay.call("up.f", "[]", r#"{"timeout_ms":1000}"#).expect("it is taken");
    connect(relay);
    relay.now += SECOND;
    relay.end_turn();
    let replies = relay.replies();
    let [(_, NativeOutcome::Reply(Err(error)))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(error.code, RpcError::DEADLINE_PASSED);
}

#[test]
fn deadlines_of_callers_open_no_circuit() {
    for scheme in ["tcp", "http"] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let mut relay = relay(RelayOptions { failures_max: 1, ..options });
        for pause in [Duration::ZERO, 20 * SECOND, SECOND + MS] {
            // Silence counts while others call, and not across a pause.
            for _ in 0..29 {
                late_call(&mut relay);
            }
            relay.now += pause.max(SECOND + MS);
        }
        assert_eq!(relay.warnings(), [""; 0], "{scheme}");
        // After the relay's own timeout without a byte, the upstream is at fault.
        for _ in 0..30 {
            assert_eq!(relay.warnings(), [""; 0], "{scheme}");
            late_call(&mut relay);
        }
        assert_eq!(relay.warnings().len(), 1, "{scheme}");
    }
}

#[test]
fn a_slow_method_opens_no_circuit_while_others_are_answered() {
    for scheme in ["tcp", "http"] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let mut relay = relay(RelayOptions { failures_max: 1, ..options });
        for _ in 0..5 {
            relay.call("up.slow", "[1]", "{}").expect("it is taken");
        }
        connect(&mut relay);
        relay.sockets().values_mut().for_each(|socket| socket.sent.clear());
        relay.now += 15 * SECOND;
        let token = relay.call("up.f", "[2]", "{}").expect("it is taken");
        connect(&mut relay);
        answer(&mut relay);
        assert_eq!(results(&mut relay), [(token, "[2]".to_owned())]);
        relay.now += 15 * SECOND;
        relay.end_turn();
        assert_eq!((relay.replies().len(), relay.warnings().len()), (5, 0), "{scheme}");
        assert_eq!(code(relay.call("up.f", "[]", "{}")), None);
    }
}

/// A relay of these upstreams, whose circuits are open, at the time at which they are probed.
fn failed(upstreams: &[&str]) -> RelayHarness {
    let mut relay = relay(RelayOptions { failures_max: 1, ..options(upstreams) });
    while relay.warnings().len() < upstreams.len() {
        if relay.call("up.f", "[]", "{}").is_err() {
            break;
        }
        relay.end_turn();
        while let Some(number) = relay.sockets().keys().next().copied() {
            relay.connected(number, Err(io::ErrorKind::ConnectionRefused.into()));
            relay.end_turn();
        }
    }
    relay.replies();
    assert_eq!(code(relay.call("up.f", "[]", "{}")), UNAVAILABLE);
    relay.now += 500 * MS;
    relay
}

#[test]
fn calls_do_not_wait_for_a_probe_that_is_slow() {
    for meta in ["{}", r#"{"progressToken":1}"#] {
        let mut relay = failed(&["tcp://127.0.0.1:1"]);
        relay.call("up.slow", "[1]", meta).expect("it is the probe");
        connect(&mut relay);
        relay.sockets().values_mut().for_each(|socket| socket.sent.clear());
        relay.now += 250 * MS - MS;
        assert_eq!(code(relay.call("up.f", "[2]", "{}")), UNAVAILABLE);
        relay.now += MS;
        let token = relay.call("up.f", "[3]", "{}").expect("it is the second probe");
        assert_eq!(code(relay.call("up.f", "[4]", "{}")), UNAVAILABLE);
        connect(&mut relay);
        answer(&mut relay);
        assert_eq!(results(&mut relay), [(token, "[3]".to_owned())]);
        for _ in 0..10 {
            assert_eq!(code(relay.call("up.f", "[5]", "{}")), None, "the circuit is closed");
        }
    }
}

#[test]
fn while_one_upstream_is_probed_calls_go_to_others() {
    let mut relay = failed(&["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]);
    relay.call("up.slow", "[1]", "{}").expect("it is a probe");
    relay.call("up.f", "[2]", "{}").expect("it is the other's probe");
    connect(&mut relay);
    let is_slow = |text: &[u8]| sent_calls(text).iter().any(|call| call.1 == "[1]");
    let slow = relay.sockets().iter().find(|(_, socket)| is_slow(&socket.sent));
    let slow = *slow.expect("it was sent").0;
    relay.sockets().get_mut(&slow).expect("it is open").sent.clear();
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 1);
    relay.now += 10 * SECOND;
    for _ in 0..50 {
        relay.call("up.f", "[3]", "{}").expect("one upstream is well");
    }
    connect(&mut relay);
    assert!(relay.sockets()[&slow].sent.is_empty());
    answer(&mut relay);
    assert_eq!((results(&mut relay).len(), relay.sockets().len()), (50, 2));
}

#[test]
fn a_probe_that_is_given_up_shows_what_its_upstream_answers() {
    let mut relay = failed(&["tcp://127.0.0.1:1"]);
    let token = relay.call("up.slow", "[1]", "{}").expect("it is the probe");
    connect(&mut relay);
    relay.cancel(token);
    relay.receive(0, br#"{"id":0,"error":{"code":-32800,"message":"cancelled"}}"#);
    relay.end_turn();
    assert_eq!(relay.warnings(), ["relay: tcp://127.0.0.1:1 answers again"]);
}

/// The connection of a caller.
fn caller(index: u32) -> Option<Id> {
    Some(Id { index, generation: 1 })
}

#[test]
fn one_connection_has_a_share_of_an_upstream_s_calls() {
    for (scheme, meta) in [("tcp", "{}"), ("tcp", r#"{"progressToken":1}"#), ("http", "{}")] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let options = RelayOptions { connection_outstanding_max: 3, ..options };
        let mut relay = relay(RelayOptions { outstanding_max: 8, ..options });
        relay.caller = caller(1);
        let calls: Vec<Token> =
            (0..3).map(|_| relay.call("up.f", "[]", meta).expect("it is taken")).collect();
        let error = relay.call("up.f", "[]", meta).expect_err("it has its share");
        let data = String::from_utf8_lossy(error.data.as_deref().unwrap_or_default()).into_owned();
        assert_eq!(Some(error.code), OVERLOADED);
        assert!(data.contains(r#""max_connection_outstanding":3"#), "{data}");
        relay.caller = caller(2);
        assert_eq!(code(relay.call("up.f", "[]", meta)), None);
        connect(&mut relay);
        // Calls that it cancels count until the upstream has answered them.
        relay.cancel(calls[0]);
        relay.caller = caller(1);
        let is_refused = code(relay.call("up.f", "[]", meta)) == OVERLOADED;
        assert!(is_refused || scheme == "http", "over HTTP the connection ends");
        answer(&mut relay);
        relay.replies();
        assert_eq!(code(relay.call("up.f", "[]", meta)), None);
        // Those of a connection in its place are others.
        relay.caller = Some(Id { index: 1, generation: 2 });
        for _ in 0..3 {
            assert_eq!(code(relay.call("up.f", "[]", meta)), None);
        }
    }
}

#[test]
fn notifications_count_while_they_have_a_connection() {
    for (scheme, bytes) in [("tcp", SHARED + 1), ("http", 100)] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let mut relay = relay(RelayOptions { connection_outstanding_max: 3, ..options });
        relay.caller = caller(1);
        for _ in 0..3 {
            relay.notify("up.f", &params_of(bytes)).expect("it is taken");
        }
        relay.notify("up.f", &params_of(bytes)).expect_err("it has its share");
        assert_eq!(code(relay.call("up.f", "[]", "{}")), OVERLOADED);
        relay.caller = caller(2);
        relay.notify("up.f", &params_of(bytes)).expect("it is taken");
    }
}

#[test]
fn a_call_past_its_share_goes_to_another_upstream() {
    let upstreams = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"];
    let options = RelayOptions { connection_outstanding_max: 3, ..options(&upstreams) };
    let mut relay = relay(options);
    relay.caller = caller(1);
    let calls = (0..7).map(|_| code(relay.call("up.f", "[]", "{}")));
    assert_eq!(calls.filter(Option::is_none).count(), 6);
}

#[test]
fn a_lost_call_takes_its_share_along() {
    let options = options(&["tcp://127.0.0.1:1"]);
    let mut relay = relay(RelayOptions { connection_outstanding_max: 2, ..options });
    relay.caller = caller(1);
    for _ in 0..2 {
        relay.call("up.get", "[]", "{}").expect("it is taken");
    }
    connect(&mut relay);
    relay.disconnect(0, io::ErrorKind::ConnectionReset.into());
    connect(&mut relay);
    assert_eq!(code(relay.call("up.get", "[]", "{}")), OVERLOADED);
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 2);
    assert_eq!(code(relay.call("up.get", "[]", "{}")), None);
}

#[test]
fn a_share_is_an_eighth_and_at_least_sixteen() {
    for (all, share) in [(1, 16), (128, 16), (135, 16), (136, 17), (1024, 128)] {
        assert_eq!(RelayOptions::connection_outstanding_max(all), share);
    }
}
