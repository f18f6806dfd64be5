//! TLS: valid records, broken ones, and bytes that are no TLS.
//!
//! For any input: nothing panics or hangs, the output is whole records, a failed end stays failed,
//! and the plaintext that an end receives is a prefix of what the other has sent.

use std::sync::{Arc, LazyLock};

use ucall_proto::tls::{ClientConfig, ServerConfig, TlsConnection};

use crate::random::Random;
use crate::tls_harness::{Authority, Endpoint, EndpointPair, client, server};

/// Made once: inputs do not affect the keys.
static CONFIGS: LazyLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = LazyLock::new(|| {
    let authority = Authority::new();
    let identity = authority.sign("localhost");
    (server(&[identity.identity()]), client(&authority))
});

/// Plaintext is a pattern, so that a misplaced piece is detected.
const PATTERN: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Plays the script in `input`, or takes it as the bytes of a peer.
///
/// # Panics
/// If a promise is broken.
pub fn run(input: &[u8]) {
    let (mut random, script) = Random::of_input(input);
    if script.first() == Some(&22) {
        receive_raw(script, &mut random);
    } else {
        Script::new().play(script, &mut random);
    }
}

/// A server that receives bytes that may be no TLS at all.
fn receive_raw(bytes: &[u8], random: &mut Random) {
    let mut whole =
        Endpoint::new(TlsConnection::server(CONFIGS.0.clone()).expect("a server"), Vec::new());
    whole.receive(bytes);
    let mut end =
        Endpoint::new(TlsConnection::server(CONFIGS.0.clone()).expect("a server"), Vec::new());
    for piece in random.pieces(bytes) {
        end.receive(piece);
        check_records(&end.out);
    }
    assert_eq!(end.error.is_some(), whole.error.is_some());
    assert!(end.received.is_empty(), "nothing can be heard before both ends agree");
    if end.error.is_some() {
        assert!(end.tls.session().is_none());
        assert!(end.tls.send(b"x", &mut Vec::new()).is_err());
    }
}

/// A connection, and the plaintext that each end has sent.
struct Script {
    endpoints: EndpointPair,
    sent_by_client: Vec<u8>,
    sent_by_server: Vec<u8>,
    is_tampered: bool,
}

impl Script {
    fn new() -> Self {
        Self {
            endpoints: EndpointPair::new(CONFIGS.0.clone(), CONFIGS.1.clone(), "localhost"),
            sent_by_client: Vec::new(),
            sent_by_server: Vec::new(),
            is_tampered: false,
        }
    }

    fn play(mut self, script: &[u8], random: &mut Random) {
        for step in script.chunks(2).take(64) {
            let amount = usize::from(*step.last().unwrap_or(&0));
            match step[0] % 8 {
                0..2 => {
                    transfer(&mut self.endpoints.client, &mut self.endpoints.server, 8 * amount)
                }
                2..4 => {
                    transfer(&mut self.endpoints.server, &mut self.endpoints.client, 8 * amount)
                }
                4 => {
                    send_pattern(&mut self.endpoints.client, &mut self.sent_by_client, 200 * amount)
                }
                5 => {
                    send_pattern(&mut self.endpoints.server, &mut self.sent_by_server, 200 * amount)
                }
                6 => self.is_tampered |= tamper(&mut self.endpoints.client.out, amount, random),
                _ => self.is_tampered |= tamper(&mut self.endpoints.server.out, amount, random),
            }
        }
        if !self.is_tampered {
            self.endpoints.deliver(usize::MAX);
        }
        assert!(self.sent_by_client.starts_with(&self.endpoints.server.received));
        assert!(self.sent_by_server.starts_with(&self.endpoints.client.received));
        if !self.is_tampered {
            assert_eq!(self.endpoints.server.received.len(), self.sent_by_client.len());
            assert_eq!(self.endpoints.client.received.len(), self.sent_by_server.len());
            assert!(self.endpoints.server.tls.session().is_some());
        }
    }
}

/// Passes a number of bytes from one end to the other.
fn transfer(from: &mut Endpoint, to: &mut Endpoint, count: usize) {
    let count = count.min(from.out.len());
    let bytes: Vec<u8> = from.out.drain(..count).collect();
    to.receive(&bytes);
}

fn send_pattern(end: &mut Endpoint, sent: &mut Vec<u8>, count: usize) {
    let start = sent.len();
    let text: Vec<u8> = (start..start + count).map(|at| PATTERN[at % PATTERN.len()]).collect();
    if end.tls.send(&text, &mut end.out).is_ok() {
        sent.extend(text);
    }
}

/// Changes, loses or repeats something on the way; whether there was anything.
fn tamper(bytes: &mut Vec<u8>, amount: usize, random: &mut Random) -> bool {
    if bytes.is_empty() {
        return false;
    }
    let at = amount * bytes.len() / 256;
    match random.below(3) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => drop(bytes.remove(at)),
        _ => bytes.insert(at, bytes[at]),
    }
    true
}

/// Whole records, one after another (RFC 8446 section 5.1).
fn check_records(mut bytes: &[u8]) {
    while let [kind, 3, 1 | 3, high, low, rest @ ..] = bytes {
        assert!((20..=23).contains(kind));
        let len = usize::from(*high) << 8 | usize::from(*low);
        bytes = rest.get(len..).expect("a whole record");
    }
    assert!(bytes.is_empty(), "no record: {}", bytes.escape_ascii());
}
