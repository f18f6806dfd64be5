//! HTTP messages, one after another.

use std::time::Duration;

use ucall_proto::NextAction;
use ucall_proto::http1::AccessRules;

use crate::harness::{Driver, answer, bodies, post, sum, sum_reply};

#[test]
fn requests_are_pipelined_and_answered_in_order() {
    let requests: String = (1..=16).map(|id| post(&sum(id))).collect();
    let (replies, next_action) = answer(requests);
    assert_eq!(bodies(&replies), (1..=16).map(sum_reply).collect::<Vec<_>>());
    assert_eq!(next_action, NextAction::Receive);
}

#[test]
fn chunked_bodies_are_joined() {
    let body = sum(7);
    let (front, back) = body.split_at(11);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
         b;note=1\r\n{front}\r\n{:x}\r\n{back}\r\n0\r\nTrailer: 1\r\n\r\n",
        back.len()
    );
    let (replies, next_action) = answer(request.clone() + &post(&sum(8)));
    assert_eq!(bodies(&replies), [sum_reply(7), sum_reply(8)]);
    assert_eq!(next_action, NextAction::Receive);
}

#[test]
fn only_empty_lines_may_precede_a_request() {
    assert_eq!(bodies(&answer("\r\n\r\n".to_owned() + &post(&sum(1))).0), [sum_reply(1)]);
    for before in ["\n", " ", "\t", " \r\n", "\r\n ", "\r\n\n", "\r"] {
        let (reply, next_action) = answer(before.to_owned() + &post(&sum(1)));
        assert!(reply.starts_with("HTTP/1.1 400 "), "{before:?}: {reply}");
        assert_eq!(next_action, NextAction::DiscardInput);
    }
}

#[test]
fn the_body_may_be_any_json_document() {
    for (body, code) in [
        ("", "-32700"),
        ("1", "-32600"),
        ("{} x", "-32700"),
        ("{", "-32700"),
        (" {} \r\n", "-32600"),
    ] {
        let (reply, next_action) = answer(post(body));
        assert!(bodies(&reply)[0].contains(code), "{body}: {reply}");
        assert_eq!(next_action, NextAction::Receive);
    }
}

#[test]
fn bodies_in_unknown_codings_and_multipart_ones_are_named() {
    let with = |header: &str, body: &str| {
        let length = body.len();
        format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{header}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    for (header, named) in [
        ("Content-Type: multipart/form-data; boundary=x", "not multipart"),
        ("Content-Type: MULTIPART/mixed", "not multipart"),
    ] {
        let (reply, next_action) = answer(with(header, "--x") + &post(&sum(1)));
        assert!(reply.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n"), "{reply}");
        assert!(reply.contains(named), "{header}: {reply}");
        assert!(reply.ends_with(&sum_reply(1)), "the next request is answered: {reply}");
        assert_eq!(next_action, NextAction::Receive);
        assert_eq!(bodies(&answer(with(header, &sum(1))).0), [sum_reply(1)]);
    }
    let (reply, next_action) = answer(with("content-encoding: br", "--x") + &post(&sum(1)));
    assert!(reply.starts_with("HTTP/1.1 415 Unsupported Media Type\r\n"), "{reply}");
    assert!(reply.contains("\r\nAccept-Encoding: "), "{reply}");
    assert_eq!((bodies(&reply).len(), next_action), (1, NextAction::DiscardInput));
    for header in ["Content-Encoding: identity", "Content-Type: text/plain", "Content-Type: multi"]
    {
        assert!(answer(with(header, "--x")).0.contains("-32700"), "{header}");
    }
}

#[test]
fn close_and_http_1_0_end_the_connection_after_the_reply() {
    let body = sum(1);
    let head = |line: &str, version: &str| {
        let length = body.len();
        format!(
            "POST / HTTP/{version}\r\nHost: localhost\r\n{line}Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let (reply, next_action) = answer(head("Connection: close\r\n", "1.1") + &post(&sum(2)));
    assert_eq!(bodies(&reply), [sum_reply(1)]);
    assert!(reply.contains("\r\nConnection: close\r\n"));
    assert_eq!(next_action, NextAction::DiscardInput);
    let (reply, next_action) = answer(head("", "1.0"));
    assert!(reply.contains("\r\nConnection: close\r\n"));
    assert_eq!(next_action, NextAction::DiscardInput);
    let (reply, next_action) = answer(head("Connection: keep-alive\r\n", "1.0"));
    assert!(reply.contains("\r\nConnection: keep-alive\r\n"));
    assert_eq!(next_action, NextAction::Receive);
}

#[test]
fn paths_and_methods_are_distinguished() {
    for (line, status) in [
        ("POST /?x=1", "200"),
        ("POST http://localhost/", "200"),
        ("POST /other", "404"),
        ("GET /other", "404"),
        ("GET /", "405"),
        ("HEAD /", "405"),
        ("DELETE /", "405"),
        ("OPTIONS /", "204"),
        ("OPTIONS *", "204"),
    ] {
        let body = sum(1);
        let length = body.len();
        let request =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
        let (reply, next_action) = answer(request);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {reply}");
        assert_eq!(reply.contains("\r\nAllow: POST, OPTIONS\r\n"), matches!(status, "405" | "204"));
        assert_eq!(reply.ends_with("\r\n\r\n"), line.starts_with("HEAD") || status == "204");
        let kept =
            if status.starts_with('4') { NextAction::DiscardInput } else { NextAction::Receive };
        assert_eq!(next_action, kept, "{line}");
    }
}

#[test]
fn a_framing_error_follows_earlier_replies_and_closes() {
    for (bad, status) in [
        ("POST / HTTP/1.1\nHost: localhost\n\n", "400"),
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n1", "400"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\n", "400"),
        ("POST / HTTP/2.0\r\nHost: localhost\r\n\r\n", "505"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\n\r\n", "417"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", "501"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n", "400"),
    ] {
        let (reply, next_action) = answer(post(&sum(1)) + bad);
        let (good, refusal) = reply.split_once(&sum_reply(1)).unwrap();
        assert!(good.starts_with("HTTP/1.1 200 "));
        assert!(refusal.starts_with(&format!("HTTP/1.1 {status} ")), "{bad}: {refusal}");
        assert!(refusal.contains("\r\nConnection: close\r\n"));
        assert_eq!(next_action, NextAction::DiscardInput, "{bad}");
    }
}

#[test]
fn a_100_continue_comes_once_before_the_body() {
    let body = sum(1);
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut driver = Driver::new();
    driver.receive(head.as_bytes());
    assert_eq!(driver.sent(), "HTTP/1.1 100 Continue\r\n\r\n");
    driver.receive(&body.as_bytes()[..5]);
    assert_eq!(driver.sent(), "");
    driver.receive(&body.as_bytes()[5..]);
    assert_eq!(bodies(&driver.sent()), [sum_reply(1)]);
    driver.receive((head + &body).as_bytes());
    assert_eq!(bodies(&driver.sent()), [sum_reply(1)]);
}

#[test]
fn a_refused_body_gets_no_100_continue() {
    let mut driver = Driver::new();
    driver.receive(
        b"POST / HTTP/1.1\r\nHost: evil.example\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    );
    assert!(driver.sent().starts_with("HTTP/1.1 403 "));
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn foreign_origins_are_refused() {
    let body = sum(1);
    let request = |headers: &str| {
        format!("POST / HTTP/1.1\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    for (headers, status) in [
        ("Host: localhost:8545\r\n", "200"),
        ("Host: evil.example\r\n", "403"),
        ("Host: localhost\r\nOrigin: https://evil.example\r\n", "403"),
        ("Host: localhost\r\nOrigin: null\r\n", "403"),
        ("Host: localhost:8545\r\nOrigin: http://localhost:8545\r\n", "200"),
    ] {
        let (reply, _) = answer(request(headers));
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {reply}");
    }
}

#[test]
fn a_large_body_is_received_into_a_target() {
    let body =
        format!(r#"{{"jsonrpc":"2.0","method":"get_data","id":1,"x":"{}"}}"#, "y".repeat(1 << 20));
    let request = post(&body);
    let mut driver = Driver::new();
    let (mut rest, mut targets) = (request.as_bytes(), 0);
    driver.receive(&rest[..100]);
    rest = &rest[100..];
    while let Some(mut target) = driver.poll_target() {
        assert!(driver.poll_target().is_none(), "a second one before the first is back");
        let count = target.write(rest);
        rest = &rest[count..];
        driver.return_target(target);
        targets += 1;
    }
    // Each piece is as large as all pieces before it, up to what a turn receives.
    assert_eq!(targets, 6);
    driver.receive(rest);
    assert_eq!(bodies(&driver.sent()), [r#"{"jsonrpc":"2.0","id":1,"result":["hello",5]}"#]);
}

#[test]
fn a_malformed_partial_head_is_refused_at_eof() {
    for (input, refused) in [
        ("POST / HTTP/1.1\r\nHost: a\u{1}b", true),
        ("POST / HTTP/1.1\r\nHost: a\r\nB C", true),
        ("POST / HTTP/1.1\r\nHost: a\r\nB: c", false),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\u{1}", false),
    ] {
        for cut in 1..input.len() {
            let mut driver = Driver::new();
            driver.receive(&input.as_bytes()[..cut]);
            driver.receive(&input.as_bytes()[cut..]);
            driver.handle_eof();
            let sent = driver.sent();
            assert_eq!(
                sent.starts_with("HTTP/1.1 400 "),
                refused,
                "{input:?} cut at {cut}: {sent}"
            );
            assert_eq!(driver.connection.next_action(), NextAction::Close);
        }
    }
}

/// A page that cannot read a refusal sees "CORS error" instead of its reason.
#[test]
fn a_page_may_read_why_its_request_is_refused() {
    let large = format!("Content-Length: {}\r\n\r\n", 1 << 20);
    let cases: [(&str, &str, &str, &[u8]); 8] = [
        ("413 ", "Content-Length: 99999999\r\n\r\n", "", b""),
        ("413 ", "Transfer-Encoding: chunked\r\n\r\n", "fffffff\r\n", b""),
        ("400 ", "Transfer-Encoding: chunked\r\n\r\n", "zz\r\n", b""),
        ("408 ", "Transfer-Encoding: chunked\r\n\r\n", "5\r\n{", b""),
        ("408 ", "Content-Length: 9\r\n\r\n", "{", b""),
        // Its body is received in place.
        ("408 ", &large, "{", b" "),
        ("503 ", "Content-Length: 9\r\n\r\n", "", b""),
        ("503 ", "Transfer-Encoding: chunked\r\n\r\n", "", b""),
    ];
    for (status, length, begun, filled) in cases {
        for origin in ["https://app.example", "http://localhost"] {
            let mut driver = Driver::new();
            let origins = ["https://app.example".to_owned()];
            driver.access = AccessRules::new(true, &[], &origins).unwrap();
            if status == "503 " {
                driver.hold_in_others(0, driver.limits.held_bytes_max + 1);
            }
            let head = format!("POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n");
            driver.receive((head + length + begun).as_bytes());
            if !filled.is_empty() {
                let target = driver.poll_target().unwrap();
                driver.return_target(target);
            }
            driver.advance_time(Duration::from_secs(3600));
            let sent = driver.sent();
            assert!(sent.starts_with(&format!("HTTP/1.1 {status}")), "{length:?}: {sent}");
            let may_read =
                sent.contains("\r\nAccess-Control-Allow-Origin: https://app.example\r\n");
            assert_eq!(may_read, origin.starts_with("https"), "{length:?}: {sent}");
        }
    }
}
