//! The exact bytes of replies.

use proptest::prelude::*;

use crate::http1::{
    AccessRules, AllowedOrigin, ConnectionOption, ErrorBody, HttpError, Methods, ReplyHeaders,
    ReplyWriter, continue_100,
};

fn writer() -> ReplyWriter {
    let mut writer = ReplyWriter::default();
    writer.set_time(1_795_294_800);
    writer
}

/// Writes a success with a body of `length` bytes.
fn write_ok(
    writer: &mut ReplyWriter,
    out: &mut Vec<u8>,
    headers: &ReplyHeaders<'_>,
    length: usize,
) {
    let pending = writer.begin(out, headers);
    out.extend(std::iter::repeat_n(b'x', length));
    writer.end(out, pending);
}

fn origin() -> Option<AllowedOrigin<'static>> {
    let rules = AccessRules::new(true, &[], &["*".to_owned()]).unwrap();
    rules.check(Some(b"localhost"), Some(b"https://a.example"), false).unwrap()
}

fn text(out: Vec<u8>) -> String {
    String::from_utf8(out).unwrap()
}

fn ok(length: usize, reply_headers: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
         Date: Sat, 21 Nov 2026 21:00:00 GMT\r\n{reply_headers}Content-Length: {length}\r\n\r\n{}",
        "x".repeat(length)
    )
}

#[test]
fn success_has_exactly_this_shape() {
    let mut out = Vec::new();
    write_ok(&mut writer(), &mut out, &ReplyHeaders::default(), 38);
    assert_eq!(text(out), ok(38, ""));
}

#[test]
fn success_takes_extra_lines() {
    for (connection, allowed_origin, lines) in [
        (ConnectionOption::Close, None, "Connection: close\r\n"),
        (ConnectionOption::KeepAlive, None, "Connection: keep-alive\r\n"),
        (
            ConnectionOption::Implied,
            origin(),
            "Access-Control-Allow-Origin: https://a.example\r\nVary: Origin\r\n",
        ),
        (
            ConnectionOption::Close,
            origin(),
            "Connection: close\r\nAccess-Control-Allow-Origin: https://a.example\r\n\
             Vary: Origin\r\n",
        ),
    ] {
        let mut out = Vec::new();
        write_ok(
            &mut writer(),
            &mut out,
            &ReplyHeaders { connection, allowed_origin, ..Default::default() },
            5,
        );
        assert_eq!(text(out), ok(5, lines));
    }
}

#[test]
fn any_length_fits_after_any_other() {
    let mut writer = writer();
    let lengths = [0, 1, 9, 10, 99, 100, 12_345, 1_000_000];
    for first in lengths {
        for second in lengths {
            let mut out = b"before".to_vec();
            write_ok(&mut writer, &mut out, &ReplyHeaders::default(), first);
            write_ok(&mut writer, &mut out, &ReplyHeaders::default(), second);
            assert!(text(out) == format!("before{}{}", ok(first, ""), ok(second, "")));
        }
    }
}

#[test]
fn an_aborted_reply_leaves_nothing() {
    let writer = writer();
    let mut out = b"before".to_vec();
    let pending = writer.begin(&mut out, &ReplyHeaders::default());
    assert_eq!(pending.body_at(), out.len());
    out.extend_from_slice(b"half a body");
    writer.abort(&mut out, pending);
    assert_eq!(out, b"before");
}

#[test]
fn replies_without_body() {
    let mut out = Vec::new();
    writer().no_content(&mut out, &ReplyHeaders::default());
    let start = "HTTP/1.1 204 No Content\r\nDate: Sat, 21 Nov 2026 21:00:00 GMT\r\n";
    assert_eq!(text(out), format!("{start}\r\n"));
    let mut out = Vec::new();
    writer().options(&mut out, Methods::CALLS, &ReplyHeaders::default());
    assert_eq!(text(out), format!("{start}Allow: POST, OPTIONS\r\n\r\n"));
    let mut out = Vec::new();
    let foreign = ReplyHeaders { allowed_origin: origin(), ..ReplyHeaders::default() };
    writer().options(&mut out, Methods::CALLS, &foreign);
    assert_eq!(
        text(out),
        format!(
            "{start}Access-Control-Allow-Methods: POST, OPTIONS\r\n\
             Access-Control-Allow-Headers: Content-Type, Authorization, *\r\n\
             Access-Control-Max-Age: 600\r\n\
             Access-Control-Allow-Origin: https://a.example\r\nVary: Origin\r\n\r\n"
        )
    );
    let mut out = Vec::new();
    continue_100(&mut out);
    assert_eq!(out, b"HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn error_bodies_state_the_expectation() {
    let close = ReplyHeaders { connection: ConnectionOption::Close, ..ReplyHeaders::default() };
    let head = "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Date: Sat, 21 Nov 2026 21:00:00 GMT\r\nAllow: POST, OPTIONS\r\nConnection: close\r\n\
         Content-Length: 28\r\n\r\n";
    let mut out = Vec::new();
    let error = HttpError::MethodNotAllowed { allow: Methods::CALLS };
    writer().error(&mut out, &error, &close, ErrorBody::Text, false);
    assert_eq!(text(out), format!("{head}requests are sent with POST\n"));
    let mut out = Vec::new();
    writer().error(&mut out, &error, &close, ErrorBody::Text, true);
    assert_eq!(text(out), head);
    let mut out = Vec::new();
    writer().error(&mut out, &HttpError::BodyTooLarge { limit: 5 }, &close, ErrorBody::Text, false);
    let reply = text(out);
    assert!(reply.starts_with("HTTP/1.1 413 Content Too Large\r\n"));
    assert!(reply.ends_with("\r\n\r\nthe body is larger than max_body_bytes (5 bytes)\n"));
    let mut out = Vec::new();
    writer().error(&mut out, &HttpError::NotFound, &close, ErrorBody::Json, false);
    let reply = text(out);
    assert!(reply.contains("\r\nContent-Type: application/json\r\n"), "{reply}");
    let expected = format!("{{\"error\":\"{}\"}}", HttpError::NotFound);
    assert!(reply.ends_with(&format!("Content-Length: {}\r\n\r\n{expected}", expected.len())));
}

#[test]
fn every_status_has_a_reason_phrase() {
    for (error, line) in [
        (HttpError::RequestLineMalformed, "400 Bad Request"),
        (HttpError::HostForbidden, "403 Forbidden"),
        (HttpError::NotFound, "404 Not Found"),
        (HttpError::HeadTimeout, "408 Request Timeout"),
        (HttpError::BodyTimeout, "408 Request Timeout"),
        (HttpError::ContentCodingUnsupported, "415 Unsupported Media Type"),
        (HttpError::MultipartUnsupported, "415 Unsupported Media Type"),
        (HttpError::ExpectationUnknown, "417 Expectation Failed"),
        (HttpError::WebSocketVersionUnsupported, "426 Upgrade Required"),
        (HttpError::TooManyHeaders { limit: 1 }, "431 Request Header Fields Too Large"),
        (HttpError::TransferCodingUnknown, "501 Not Implemented"),
        (HttpError::Overloaded, "503 Service Unavailable"),
        (HttpError::Draining, "503 Service Unavailable"),
        (HttpError::VersionUnsupported, "505 HTTP Version Not Supported"),
    ] {
        assert_eq!(format!("{} {}", error.status(), error.reason()), line);
    }
}

proptest! {
    /// Whatever is written, taken back and written again, each reply has its own length and body.
    #[test]
    fn consecutive_replies_read_back(
        bodies in prop::collection::vec(
            (prop_oneof![0usize..12, 95usize..105, 990usize..1010], any::<bool>(), 0u8..3),
            1..12,
        ),
    ) {
        let mut writer = ReplyWriter::default();
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        for (len, is_kept, connection) in bodies {
            let connection = match connection {
                0 => ConnectionOption::Implied,
                1 => ConnectionOption::KeepAlive,
                _ => ConnectionOption::Close,
            };
            let headers = ReplyHeaders { connection, ..ReplyHeaders::default() };
            let pending = writer.begin(&mut out, &headers);
            prop_assert_eq!(pending.body_at(), out.len());
            out.resize(out.len() + len, b'x');
            if is_kept {
                writer.end(&mut out, pending);
                expected.push(len);
            } else {
                writer.abort(&mut out, pending);
            }
        }
        let mut rest = std::str::from_utf8(&out).unwrap();
        for len in expected {
            let (head, behind) = rest.split_once("\r\n\r\n").unwrap();
            let stated = head.rsplit_once("Content-Length: ").unwrap().1;
            prop_assert_eq!(stated, len.to_string());
            let (body, behind) = behind.split_at(len);
            prop_assert!(body.bytes().all(|byte| byte == b'x'));
            rest = behind;
        }
        prop_assert_eq!(rest, "");
    }
}
