//! What one caller sends harms no other: line breaks, long calls, long replies and late calls.

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
