//! A connection with a small service, and a clock that the test moves.

use std::time::{Duration, Instant};

use ucall_buffer::{Payload, SharedMemory, Target};
use ucall_proto::http1::{AccessRules, ReplyWriter};
use ucall_proto::json::{Reader, ValueKind};
use ucall_proto::{
    Call, CallNumber, CallOutcome, Connection, Drain, Environment, Limits, LoadState, NextAction,
    Reply, Reservation, ResultPart, RpcError, Scratch, Service,
};

/// What the specification's examples call; `later`, which is deferred; `stream`, with items if its
/// caller takes them; and `report`, with items if there are any.
#[derive(Default)]
pub struct Examples {
    pub deferred: Vec<CallNumber>,
    pub cancelled: Vec<CallNumber>,
    pub notified: Vec<String>,
}

impl Service for Examples {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let method = String::from_utf8(call.method.unescaped().into_owned()).unwrap();
        if call.id.is_none() {
            self.notified.push(method.clone());
        }
        let result = match method.as_str() {
            "subtract" => subtract(call.params).to_string(),
            "sum" => integers(call.params).iter().sum::<i64>().to_string(),
            "get_data" => r#"["hello",5]"#.to_owned(),
            "echo" => String::from_utf8(call.params.unwrap_or(b"null").to_vec()).unwrap(),
            "large" => format!("\"{}\"", "x".repeat(integers(call.params)[0] as usize)),
            "silent" => return CallOutcome::Done,
            "later" => {
                self.deferred.push(call.number);
                return CallOutcome::Deferred;
            }
            "stream" => {
                self.deferred.push(call.number);
                return if call.takes_items() {
                    CallOutcome::Stream
                } else {
                    CallOutcome::Deferred
                };
            }
            "report" => {
                self.deferred.push(call.number);
                return CallOutcome::Reporting;
            }
            "$/cancelRequest" => return CallOutcome::CancelRequest,
            "update" | "notify_hello" | "notify_sum" => "null".to_owned(),
            _ => {
                let error = RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found");
                reply.error(&error);
                return CallOutcome::Done;
            }
        };
        reply.result().extend_from_slice(result.as_bytes());
        CallOutcome::Done
    }

    fn cancel(&mut self, number: CallNumber) {
        self.cancelled.push(number);
    }
}

fn subtract(params: Option<&[u8]>) -> i64 {
    let values = integers(params);
    values[0] - values[1]
}

/// The integers of params: by position, or `minuend` and `subtrahend` by name.
fn integers(params: Option<&[u8]>) -> Vec<i64> {
    let mut reader = Reader::new(params.unwrap());
    let mut values = Vec::new();
    if reader.kind() == ValueKind::Array {
        reader.enter();
        while reader.next_item() {
            values.push(reader.number().as_i64().unwrap());
        }
        return values;
    }
    reader.enter();
    while let Some(key) = reader.next_key() {
        let value = reader.number().as_i64().unwrap();
        let index = if key.raw() == b"subtrahend" { values.len() } else { 0 };
        values.insert(index, value);
    }
    values
}

pub struct Driver<S = Examples> {
    pub connection: Connection,
    pub service: S,
    pub limits: Limits,
    pub now: Instant,
    pub queued_bytes: usize,
    pub drain: Drain,
    pub load: LoadState,
    pub out: Vec<u8>,
    /// The lengths of the parts that were sent without a copy.
    pub attached: Vec<usize>,
    pub access: AccessRules,
    replies: ReplyWriter,
    scratch: Scratch,
    /// What other connections hold.
    elsewhere: Reservation,
}

impl Driver {
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub fn with_limits(limits: Limits) -> Self {
        Self::serving(Examples::default(), limits)
    }
}

impl<S: Service> Driver<S> {
    pub fn serving(service: S, limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            connection: Connection::new(now, &limits),
            service,
            limits,
            now,
            queued_bytes: 0,
            drain: Drain::No,
            load: LoadState::Normal,
            out: Vec::new(),
            attached: Vec::new(),
            access: AccessRules::new(true, &[], &[]).unwrap(),
            replies: ReplyWriter::default(),
            scratch: Scratch::default(),
            elsewhere: Reservation::default(),
        }
    }

    fn with<T>(&mut self, step: impl FnOnce(&mut Connection, &mut Environment<'_, S>) -> T) -> T {
        let mut environment = Environment {
            limits: &self.limits,
            access: &self.access,
            now: self.now,
            replies: &mut self.replies,
            service: &mut self.service,
            scratch: &mut self.scratch,
            out: &mut self.out,
            queued_bytes: self.queued_bytes,
            drain: self.drain,
            load: self.load,
        };
        let outcome = step(&mut self.connection, &mut environment);
        if !self.scratch.has_attachments() {
            return outcome;
        }
        let attachments = self.scratch.take_attachments();
        self.attached.extend(attachments.iter().map(|it| it.bytes.len()));
        let mut out = Payload::from(std::mem::take(&mut self.out));
        out.insert(attachments.into_iter().map(|it| (it.at, it.bytes)));
        self.out = out.slices_from(0).collect::<Vec<_>>().concat();
        outcome
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.receive_in_place(&mut bytes.to_vec());
    }

    pub fn receive_in_place(&mut self, bytes: &mut [u8]) {
        self.with(|connection, environment| connection.receive(bytes, environment));
    }

    pub fn return_target(&mut self, target: Target) {
        self.with(|connection, environment| {
            connection.return_target(target, environment);
        });
    }

    pub fn poll_target(&mut self) -> Option<Target> {
        self.with(|connection, environment| connection.poll_target(environment))
    }

    pub fn handle_progress(&mut self) {
        self.with(|connection, environment| connection.handle_progress(environment));
    }

    /// Changes the bytes that other connections have reserved.
    pub fn hold_in_others(&mut self, before: usize, now: usize) {
        assert_eq!(self.elsewhere.bytes(), before);
        self.elsewhere.resize(now, self.scratch.budget());
    }

    pub fn held_bytes(&self) -> usize {
        self.scratch.budget().bytes()
    }

    /// The connection closes.
    pub fn release(&mut self) {
        self.connection = Connection::new(self.now, &self.limits);
    }

    pub fn handle_eof(&mut self) {
        self.with(|connection, environment| connection.handle_eof(environment));
    }

    pub fn share_memory(&mut self, memory: Option<Box<dyn SharedMemory>>, was_sent: bool) {
        self.with(|connection, environment| {
            connection.share_memory(memory, was_sent, environment);
        });
    }

    pub fn decode_piece(&mut self) {
        self.with(|connection, environment| connection.decode_piece(environment));
    }

    pub fn resume(&mut self) {
        self.with(|connection, environment| connection.resume(environment));
    }

    pub fn complete(&mut self, number: CallNumber, outcome: Result<&[u8], &RpcError>) {
        self.with(|connection, environment| {
            connection.complete(number, outcome, environment);
        });
    }

    pub fn complete_with_parts(&mut self, number: CallNumber, text: &[u8], parts: Vec<ResultPart>) {
        self.with(|connection, environment| {
            connection.complete_with_parts(number, text, parts, environment);
        });
    }

    pub fn item(&mut self, number: CallNumber, value: &str) -> bool {
        self.with(|connection, environment| {
            connection.write_item(number, value.as_bytes(), environment)
        })
    }

    /// Advances the clock; handles each deadline that passes.
    pub fn advance_time(&mut self, time: Duration) {
        self.now += time;
        while self.connection.deadline(&self.limits).is_some_and(|deadline| deadline <= self.now) {
            self.with(|connection, environment| connection.handle_timeout(environment));
            if self.connection.next_action() == NextAction::Close {
                break;
            }
        }
    }

    pub fn sent(&mut self) -> String {
        String::from_utf8(self.sent_bytes()).unwrap()
    }

    pub fn sent_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

/// The output of a connection for these pieces, and its next action.
fn answer_in<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, NextAction) {
    let mut driver = Driver::new();
    for piece in pieces {
        driver.receive(piece);
        while driver.connection.is_decoding() {
            driver.decode_piece();
        }
    }
    (driver.sent(), driver.connection.next_action())
}

/// What a connection answers to `input`, proven to be the same however the input is cut.
pub fn answer(input: impl AsRef<[u8]>) -> (String, NextAction) {
    let input = input.as_ref();
    let whole = answer_in([input]);
    for at in 0..=input.len() {
        let (front, back) = input.split_at(at);
        assert_eq!(answer_in([front, back]), whole, "cut at {at}");
    }
    assert_eq!(answer_in(input.chunks(1)), whole, "byte by byte");
    whole
}

/// The bodies of HTTP replies that follow each other, each proven to have its length.
pub fn bodies(mut replies: &str) -> Vec<String> {
    let mut bodies = Vec::new();
    while !replies.is_empty() {
        let (head, rest) = replies.split_once("\r\n\r\n").expect("a head with an end");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map_or(0, |length| length.parse().unwrap());
        let (body, rest) = rest.split_at(length);
        bodies.push(body.to_owned());
        replies = rest;
    }
    bodies
}

/// An HTTP request with this body.
pub fn post(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub fn sum(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"sum","params":[{id},1],"id":{id}}}"#)
}

pub fn sum_reply(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, id + 1)
}

pub fn later(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"later","id":{id}}}"#)
}
