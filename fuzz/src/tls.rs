//! TLS: records that come in, good ones, broken ones and none at all.
//!
//! What must hold whatever comes: nothing panics or hangs, what is answered is whole records, an
//! end that has failed stays so, and what an end hears is the front of what the other has said.

use std::sync::{Arc, LazyLock};

use ucall_proto::tls::{ClientConfig, ServerConfig, Stage};

use crate::random::Random;
use crate::tls_harness::{Authority, End, Pair, client, server};

/// Made once: an input says nothing of keys.
static CONFIGS: LazyLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = LazyLock::new(|| {
    let authority = Authority::new();
    let identity = authority.sign("localhost");
    (server(&[identity.identity()]), client(&authority))
});

/// Plaintext is a pattern, so that a piece out of place is seen.
const PATTERN: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Plays the script in `input`, or takes it for what a peer sends.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let (mut random, script) = Random::of_input(input);
    if script.first() == Some(&22) {
        receive_raw(script, &mut random);
    } else {
        Talk::new().play(script, &mut random);
    }
}

/// A server that is sent what may be no TLS at all.
fn receive_raw(bytes: &[u8], random: &mut Random) {
    let mut whole = End::new(Stage::server(CONFIGS.0.clone()).expect("a server"), Vec::new());
    whole.hear(bytes);
    let mut end = End::new(Stage::server(CONFIGS.0.clone()).expect("a server"), Vec::new());
    for piece in random.pieces(bytes) {
        end.hear(piece);
        check_records(&end.out);
    }
    assert_eq!(end.error.is_some(), whole.error.is_some());
    assert!(end.heard.is_empty(), "nothing can be heard before both ends agree");
    if end.error.is_some() {
        assert!(end.stage.session().is_none());
        assert!(end.stage.send(b"x", &mut Vec::new()).is_err());
    }
}

/// A connection, and what each end has said.
struct Talk {
    wire: Pair,
    said_by_client: Vec<u8>,
    said_by_server: Vec<u8>,
    is_tampered: bool,
}

impl Talk {
    fn new() -> Self {
        Self {
            wire: Pair::new(CONFIGS.0.clone(), CONFIGS.1.clone(), "localhost"),
            said_by_client: Vec::new(),
            said_by_server: Vec::new(),
            is_tampered: false,
        }
    }

    fn play(mut self, script: &[u8], random: &mut Random) {
        for step in script.chunks(2).take(64) {
            let amount = usize::from(*step.last().unwrap_or(&0));
            match step[0] % 8 {
                0..2 => carry(&mut self.wire.client, &mut self.wire.server, 8 * amount),
                2..4 => carry(&mut self.wire.server, &mut self.wire.client, 8 * amount),
                4 => say(&mut self.wire.client, &mut self.said_by_client, 200 * amount),
                5 => say(&mut self.wire.server, &mut self.said_by_server, 200 * amount),
                6 => self.is_tampered |= tamper(&mut self.wire.client.out, amount, random),
                _ => self.is_tampered |= tamper(&mut self.wire.server.out, amount, random),
            }
        }
        if !self.is_tampered {
            self.wire.talk(usize::MAX);
        }
        assert!(self.said_by_client.starts_with(&self.wire.server.heard));
        assert!(self.said_by_server.starts_with(&self.wire.client.heard));
        if !self.is_tampered {
            assert_eq!(self.wire.server.heard.len(), self.said_by_client.len());
            assert_eq!(self.wire.client.heard.len(), self.said_by_server.len());
            assert!(self.wire.server.stage.session().is_some());
        }
    }
}

/// Lets the other end hear so much of what one has to say.
fn carry(from: &mut End, to: &mut End, count: usize) {
    let count = count.min(from.out.len());
    let bytes: Vec<u8> = from.out.drain(..count).collect();
    to.hear(&bytes);
}

fn say(end: &mut End, said: &mut Vec<u8>, count: usize) {
    let start = said.len();
    let text: Vec<u8> = (start..start + count).map(|at| PATTERN[at % PATTERN.len()]).collect();
    if end.stage.send(&text, &mut end.out).is_ok() {
        said.extend(text);
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
