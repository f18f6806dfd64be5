//! Replies in a content coding.

use std::io::Read;

use flate2::read::GzDecoder;
use ucall_proto::{Compression, Limits, NextAction, RpcError};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

fn limits(bytes_min: usize, bytes_max: usize) -> Limits {
    let mut limits = Limits::default();
    limits.compress(Compression { bytes_min, bytes_max });
    limits
}

fn driver() -> Driver {
    Driver::with_limits(limits(100, 10_000))
}

fn accepting(lines: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

const GZIP: &str = "Accept-Encoding: gzip\r\n";
const ZSTD: &str = "Accept-Encoding: gzip, deflate, br, zstd\r\n";

fn large(len: usize) -> String {
    let overhead = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    let params = len - overhead;
    format!(r#"{{"jsonrpc":"2.0","method":"large","params":[{params}],"id":1}}"#)
}

/// The head of a reply with a length, its decoded body, and what follows it.
fn decoded(sent: &[u8]) -> (String, Vec<u8>, &[u8]) {
    let end = sent.windows(4).position(|it| it == b"\r\n\r\n").expect("a head") + 4;
    let (head, rest) = sent.split_at(end);
    let head = String::from_utf8(head.to_vec()).unwrap();
    let value = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let length: usize = value("Content-Length").expect("a length").parse().unwrap();
    let (body, rest) = rest.split_at(length);
    let body = decode(value("Content-Encoding"), body);
    (head, body, rest)
}

fn decode(coding: Option<&str>, body: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    match coding {
        None => text.extend_from_slice(body),
        Some("gzip") => _ = GzDecoder::new(body).read_to_end(&mut text).unwrap(),
        Some("zstd") => {
            text.reserve(1 << 20);
            zstd_safe::decompress(&mut text, body).unwrap();
        }
        Some(other) => panic!("{other}"),
    }
    text
}

#[test]
fn replies_are_compressed_as_their_clients_accept() {
    for (lines, coding) in [
        (GZIP, "gzip"),
        (ZSTD, "zstd"),
        ("Accept-Encoding: gzip;q=1, zstd;q=0.5\r\n", "gzip"),
        ("Accept-Encoding: zstd;q=0\r\nAccept-Encoding: gzip\r\n", "gzip"),
        ("Accept-Encoding: *\r\n", "zstd"),
    ] {
        let mut driver = driver();
        driver.receive(&[accepting(lines, &large(1_000)), post(&sum(1)).into()].concat());
        let sent = driver.sent_bytes();
        let (head, body, rest) = decoded(&sent);
        assert!(head.contains(&format!("\r\nContent-Encoding: {coding}\r\n")), "{lines}: {head}");
        assert!(head.contains("\r\nVary: Accept-Encoding\r\n"), "{head}");
        assert_eq!(head.matches("Content-Length").count(), 1);
        assert!(sent.len() - rest.len() < 400, "{}", sent.len());
        assert_eq!((body.len(), &body[..12]), (1_000, &br#"{"jsonrpc":""#[..]));
        assert_eq!(bodies(std::str::from_utf8(rest).unwrap()), [sum_reply(1)]);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
}

#[test]
fn replies_stay_as_they_are_for_other_clients() {
    for lines in ["", "Accept-Encoding: br\r\n", "Accept-Encoding: identity, gzip;q=0\r\n"] {
        let mut driver = driver();
        driver.receive(&accepting(lines, &large(1_000)));
        let (head, body, _) = decoded(&driver.sent_bytes());
        assert!(!head.contains("Content-Encoding") && body.len() == 1_000, "{lines}");
        // The reply to a request that says nothing depends on nothing.
        assert_eq!(head.contains("Vary: Accept-Encoding"), !lines.is_empty(), "{lines}");
    }
    let mut driver = Driver::new();
    driver.receive(&accepting(GZIP, &large(1_000)));
    let (head, body, _) = decoded(&driver.sent_bytes());
    assert!(!head.contains("Vary") && body.len() == 1_000, "no server compresses by default");
}

#[test]
fn short_and_long_replies_stay_as_they_are() {
    for (len, is_coded) in [(99, false), (100, true), (10_000, true), (10_001, false)] {
        for lines in [GZIP, ZSTD] {
            let mut driver = driver();
            driver.receive(&accepting(lines, &large(len)));
            let (head, body, _) = decoded(&driver.sent_bytes());
            assert_eq!(body.len(), len);
            assert_eq!(head.contains("Content-Encoding"), is_coded, "{len}");
            assert_eq!(head.contains("Vary"), len != 99, "{len}");
        }
    }
}

#[test]
fn replies_that_come_later_are_compressed_in_order() {
    for lines in [GZIP, ZSTD] {
        let mut driver = driver();
        driver.receive(&[accepting(lines, &later(1)), accepting(lines, &large(500))].concat());
        assert_eq!(driver.sent_bytes(), b"");
        let call = driver.service.deferred[0];
        driver.complete(call, Ok(format!("\"{}\"", "y".repeat(700)).as_bytes()));
        let sent = driver.sent_bytes();
        let (first_head, first, rest) = decoded(&sent);
        let (second_head, second, rest) = decoded(rest);
        assert!(
            first_head.contains("Content-Encoding") && second_head.contains("Content-Encoding")
        );
        assert!(first.ends_with(b"yyy\"}") && second.ends_with(b"xxx\"}") && rest.is_empty());
    }
}

#[test]
fn compressed_requests_get_compressed_replies() {
    let mut driver = driver();
    let call = sum(1);
    let level = flate2::Compression::fast();
    let mut body = flate2::read::GzEncoder::new(call.as_bytes(), level);
    let mut encoded = Vec::new();
    body.read_to_end(&mut encoded).unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\n{GZIP}Content-Encoding: gzip\r\n\
         Content-Length: {}\r\n\r\n",
        encoded.len()
    );
    driver.limits = limits(1, 10_000);
    driver.receive(&[head.as_bytes(), &encoded].concat());
    let (_, body, _) = decoded(&driver.sent_bytes());
    assert_eq!(body, sum_reply(1).as_bytes());
}

#[test]
fn a_reply_that_would_be_longer_stays_as_it_is() {
    let mut driver = Driver::with_limits(limits(1, 10_000));
    driver.receive(&accepting(GZIP, &sum(1)));
    let (head, body, _) = decoded(&driver.sent_bytes());
    assert!(!head.contains("Content-Encoding") && head.contains("Vary: Accept-Encoding"));
    assert_eq!(body, sum_reply(1).as_bytes());
}

#[test]
fn errors_and_the_end_of_the_connection_are_kept() {
    let mut driver = driver();
    driver.receive(&accepting(&format!("Connection: close\r\n{GZIP}"), &large(1_000)));
    let (head, body, _) = decoded(&driver.sent_bytes());
    assert!(head.contains("\r\nConnection: close\r\n") && body.len() == 1_000);
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

/// The data of the chunks of a reply, each decoded as soon as it arrives.
fn decoded_chunks(coding: &str, mut rest: &[u8]) -> Vec<String> {
    let mut gzip = flate2::Decompress::new_gzip(15);
    let mut zstd = zstd_safe::DCtx::create();
    let mut texts = Vec::new();
    while !rest.is_empty() {
        let at = rest.windows(2).position(|it| it == b"\r\n").unwrap();
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..at]).unwrap(), 16).unwrap();
        let chunk = &rest[at + 2..at + 2 + len];
        rest = &rest[at + 2 + len + 2..];
        let mut text = Vec::with_capacity(1 << 16);
        if coding == "gzip" {
            gzip.decompress_vec(chunk, &mut text, flate2::FlushDecompress::None).unwrap();
        } else {
            let mut input = zstd_safe::InBuffer::around(chunk);
            let mut output = zstd_safe::OutBuffer::around(&mut text);
            zstd.decompress_stream(&mut output, &mut input).unwrap();
        }
        texts.push(String::from_utf8(text).unwrap());
    }
    texts
}

#[test]
fn each_item_of_a_stream_can_be_decoded_when_it_arrives() {
    let call = r#"{"jsonrpc":"2.0","method":"stream","id":1}"#;
    for (accept, media) in [("text/event-stream", "data: "), ("application/x-ndjson", "")] {
        for (lines, coding) in [(GZIP, "gzip"), (ZSTD, "zstd")] {
            let mut driver = driver();
            driver.receive(&accepting(&format!("Accept: {accept}\r\n{lines}"), call));
            let number = driver.service.deferred[0];
            let mut sent = Vec::new();
            for value in ["1", "\"two\"", "3"] {
                assert!(driver.item(number, value));
                let new = driver.sent_bytes();
                assert!(!new.is_empty());
                sent.extend_from_slice(&new);
            }
            let held = driver.held_bytes();
            assert!((10_000..1_000_000).contains(&held), "{coding}: {held}");
            driver.complete(number, Err(&RpcError::new(-5, "no")));
            sent.extend_from_slice(&driver.sent_bytes());
            assert_eq!(
                (driver.held_bytes(), driver.connection.next_action()),
                (0, NextAction::Receive)
            );
            let end = sent.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
            let head = std::str::from_utf8(&sent[..end]).unwrap();
            assert!(head.contains(&format!("\r\nContent-Encoding: {coding}\r\n")), "{head}");
            assert!(head.contains("\r\nVary: Accept-Encoding\r\n"), "{head}");
            let texts = decoded_chunks(coding, &sent[end..]);
            let values = [r#""value":1}"#, r#""value":"two"}"#, r#""value":3}"#, r#""code":-5"#];
            for (text, value) in texts.iter().zip(values) {
                assert!(text.starts_with(media) && text.contains(value), "{text}");
            }
            assert_eq!(texts[4..], ["", ""], "the end of the coding, and of the chunks");
        }
    }
}

#[test]
fn streams_are_not_compressed_while_much_is_held() {
    let call = r#"{"jsonrpc":"2.0","method":"stream","id":1}"#;
    for (held, is_coded) in [(4 << 20, true), ((4 << 20) + 1, false)] {
        let mut limits = limits(1, 10_000);
        limits.held_bytes_max = 8 << 20;
        let mut driver = Driver::with_limits(limits);
        driver.receive(&accepting(&format!("Accept: text/event-stream\r\n{GZIP}"), call));
        driver.hold_in_others(0, held);
        let number = driver.service.deferred[0];
        assert!(driver.item(number, "1"));
        let sent = driver.sent_bytes();
        let text = String::from_utf8_lossy(&sent);
        assert_eq!(text.contains("Content-Encoding: gzip"), is_coded, "{text}");
        assert!(text.contains("Vary: Accept-Encoding"));
    }
}
