//! Items of streams, and calls that are cancelled by their id.

use std::time::Duration;

use ucall_proto::{CallNumber, EvictionClass, Limits, NextAction, RpcError};

use crate::harness::{Driver, answer, bodies, later, post, sum, sum_reply};
use crate::websocket::{frames, message};

pub fn stream(id: u32, token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"stream","id":{id},"_meta":{{"progressToken":{token}}}}}"#
    )
}

fn item(token: &str, value: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"$/progress","params":{{"token":{token},"value":{value}}}}}"#
    )
}

pub fn reply(id: u32, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

pub fn cancel(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{{"id":{id}}}}}"#)
}

pub fn cancelled(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32800,"message":"Request cancelled"}}}}"#
    )
}

fn post_accepting(accept: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Length: {len}\r\n\r\n{body}"
    )
}

fn call(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"stream","id":{id}}}"#)
}

/// The chunks of a reply, and the head before them.
fn chunks(sent: &str) -> (String, Vec<String>) {
    let (head, mut rest) = match sent.starts_with("HTTP") {
        true => sent.split_once("\r\n\r\n").expect("a head with an end"),
        false => ("", sent),
    };
    let mut chunks = Vec::new();
    while let Some((len, after)) = rest.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).expect("the length of a chunk");
        chunks.push(after[..len].to_owned());
        rest = after[len..].strip_prefix("\r\n").expect("the end of a chunk");
    }
    (head.to_owned(), chunks)
}

impl Driver {
    /// Passes an item to the last stream.
    fn last_item(&mut self, value: &str) -> bool {
        let number = *self.service.deferred.last().expect("a stream");
        self.item(number, value)
    }

    pub fn end_last(&mut self, result: &str) {
        let number = *self.service.deferred.last().expect("a stream");
        self.complete(number, Ok(result.as_bytes()));
    }
}

#[test]
fn raw_items_are_lines_with_the_token_before_the_reply() {
    let mut driver = Driver::new();
    driver.receive((stream(1, r#""a\u0062""#) + &sum(2)).as_bytes());
    assert_eq!(driver.sent(), sum_reply(2) + "\n");
    assert!(driver.last_item("[1]") && driver.last_item("null"));
    let token = r#""a\u0062""#;
    assert_eq!(driver.sent(), item(token, "[1]") + "\n" + &item(token, "null") + "\n");
    driver.end_last("7");
    assert_eq!(driver.sent(), reply(1, "7") + "\n");
    assert!(!driver.last_item("2"), "the stream has ended");
    assert_eq!(driver.sent(), "");
}

#[test]
fn websocket_items_are_messages_of_any_length() {
    let mut driver = Driver::new().upgraded();
    driver.receive(&message(stream(1, "-5")));
    let values = ["1".to_owned(), format!("\"{}\"", "x".repeat(200)), "y".repeat(70_000)];
    for value in &values {
        assert!(driver.last_item(value));
    }
    driver.end_last("null");
    let texts: Vec<String> =
        frames(driver.sent_bytes().as_slice()).into_iter().map(|f| f.1).collect();
    let mut expected: Vec<String> = values.iter().map(|value| item("-5", value)).collect();
    expected.push(reply(1, "null"));
    assert_eq!(texts, expected);
}

#[test]
fn calls_of_a_batch_stream_by_their_own_tokens() {
    let mut driver = Driver::new().upgraded();
    let batch = format!("[{},{},{}]", sum(1), stream(2, "2"), stream(3, "\"c\""));
    driver.receive(&message(batch));
    let [second, third] = driver.service.deferred[..] else { panic!("two streams") };
    assert!(driver.item(third, "3") && driver.item(second, "2"));
    driver.complete(third, Ok(b"0"));
    assert!(!driver.item(third, "4") && driver.item(second, "5"));
    driver.complete(second, Ok(b"0"));
    let texts: Vec<String> =
        frames(driver.sent_bytes().as_slice()).into_iter().map(|f| f.1).collect();
    let last = format!("[{},{},{}]", sum_reply(1), reply(2, "0"), reply(3, "0"));
    assert_eq!(texts, [item("\"c\"", "3"), item("2", "2"), item("2", "5"), last]);
}

#[test]
fn http_streams_events_or_lines_in_chunks_and_the_reply_last() {
    for (accept, media_type, prefix, suffix) in [
        ("text/event-stream", "text/event-stream", "data: ", "\n\n"),
        ("application/json, Text/Event-Stream;q=0.5", "text/event-stream", "data: ", "\n\n"),
        ("application/x-ndjson", "application/x-ndjson", "", "\n"),
        ("a/b, application/X-NDJSON ;q=1\r\nAccept: */*", "application/x-ndjson", "", "\n"),
        ("*/*\r\naccept: text/event-stream", "text/event-stream", "data: ", "\n\n"),
    ] {
        let mut driver = Driver::new();
        driver.receive(post_accepting(accept, &call(4)).as_bytes());
        assert_eq!(driver.sent(), "", "the head comes with the first item");
        assert!(driver.last_item("1"));
        assert!(driver.last_item("[1,\n\r2]"), "white space between tokens ends no line");
        driver.end_last("\"end\"");
        let (head, chunks) = chunks(&driver.sent());
        assert!(head.contains(&format!("Content-Type: {media_type}\r\n")), "{head}");
        assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
        let texts = [item("4", "1"), item("4", "[1,  2]"), reply(4, "\"end\"")];
        let mut expected = texts.map(|text| format!("{prefix}{text}{suffix}")).to_vec();
        expected.push(String::new());
        assert_eq!(chunks, expected);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        driver.receive(post(&sum(5)).as_bytes());
        assert_eq!(bodies(&driver.sent()), [sum_reply(5)]);
    }
}

#[test]
fn a_stream_that_fails_before_its_first_item_has_the_form_of_the_others() {
    let mut driver = Driver::new();
    driver.receive(post_accepting("text/event-stream", &call(1)).as_bytes());
    let number = driver.service.deferred[0];
    driver.complete(number, Err(&RpcError::new(-5, "no")));
    let (head, chunks) = chunks(&driver.sent());
    assert!(head.contains("text/event-stream"), "{head}");
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}"#;
    assert_eq!(chunks, [format!("data: {error}\n\n"), String::new()]);
}

#[test]
fn no_items_without_a_token_or_an_accepted_media_type() {
    let old = "POST / HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\nContent-Length: 42\r\n\r\n";
    let requests = [
        call(1),
        post(&call(1)),
        post_accepting("text/event-stream;q=0, application/json", &call(1)),
        post_accepting("text/event-stream", &format!("[{}]", call(1))),
        post(&stream(1, "1")),
        format!("{old}{}", call(1)),
    ];
    for request in requests {
        let mut driver = Driver::new();
        driver.receive(request.as_bytes());
        assert_eq!(driver.service.deferred.len(), 1, "{request}");
        assert!(!driver.last_item("1"), "{request}");
        driver.end_last("[1]");
        let sent = driver.sent();
        assert!(sent.contains(&reply(1, "[1]")) && !sent.contains("chunked"), "{sent}");
    }
}

#[test]
fn a_request_for_a_stream_follows_the_replies_before_it() {
    let chunked = "POST / HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
        Transfer-Encoding: chunked\r\n\r\n2a\r\n";
    let chunked = format!("{chunked}{}\r\n0\r\n\r\n", call(2));
    for request in [post_accepting("text/event-stream", &call(2)), chunked] {
        let mut driver = Driver::new();
        driver.receive((post(&later(1)) + &request + &post(&sum(3))).as_bytes());
        assert_eq!(driver.service.deferred.len(), 1, "the stream waits");
        driver.end_last("0");
        assert_eq!(bodies(&driver.sent()), [reply(1, "0")]);
        assert_eq!(driver.service.deferred.len(), 2);
        assert!(driver.last_item("1"));
        driver.end_last("2");
        let sent = driver.sent();
        let (events, rest) = sent.split_once("\r\n0\r\n\r\n").expect("the end of the stream");
        assert!(events.contains(&item("2", "1")) && events.contains(&reply(2, "2")));
        assert_eq!(bodies(rest), [sum_reply(3)]);
    }
}

#[test]
fn events_that_do_not_come_are_replaced_by_comments() {
    let seconds = Duration::from_secs;
    for (accept, comments) in [("text/event-stream", 1), ("application/x-ndjson", 0)] {
        let mut driver = Driver::new();
        driver.receive(post_accepting(accept, &call(1)).as_bytes());
        driver.advance_time(seconds(14));
        assert_eq!(driver.sent(), "");
        driver.advance_time(seconds(1));
        assert_eq!(chunks(&driver.sent()).1, vec![": \n\n"; comments]);
        driver.last_item("1");
        driver.sent();
        driver.advance_time(seconds(14));
        assert_eq!(driver.sent(), "");
        driver.advance_time(seconds(1));
        assert_eq!(chunks(&driver.sent()).1, vec![": \n\n"; comments]);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
}

#[test]
fn the_first_item_of_a_call_that_reports_decides_how_http_frames_its_reply() {
    let call = r#"{"jsonrpc":"2.0","method":"report","id":1}"#;
    for accept in ["text/event-stream", "application/x-ndjson"] {
        let mut driver = Driver::new();
        driver.receive(post_accepting(accept, call).as_bytes());
        driver.advance_time(Duration::from_secs(60));
        assert_eq!(driver.sent(), "", "a comment would decide");
        driver.end_last("2");
        let sent = driver.sent();
        assert!(sent.contains("Content-Type: application/json\r\n"), "{sent}");
        assert_eq!(bodies(&sent), [reply(1, "2")]);

        driver.receive(post_accepting(accept, call).as_bytes());
        assert!(driver.last_item("1"));
        assert!(driver.sent().contains(&format!("Content-Type: {accept}\r\n")));
        driver.advance_time(Duration::from_secs(16));
        let comments = if accept == "text/event-stream" { 1 } else { 0 };
        assert_eq!(chunks(&driver.sent()).1, vec![": \n\n"; comments]);
        driver.end_last("2");
        let (head, chunks) = chunks(&driver.sent());
        assert!(head.is_empty() && chunks[0].contains(&reply(1, "2")), "{chunks:?}");
    }
}

#[test]
fn a_call_is_cancelled_by_its_id() {
    let expected = cancelled("\"a\"");
    let mut driver = Driver::new();
    let plain = r#"{"jsonrpc":"2.0","method":"later","id":"a"}"#;
    driver
        .receive((later(1) + plain + &cancel("\"a\"") + &cancel("7") + &cancel("null")).as_bytes());
    assert_eq!(driver.sent(), expected + "\n");
    assert_eq!(driver.service.cancelled, [CallNumber { request: 2, item: 0 }]);
    let number = driver.service.deferred[1];
    driver.complete(number, Ok(b"1"));
    assert_eq!(driver.sent(), "", "a call is answered once");

    let mut driver = Driver::new().upgraded();
    driver.receive(&message(stream(1, "1")));
    assert!(driver.last_item("1"));
    driver.receive(&message(format!("[{},{}]", cancel("1"), sum(2))));
    let texts: Vec<String> =
        frames(driver.sent_bytes().as_slice()).into_iter().map(|f| f.1).collect();
    assert_eq!(texts, [item("1", "1"), format!("[{}]", sum_reply(2)), cancelled("1")]);
    assert!(!driver.last_item("2"));
}

#[test]
fn streams_do_not_count_as_requests_that_wait() {
    let mut limits = Limits::default();
    limits.pipeline_max = 2;
    let mut driver = Driver::with_limits(limits);
    for id in 1..=5 {
        driver.receive(stream(id, "1").as_bytes());
    }
    driver.receive(cancel("3").as_bytes());
    assert_eq!(driver.sent(), cancelled("3") + "\n");
    driver.receive((later(6) + &later(7)).as_bytes());
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.receive(later(8).as_bytes());
    assert_eq!(driver.service.deferred.len(), 7, "the third plain call waits");
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.end_last("1");
    assert_eq!(driver.service.deferred.len(), 8);
    assert_eq!(driver.sent(), reply(7, "1") + "\n");
}

#[test]
fn params_of_a_cancellation_without_an_id_are_ignored() {
    for params in ["[1]", "{}", r#"{"ids":1}"#] {
        let mut driver = Driver::new();
        let text = format!(r#"{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{params}}}"#);
        driver.receive((later(1) + &text).as_bytes());
        assert_eq!(driver.sent(), "");
        driver.end_last("1");
        assert_eq!(driver.sent(), reply(1, "1") + "\n");
    }
}

#[test]
fn of_several_ids_of_a_cancellation_the_last_one_counts() {
    let mut driver = Driver::new();
    driver.receive((later(1) + &later(2) + &cancel(r#"1,"id":3,"id":2"#)).as_bytes());
    assert_eq!(driver.sent(), cancelled("2") + "\n");
}

#[test]
fn the_first_call_of_a_batch_that_waits_is_cancelled() {
    let mut driver = Driver::new();
    driver.receive(format!("[{},{},{}]", later(1), later(1), later(2)).as_bytes());
    let calls = driver.service.deferred.clone();
    driver.complete(calls[2], Ok(b"2"));
    driver.complete(calls[0], Ok(b"1"));
    driver.receive(cancel("2").as_bytes());
    assert_eq!(driver.sent(), "");
    driver.receive(cancel("1").as_bytes());
    let replies = [reply(1, "1"), cancelled("1"), reply(2, "2")].join(",");
    assert_eq!(driver.sent(), format!("[{replies}]\n"));
}

#[test]
fn http_ignores_cancellations() {
    let mut driver = Driver::new();
    driver.receive((post(&later(1)) + &post(&cancel("1"))).as_bytes());
    driver.end_last("1");
    assert_eq!(bodies(&driver.sent()), [reply(1, "1"), String::new()]);
    // Nor may they cancel the calls of the next connection that this worker steps.
    driver.release();
    driver.receive((later(1) + &sum(2)).as_bytes());
    assert_eq!(driver.sent(), sum_reply(2) + "\n");
}

#[test]
fn meta_has_a_limit_and_types() {
    let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(Limits::default().meta_bytes_max - 8));
    let request = |meta: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"sum","params":[1,1],"id":1,"_meta":{meta}}}"#)
    };
    assert_eq!(answer(request(&long)).0, reply(1, "2") + "\n");
    for (meta, expected) in [
        (long.replace("xx", "xxx").as_str(), "max_meta_bytes"),
        ("[]", "_meta that is an object"),
        (r#"{"progressToken":{}}"#, "progressToken"),
    ] {
        let (sent, _) = answer(request(meta));
        assert!(sent.contains("-32600") && sent.contains(expected), "{sent}");
    }
}

#[test]
fn a_peer_that_waits_for_messages_is_not_idle() {
    let mut driver = Driver::new();
    driver.receive(sum(1).as_bytes());
    driver.connection.set_awaits_messages(true);
    let class = |driver: &Driver| driver.connection.evictable_since().map(|(class, _)| class);
    assert_eq!(class(&driver), Some(EvictionClass::Subscriber));
    assert!(driver.connection.quiet_since().is_some());
    driver.advance_time(Limits::default().idle_timeout * 2);
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.connection.set_awaits_messages(false);
    driver.advance_time(Duration::ZERO);
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}
