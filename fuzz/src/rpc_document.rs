//! JSON-RPC documents, each in its own request, compared with the specification.

use serde_json::Value;
use ucall_proto::{Call, CallOutcome, FRAME_BYTE, Limits, Service};

use crate::harness::Driver;
use crate::random::Random;
use crate::reference::{self, Expected, Reply};

/// Replies with the text of the params.
pub struct Echo;

impl Service for Echo {
    fn call(&mut self, call: &Call<'_>, reply: &mut ucall_proto::Reply<'_>) -> CallOutcome {
        reply.result().extend_from_slice(call.params.unwrap_or(b"null"));
        CallOutcome::Done
    }
}

/// A document gets the replies of the specification, however it is split.
///
/// # Panics
/// If it does not.
pub fn run(input: &[u8]) {
    let (mut random, document) = Random::of_input(input);
    // The target `frames` has documents in frames.
    if reference::is_unsupported(document) || document.first() == Some(&FRAME_BYTE) {
        return;
    }
    let head =
        format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", document.len());
    let request = [head.as_bytes(), document].concat();
    let mut driver = driver();
    for piece in random.pieces(&request) {
        driver.receive(piece);
    }
    let reply = std::mem::take(&mut driver.out);
    let at = reply.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    let (head, body) = reply.split_at(at);
    match reference::expected(document) {
        Expected::Nothing => {
            assert!(head.starts_with(b"HTTP/1.1 204 ") && body.is_empty());
        }
        answer => {
            assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", reply.escape_ascii());
            check(body, &answer);
        }
    }
}

/// A connection with the limits that the reference assumes.
pub fn driver() -> Driver<Echo> {
    Driver::serving(Echo, limits())
}

/// The limits that the reference assumes.
pub fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.batch_calls_max = reference::BATCH_CALLS_MAX;
    limits.id_bytes_max = reference::ID_BYTES_MAX;
    limits.nesting_max = reference::NESTING_MAX;
    limits.meta_bytes_max = reference::META_BYTES_MAX;
    limits
}

/// Compares the output with the expected replies.
///
/// # Panics
/// If they differ.
pub fn check(written: &[u8], expected: &Expected) {
    let text = std::str::from_utf8(written).expect("UTF-8");
    match expected {
        Expected::Nothing => assert_eq!(text, ""),
        Expected::Single(reply) => check_reply(text, reply),
        Expected::Batch(replies) => {
            let items: Vec<&serde_json::value::RawValue> =
                serde_json::from_str(text).expect("an array");
            assert_eq!(items.len(), replies.len(), "{text}");
            for (item, reply) in items.iter().zip(replies) {
                check_reply(item.get(), reply);
            }
        }
    }
}

fn check_reply(written: &str, expected: &Reply) {
    match expected {
        Reply::Result { id, params } => {
            assert_eq!(written, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{params}}}"#));
        }
        Reply::Error { id, code } => {
            let start =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":""#);
            assert!(written.starts_with(&start), "{written} does not begin with {start}");
            let value: Value = serde_json::from_str(written).expect("JSON");
            assert!(value["error"]["message"].is_string() && value["error"]["data"].is_string());
        }
    }
}
