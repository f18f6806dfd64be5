//! A relay whose upstreams and callers are hostile: its connections, slots, retries and breakers.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use ucall_proto::json::validate;
use ucall_relay::{RelayHarness, RelayOptions, Rewrite, UpstreamAddress, UpstreamOptions};
use ucall_server::{NativeOutcome, Token};

use crate::random::Random;

const NESTING_MAX: usize = ucall_proto::Limits::NESTING_MAX;
const REPLY_BYTES_MAX: usize = 256;
const HELD_BYTES_MAX: usize = 16 * 1024;
const SOCKETS_MAX: usize = 5;
const STEPS: usize = 60;
/// Before the number of a call, in its params.
const MARKER: &str = r#""call":"<"#;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Each call gets one reply, in time, and its own if the upstreams are honest. No call is sent
/// twice unless it is idempotent. Results, items and data are valid JSON on one line. Sockets and
/// memory stay below their limits. Once the time of all calls is over, nothing is left of them.
///
/// # Panics
/// If that is not so.
pub fn run(input: &[u8]) {
    let (random, bytes) = Random::of_input(input);
    let mut run = Run::new(random, bytes);
    for _ in 0..STEPS {
        run.step();
        run.end_turn();
    }
    run.finish();
}

struct Run<'a> {
    random: Random,
    relay: RelayHarness,
    /// What upstreams send, from here on.
    bytes: &'a [u8],
    calls: Vec<CallModel>,
    by_token: HashMap<Token, usize>,
    /// Whether upstreams reply to each call once, with its number.
    is_honest: bool,
    /// The sockets and calls with a reply.
    answered: HashSet<(u32, String)>,
}

struct CallModel {
    token: Token,
    is_idempotent: bool,
    is_stream: bool,
    deadline: Instant,
    is_waiting: bool,
}

impl<'a> Run<'a> {
    fn new(mut random: Random, bytes: &'a [u8]) -> Self {
        let names = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "http://127.0.0.1:3"];
        let count = 1 + random.below(names.len());
        let first = random.below(names.len() + 1 - count);
        let resolve = |name: &&str| UpstreamAddress::parse(name, &UpstreamOptions::default());
        let upstreams = names.iter().skip(first).take(count).filter_map(|it| resolve(it).ok());
        let options = RelayOptions {
            methods: vec!["up.*".to_owned()],
            upstreams: upstreams.collect(),
            idempotent: vec!["up.get".to_owned()],
            hash_param: random.one_in(4).then(|| "n".to_owned()),
            rewrite: Rewrite::default(),
            timeout: TIMEOUT,
            outstanding_max: 1 + random.below(8),
            connection_outstanding_max: 4,
            failures_max: 1 + random.below(3) as u32,
            health: None,
            reply_bytes_max: REPLY_BYTES_MAX,
            request_bytes_max: 1 << 20,
        };
        let relay = RelayHarness::new(options, HELD_BYTES_MAX, SOCKETS_MAX);
        let is_honest = random.one_in(2);
        let (calls, by_token, answered) = (Vec::new(), HashMap::new(), HashSet::new());
        Self { random, relay, bytes, calls, by_token, is_honest, answered }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..3 => self.call(),
            3 => self.with_socket(|run, socket| {
                let error = io::Error::from(io::ErrorKind::ConnectionRefused);
                let result = if run.random.one_in(4) { Err(error) } else { Ok(()) };
                run.relay.connected(socket, result);
            }),
            4..6 => self.with_socket(Self::receive_bytes),
            6..8 => self.with_socket(Self::answer),
            8 => self.with_socket(|run, socket| {
                let is_sending = run.random.one_in(2);
                match run.relay.sockets().get_mut(&socket) {
                    Some(found) if is_sending && found.is_open => found.is_sending = true,
                    _ => run.relay.finish_send(socket),
                }
            }),
            9 => self.with_socket(|run, socket| {
                run.relay.disconnect(socket, io::ErrorKind::UnexpectedEof.into());
            }),
            10 => self.relay.now += Duration::from_millis(self.random.below(1500) as u64),
            _ => self.change_call(),
        }
    }

    fn call(&mut self) {
        let number = self.calls.len();
        let is_idempotent = self.random.one_in(3);
        let is_stream = self.random.one_in(4);
        let timeout_ms = 1 + self.random.below(3000) as u64;
        let token = if is_stream { r#","progressToken":1"# } else { "" };
        let meta = format!(r#"{{"timeout_ms":{timeout_ms}{token}}}"#);
        let filler = "x".repeat(self.random.below(40));
        let params = format!(r#"{{"n":{},"call":"<{number}>","x":"{filler}"}}"#, number % 3);
        let method = if is_idempotent { "up.get" } else { "up.f" };
        if let Ok(token) = self.relay.call(method, &params, &meta) {
            let deadline = self.relay.now + TIMEOUT.min(Duration::from_millis(timeout_ms));
            self.by_token.insert(token, number);
            let is_waiting = true;
            self.calls.push(CallModel { token, is_idempotent, is_stream, deadline, is_waiting });
        }
    }

    fn with_socket(&mut self, act: impl FnOnce(&mut Self, u32)) {
        let sockets: Vec<u32> = self.relay.sockets().keys().copied().collect();
        if !sockets.is_empty() {
            let socket = sockets[self.random.below(sockets.len())];
            act(self, socket);
        }
    }

    fn receive_bytes(&mut self, socket: u32) {
        if self.is_honest {
            return;
        }
        let (piece, rest) = self.bytes.split_at(self.random.below(self.bytes.len() + 1));
        self.bytes = rest;
        self.relay.receive(socket, piece);
    }

    /// Replies to a call that the socket was sent, or sends an item.
    fn answer(&mut self, socket: u32) {
        let Some(found) = self.relay.sockets().get(&socket) else { return };
        let text = String::from_utf8_lossy(&found.sent).into_owned();
        let is_http = text.starts_with("POST");
        let calls: Vec<&str> = text.split(MARKER).skip(1).collect();
        if calls.is_empty() {
            return;
        }
        let call = calls[self.random.below(calls.len())];
        let Some((number, rest)) = call.split_once('>') else { return };
        let id = rest.split(r#""id":"#).nth(1).unwrap_or_default();
        let id: String = id.chars().take_while(char::is_ascii_digit).collect();
        // A second reply to an id may be taken for that of a later call.
        if !self.answered.insert((socket, number.to_owned())) && self.is_honest {
            return;
        }
        let kind = if self.is_honest { 3 } else { self.random.below(4) };
        let body = match kind {
            0 => format!(r#"{{"id":{id},"error":{{"code":-1,"message":"m","data":[1, 2]}}}}"#),
            1 => format!(r#"{{"method":"$/progress","params":{{"token":{id},"value":[1, 2]}}}}"#),
            _ => format!(r#"{{"id":{id},"result":["<{number}>", 2]}}"#),
        };
        let body = body.replace(' ', "\n");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let whole = if is_http { head + &body } else { body };
        let pieces = self.random.pieces(whole.as_bytes());
        for piece in pieces {
            self.relay.receive(socket, piece);
        }
        if !self.is_honest && self.random.one_in(8) {
            self.relay.receive(socket, whole.as_bytes());
        }
    }

    fn change_call(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let index = self.random.below(self.calls.len());
        let call = &mut self.calls[index];
        match self.random.below(3) {
            0 => self.relay.set_paused(call.token, true),
            1 => self.relay.set_paused(call.token, false),
            _ => {
                self.relay.cancel(call.token);
                call.is_waiting = false;
            }
        }
    }

    fn end_turn(&mut self) {
        self.relay.end_turn();
        for (token, outcome) in self.relay.replies() {
            let number = self.by_token[&token];
            let call = &mut self.calls[number];
            assert!(call.is_waiting, "a call has one reply");
            match &outcome {
                NativeOutcome::Item(item) => {
                    assert!(call.is_stream);
                    check_text(item);
                }
                NativeOutcome::Reply(reply) => {
                    call.is_waiting = false;
                    match reply {
                        Ok(result) => {
                            check_text(result);
                            let expected = format!(r#"["<{number}>", 2]"#);
                            assert!(!self.is_honest || *result == expected.as_bytes());
                        }
                        Err(error) => error.data.iter().for_each(|data| check_text(data)),
                    }
                }
            }
        }
        let now = self.relay.now;
        assert!(self.calls.iter().all(|call| !call.is_waiting || call.deadline > now));
        assert!(self.relay.sockets().len() <= SOCKETS_MAX);
        assert!(self.relay.held_bytes() <= HELD_BYTES_MAX);
    }

    /// Counts how often each call was sent, over all connections.
    fn check_sent(&self) {
        let text = String::from_utf8_lossy(self.relay.sent());
        for (number, call) in self.calls.iter().enumerate() {
            let times = text.matches(&format!("{MARKER}{number}>")).count();
            assert!(call.is_idempotent || times <= 1, "call {number} was sent {times} times");
        }
    }

    fn finish(&mut self) {
        for _ in 0..10_000 {
            let sockets = self.relay.sockets().iter().filter(|(_, socket)| socket.is_sending);
            let sending: Vec<u32> = sockets.map(|(number, _)| *number).collect();
            sending.into_iter().for_each(|socket| self.relay.finish_send(socket));
            let Some(deadline) = self.relay.deadline() else { break };
            self.relay.now = self.relay.now.max(deadline);
            self.end_turn();
        }
        self.check_sent();
        assert!(self.calls.iter().all(|call| !call.is_waiting), "each call has a reply");
        assert_eq!((self.relay.waiting(), self.relay.held_bytes()), (0, 0));
        assert_eq!(self.relay.sockets().len(), 0);
    }
}

fn check_text(text: &[u8]) {
    assert_eq!(validate(text, NESTING_MAX), Ok(()));
    assert!(text.len() < 2 * REPLY_BYTES_MAX);
    assert!(!text.contains(&b'\n'), "a reply is a line");
}
