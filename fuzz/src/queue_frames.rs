//! The frames of a queue's link: any bytes, before the handshake and after it.
//!
//! For any input: nothing panics, the verdict and the messages are the same however the stream is
//! split and received, the stored bytes are within the window, a session manager that has refused a
//! link takes nothing more from it, and its whole output is frames.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_buffer::Payload;
use ucall_queue::{
    Acknowledge, Encoding, Identity, Incoming, LinkKey, Options, Outgoing, ProtocolError, Role,
    SessionManager, TakeResult, WakeFlag,
};

use crate::queue_pair::bytes;
use crate::random::Random;

const HEADER_BYTES: usize = 24;
const SERVER: Identity = Identity([1; 16]);
const CLIENT: Identity = Identity([2; 16]);
const WINDOW_BYTES: usize = 1 << 18;
/// The bytes that the window accepts beyond its size.
const SLACK_BYTES: usize = 1 << 20;
/// Of a message of the flood.
const MESSAGE_BYTES: usize = 80_000;

/// The outcome of a stream: the reason for a refusal, and the messages before it.
#[derive(PartialEq, Eq, Debug)]
struct Came {
    verdict: Result<(), ProtocolError>,
    messages: Vec<(u64, Encoding, bool, Vec<u8>)>,
}

/// Passes `input` to a session manager as the bytes of a peer.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let (mut random, stream) = Random::of_input(input);
    let setting = Setting {
        is_server: !random.one_in(4),
        is_handshake_done: !random.one_in(4),
        acknowledge: [Acknowledge::Received, Acknowledge::Taken, Acknowledge::Explicit]
            [random.below(3)],
        message_bytes_max: if random.one_in(2) { 1 << 20 } else { 100 },
        now: Instant::now(),
    };
    let flooded = random.one_in(32).then(|| [stream, &flood()].concat());
    let stream = flooded.as_deref().unwrap_or(stream);
    let whole = Receiver::new(&setting).receive([stream], How::AsItCame);
    let pieces = random.pieces(stream);
    assert_eq!(Receiver::new(&setting).receive(pieces.clone(), How::AsItCame), whole);
    assert_eq!(Receiver::new(&setting).receive(pieces.clone(), How::IntoTargets), whole);
    // A link that got a refusal is closed in the next turn, whatever else arrives.
    let in_turns = Receiver::new(&setting).receive(pieces, How::InTurns);
    assert!(whole.messages.starts_with(&in_turns.messages));
    assert!(in_turns == whole || in_turns.verdict.is_ok());
}

/// How a stream is received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    AsItCame,
    /// Into the session manager's own target, if it has one.
    IntoTargets,
    /// With all that a driver does after each piece.
    InTurns,
}

struct Setting {
    is_server: bool,
    is_handshake_done: bool,
    acknowledge: Acknowledge,
    message_bytes_max: usize,
    now: Instant,
}

/// A session manager that has something to send, and its one link.
struct Receiver {
    manager: SessionManager,
    key: LinkKey,
    options: Options,
    now: Instant,
    written: Vec<u8>,
}

impl Receiver {
    fn new(setting: &Setting) -> Self {
        let (acknowledge, message_bytes_max) = (setting.acknowledge, setting.message_bytes_max);
        let window_bytes = WINDOW_BYTES;
        let options =
            Options { acknowledge, message_bytes_max, window_bytes, ..Options::default() };
        let identity = if setting.is_server { SERVER } else { CLIENT };
        let mut secret = 0;
        let random = move || {
            secret += 1;
            secret
        };
        let wake_flag = Arc::new(WakeFlag::new(|| {}));
        let now = setting.now;
        let mut manager = SessionManager::new(
            identity,
            setting.is_server,
            options.clone(),
            wake_flag,
            random,
            now,
        );
        let role = if setting.is_server { Role::Accepted } else { Role::Dialed };
        let key = manager.open_link(role, now);
        let mut receiver = Self { manager, key, options, now, written: Vec::new() };
        if setting.is_handshake_done {
            receiver.handshake_done(setting.is_server);
        }
        receiver.put_some();
        receiver.turn();
        receiver
    }

    fn handshake_done(&mut self, is_server: bool) {
        let (kind, peer) = if is_server { (1, CLIENT) } else { (2, SERVER) };
        self.manager.handle_received(self.key, &hello(kind, peer), self.now).expect("a handshake");
    }

    /// So that there is a message to acknowledge; the peer may not be connected yet.
    fn put_some(&self) {
        for number in 0..3 {
            let message = Outgoing::copied(Encoding::Bytes, &[7; 40][..10 * number]);
            let _ = self.manager.outbox.clone().put(&[], &message);
        }
    }

    fn receive<'a>(mut self, pieces: impl IntoIterator<Item = &'a [u8]>, how: How) -> Came {
        let mut verdict = Ok(());
        for piece in pieces {
            verdict = self.receive_piece(piece, how);
            if how == How::InTurns {
                self.turn();
            }
            if verdict.is_err() {
                break;
            }
        }
        self.turn();
        if verdict.is_err() {
            // The link is removed: later bytes on it are dropped.
            assert_eq!(self.manager.handle_received(self.key, &[0; 64], self.now), Ok(()));
            assert!(self.manager.poll_target(self.key).is_none());
        }
        let messages = self.take_all();
        self.end();
        Came { verdict, messages }
    }

    fn receive_piece(&mut self, mut piece: &[u8], how: How) -> Result<(), ProtocolError> {
        while how == How::IntoTargets && !piece.is_empty() {
            let Some(mut target) = self.manager.poll_target(self.key) else { break };
            piece = &piece[target.write(piece)..];
            self.manager.return_target(self.key, target, self.now)?;
        }
        self.manager.handle_received(self.key, piece, self.now)
    }

    /// What a driver does after each read.
    fn turn(&mut self) {
        while let Some(key) = self.manager.poll_ready() {
            let mut payload = Payload::new();
            self.manager.poll_output(key, &mut payload, self.now);
            payload.slices_from(0).for_each(|slice| self.written.extend(slice));
        }
        while self.manager.poll_action().is_some() {}
        self.manager.finish_turn();
    }

    fn take_all(&mut self) -> Vec<(u64, Encoding, bool, Vec<u8>)> {
        let inbox = self.manager.inbox.clone();
        let mut weight = 0;
        let mut messages = Vec::new();
        while let TakeResult::Message(message) = inbox.take(&[]) {
            weight += message.weight;
            messages.push(said(&message));
        }
        let last = messages.last().map_or(0, |(.., bytes)| bytes.len());
        assert!(weight <= self.options.window_bytes + SLACK_BYTES + last + HEADER_BYTES * 32);
        messages
    }

    /// Time passes until every session has expired; none is left.
    fn end(mut self) {
        check_frames(&self.written);
        self.manager.abort(self.now);
        for _ in 0..3 {
            self.now += Duration::from_secs(60);
            self.manager.handle_timeout(self.now);
            self.turn();
        }
        assert!(self.manager.is_closed());
    }
}

fn said(message: &Incoming) -> (u64, Encoding, bool, Vec<u8>) {
    (message.sequence, message.encoding, message.redelivered, bytes(message))
}

fn header(kind: u8, sequence: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(b"uclQ");
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes
}

/// Messages beyond the window, after any others: numbers that were received before are skipped.
fn flood() -> Vec<u8> {
    let message = |sequence| {
        let mut bytes = header(4, sequence, MESSAGE_BYTES as u64);
        // One segment.
        bytes[2] = 1;
        bytes.resize(HEADER_BYTES + MESSAGE_BYTES, 0);
        bytes
    };
    let count = 2 * (WINDOW_BYTES + SLACK_BYTES) / MESSAGE_BYTES;
    (1..=count as u64).flat_map(message).collect()
}

fn hello(kind: u8, identity: Identity) -> Vec<u8> {
    let mut bytes = header(kind, 0, 104);
    bytes.extend(b"ucall-q2");
    bytes.extend(identity.0);
    bytes.extend([9; 16]);
    bytes.extend([0; 16]);
    for number in [0u64, 0, 1 << 20, 1, 1 << 20, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// Headers of known kinds, each followed by a body of its length.
fn check_frames(mut bytes: &[u8]) {
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        assert!((1..=16).contains(&header[0]), "a frame of kind {}", header[0]);
        assert_eq!(&header[4..8], b"uclQ");
        let length = u64::from_le_bytes(*header.last_chunk().expect("8 bytes"));
        bytes = rest.get(length as usize..).expect("a whole frame");
    }
    assert!(bytes.is_empty(), "no frame: {}", bytes.escape_ascii());
}
