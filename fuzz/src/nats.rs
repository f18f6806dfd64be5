//! What a hostile NATS broker, or any client behind it, sends to a server of calls.

use std::sync::Arc;
use std::time::Instant;

use ucall_proto::json::validate;
use ucall_proto::{Connection, NatsObserver, NatsOptions, NextAction, RpcError};

use crate::harness::Driver;
use crate::random::Random;
use crate::rpc_document::{self, Echo};

const PAYLOAD_BYTES_MAX: usize = 512;
const METHODS: [&str; 3] = ["a", "b", "c"];

#[derive(Debug)]
struct Ignore;

impl NatsObserver for Ignore {
    fn call_ended(&self, _: usize, _: Instant, _: Option<&RpcError>) {}
}

/// The replies, and whether the connection ends, are the same however the bytes are split. All that
/// is sent is an operation of the protocol, whose payload is valid JSON, and not above the broker's
/// limit.
///
/// # Panics
/// If that does not hold.
pub fn run(input: &[u8]) {
    let (mut random, bytes) = Random::of_input(input);
    let whole = answer(&[bytes]);
    assert_eq!(answer(&bytes.chunks(1).collect::<Vec<_>>()), whole);
    assert_eq!(answer(&random.pieces(bytes)), whole);
    let mut rest = whole.0.as_slice();
    while !rest.is_empty() {
        rest = check(rest);
    }
}

fn answer(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut driver: Driver<Echo> = rpc_document::driver();
    driver.limits.body_bytes_max = 256;
    let options = NatsOptions {
        methods: METHODS.map(str::to_owned).to_vec(),
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        calls_max: 8,
        calls_bytes_max: 1 << 20,
        observer: Arc::new(Ignore),
    };
    driver.connection = Connection::to_broker(driver.now, &driver.limits, options);
    for piece in pieces {
        driver.receive(piece);
    }
    (driver.sent_bytes(), driver.connection.next_action() == NextAction::Close)
}

/// Checks the operation that `sent` starts with; returns what follows it.
fn check(sent: &[u8]) -> &[u8] {
    let end = sent.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let (line, rest) = sent.split_at(end);
    let line = line.strip_suffix(b"\r\n").expect("CRLF");
    if line == b"PONG" {
        return rest;
    }
    let number = |text: &[u8]| -> usize {
        std::str::from_utf8(text).expect("digits").parse().expect("a number")
    };
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let (headers, total) = match parts[..] {
        [b"PUB", _, total] => (0, number(total)),
        [b"HPUB", _, headers, total] => (number(headers), number(total)),
        _ => panic!("{}", line.escape_ascii()),
    };
    let (content, rest) = rest.split_at(total);
    assert_eq!(validate(&content[headers..], 64), Ok(()));
    assert!(headers > 0 || total <= PAYLOAD_BYTES_MAX);
    rest.strip_prefix(b"\r\n").expect("CRLF")
}
