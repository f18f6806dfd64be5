//! Long documents: their requests are found while they arrive, and their calls may keep the memory.

use std::sync::Arc;

use ucall_proto::{Call, CallOutcome, Limits, NextAction, Reply, Service};

use super::harness::Driver;
use super::websocket::{frames, message, upgrade};

const PIECE: usize = 60_000;
/// A turn receives no more of a body, because it scans as much.
const TARGET_MAX: usize = 256 << 10;

/// Echoes the lengths of params, and may keep the documents that these are in.
#[derive(Default)]
struct Keeper {
    keeps: bool,
    shared: Option<Arc<Vec<u8>>>,
    kept: Vec<Arc<Vec<u8>>>,
}

impl Service for Keeper {
    const NEEDS_MEMBERS: bool = false;

    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let params = call.params.unwrap_or_default();
        if let Some(document) = self.shared.as_ref().filter(|_| self.keeps) {
            assert!(document.as_ptr_range().contains(&params.as_ptr()));
            self.kept.push(document.clone());
        }
        let text = format!("[{},{}]", call.method.raw().len(), params.len());
        reply.result().extend_from_slice(text.as_bytes());
        CallOutcome::Done
    }

    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.shared = document.cloned();
    }
}

fn driver(keeps: bool) -> Driver<Keeper> {
    Driver::serving(Keeper { keeps, ..Keeper::default() }, Limits::default())
}

fn socket(keeps: bool) -> Driver<Keeper> {
    let mut driver = driver(keeps);
    driver.receive(upgrade("").as_bytes());
    driver.out.clear();
    driver
}

/// The replies to input that arrives in pieces, or in targets if the connection has any.
fn answer(driver: &mut Driver<Keeper>, mut input: &[u8]) -> Vec<u8> {
    while !input.is_empty() {
        if driver.connection.next_action() == NextAction::Fill {
            let mut target = driver.poll_target().expect("it wants one");
            assert!(target.room() <= TARGET_MAX);
            let count = target.write(input);
            input = &input[count..];
            driver.return_target(target);
        } else {
            let (piece, rest) = input.split_at(input.len().min(PIECE));
            driver.receive(piece);
            input = rest;
        }
    }
    std::mem::take(&mut driver.out)
}

fn post(body: &[u8]) -> Vec<u8> {
    let head =
        format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut request =
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(100_000) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

fn long() -> String {
    format!("[\"{}\"]", "x".repeat(700_000))
}

#[test]
fn a_long_document_gets_the_reply_of_a_short_one_s_scan() {
    let (long, space) = (long(), " ".repeat(700_000));
    let request = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{long},"id":1}}"#);
    let elements = r#"{"jsonrpc":"2.0","method":"m","id":2},"#;
    for text in [
        request.clone(),
        format!(
            r#"{{"params":7,"id":[],"i\u0064":3,"params":{long},"method":"m","jsonrpc":"2.0"}}"#
        ),
        format!(r#"{{"jsonrpc":"2.0","method":"m","params":{long}}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":{long},"id":1}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"m","id":{},"id":1}}"#, &long[1..long.len() - 1]),
        format!(r#"{{"jsonrpc":"2.0","method":"m","id":{}}}"#, &long[1..long.len() - 1]),
        format!(r#"{{"jsonrpc":"2.0","method":"m","_meta":{{"a":{long}}},"id":1}}"#),
        format!("[{request},{},1,[{request}]]", elements.trim_end_matches(',')),
        format!("[{}{request}]", elements.repeat(999)),
        format!("[{}{request}]", elements.repeat(1000)),
        format!("[{long}]"),
        long.clone(),
        long[1..long.len() - 1].to_owned(),
        format!("{request}{space}"),
        format!("{space}{request}"),
        format!("{request}{space}x"),
        request.replace("xx\"]", "xx\"}"),
        request.replace("xx\"]", "xx\u{1}\"]"),
        request[..request.len() - 1].to_owned(),
        format!("[{}", "[".repeat(700_000)),
    ] {
        for is_utf8 in [true, false] {
            let mut bytes = text.clone().into_bytes();
            if !is_utf8 && let Some(byte) = bytes.iter_mut().rev().find(|byte| **byte == b'x') {
                *byte = 0xff;
            }
            for input in [post(&bytes), bytes.clone()] {
                let mut whole = driver(false);
                whole.receive(&input);
                let start = String::from_utf8_lossy(&text.as_bytes()[..60]).into_owned();
                let pieces = answer(&mut driver(false), &input);
                let context = format!("{start} {} {is_utf8}", input.len());
                assert_eq!(
                    String::from_utf8_lossy(&pieces),
                    String::from_utf8_lossy(&whole.out),
                    "{context}"
                );
                if !input.starts_with(b"POST") {
                    let [mut whole, mut pieces] = [(); 2].map(|()| socket(false));
                    whole.receive(&message(&bytes));
                    let found = answer(&mut pieces, &message(&bytes));
                    assert_eq!(frames(&found), frames(&whole.out), "{context}, in a frame");
                } else {
                    let chunks = answer(&mut driver(false), &chunked(&bytes));
                    assert!(chunks == whole.out, "{context}, in chunks");
                }
            }
        }
    }
}

#[test]
fn a_call_may_keep_the_memory_of_its_document() {
    let long = long();
    let request = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{long},"id":1}}"#);
    let short = r#"{"jsonrpc":"2.0","method":"n","params":[],"id":2}"#;
    let raw = [request.as_bytes(), b"\n", short.as_bytes(), b"\n"].concat();
    let http = [post(request.as_bytes()), post(short.as_bytes())].concat();
    let chunks = [chunked(request.as_bytes()), post(short.as_bytes())].concat();
    let frames = [message(&request), message(short)].concat();
    for input in [raw, http, chunks, frames] {
        for keeps in [true, false] {
            let is_framed = input.starts_with(&[0x81]);
            let mut driver = if is_framed { socket(keeps) } else { driver(keeps) };
            let replies = String::from_utf8_lossy(&answer(&mut driver, &input)).into_owned();
            let lengths = format!("[1,{}]", long.len());
            assert!(replies.contains(&lengths) && replies.contains("[1,2]"), "{replies}");
            assert_eq!(driver.service.kept.len(), usize::from(keeps));
            assert_eq!(driver.service.shared, None, "short documents are not shared");
            // A call that keeps the document counts its memory itself.
            assert_eq!(driver.held_bytes(), 0);
        }
    }
}
