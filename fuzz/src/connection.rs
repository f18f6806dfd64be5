//! A whole connection: any bytes in any pieces, late replies, time that passes, a drain.
//!
//! For any input: it never panics, its output is valid in its protocol, replies over HTTP are in
//! the order of their calls, each call is answered at most once, the items of a stream precede its
//! reply, and a connection whose peer has shut down its side ends, and then holds no memory.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use ucall_buffer::Target;
use ucall_proto::http1::{Method, Methods};
use ucall_proto::{
    Call, CallNumber, CallOutcome, Drain, Limits, NextAction, Reply, RpcError, Service,
};

use crate::harness::Driver;
use crate::random::Random;
use crate::reference;

/// Answers at once, with an error, later, after items or never, by the first letter of the method.
/// Routes have GET, which gets an empty response, and PUT, which is answered later or gets its
/// body.
#[derive(Default)]
struct Mixed {
    /// Texts of the ids, in the order of their calls.
    called: Vec<String>,
    deferred: Vec<(CallNumber, Content)>,
    /// Streams, each with the text of its id, also after their end.
    streams: Vec<(CallNumber, String)>,
    /// The document of the current call if it is shared, and those that deferred calls keep.
    document: Option<Arc<Vec<u8>>>,
    kept: Vec<Arc<Vec<u8>>>,
}

/// What a late reply consists of.
#[derive(Clone, Copy)]
enum Content {
    Result,
    Response,
}

/// What a connection sends of a call, with the text of the call's id.
enum Message {
    Item(String),
    Reply(String),
}

impl Service for Mixed {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        if let Some(id) = call.id {
            self.called.push(String::from_utf8(id.to_vec()).expect("proven to be UTF-8"));
        }
        match call.method.unescaped().first() {
            Some(b'$') => return CallOutcome::CancelRequest,
            Some(b'g') if call.takes_items() => {
                self.deferred.push((call.number, Content::Result));
                let id = call.id.expect("a notification takes no items").to_vec();
                self.streams.push((call.number, String::from_utf8(id).expect("UTF-8")));
                return CallOutcome::Stream;
            }
            Some(b'd' | b'g') => {
                self.kept.extend(self.document.clone());
                self.deferred.push((call.number, Content::Result));
                return CallOutcome::Deferred;
            }
            Some(b'e') => reply.error(&RpcError::new(-1, "as asked")),
            Some(b's') => {}
            _ => reply.result().extend_from_slice(call.params.unwrap_or(b"null")),
        }
        CallOutcome::Done
    }

    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.document = document.cloned();
    }

    fn cancel(&mut self, number: CallNumber) {
        let at = self.deferred.iter().position(|(deferred, _)| *deferred == number);
        self.deferred.swap_remove(at.expect("a call is cancelled once, before its reply"));
    }

    fn route_methods(&self, path: &[u8]) -> Methods {
        let named = |name| Methods::named(name).expect("the method of a route");
        match path {
            [b'/', b'r', ..] | b"/" => named("GET").union(named("PUT")),
            _ => Methods::default(),
        }
    }

    fn respond(&mut self, call: &Call<'_>, body: &[u8], reply: &mut Reply<'_>) -> CallOutcome {
        let head = call.head.expect("a route is over HTTP");
        assert!(self.route_methods(call.method.raw()).contains(head.method()));
        let body = match head.method() {
            Method::Put => body,
            _ => b"",
        };
        if body.first() == Some(&b'd') {
            self.deferred.push((call.number, Content::Response));
            return CallOutcome::Deferred;
        }
        reply.response().extend_from_slice(&response(body));
        CallOutcome::Done
    }
}

fn response(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Lets a connection live through `input`.
///
/// # Panics
/// When it breaks a promise.
pub fn run(input: &[u8]) {
    let (mut random, stream) = Random::of_input(input);
    let mut simulation = Simulation::new(&mut random);
    simulation.driver.limits.long_bytes_min = input.len() % 100;
    let pieces = random.pieces(stream);
    let is_eventful = random.one_in(2);
    if is_eventful && random.one_in(4) {
        simulation.driver.limits.held_bytes_max = random.below(2000);
    }
    for piece in pieces {
        simulation.receive(piece);
        if is_eventful {
            simulation.event(&mut random);
        }
    }
    if !is_eventful {
        check_cuts(stream, &mut simulation);
    }
    simulation.end(&mut random);
    let Simulation { driver, .. } = simulation;
    check_output(&driver.out, &driver.service.called);
}

/// One connection and its deferred calls.
struct Simulation {
    driver: Driver<Mixed>,
    /// The target for the next bytes, if the connection has one.
    target: Option<Target>,
}

impl Simulation {
    fn new(random: &mut Random) -> Self {
        let mut limits = Limits::default();
        limits.pipeline_max = 1 + random.below(4);
        limits.batch_calls_max = 1 + random.below(4);
        limits.reply_bytes_max = 100 + random.below(400);
        limits.body_bytes_max = if random.one_in(2) { 200 } else { 1 << 20 };
        Self { driver: Driver::serving(Mixed::default(), limits), target: None }
    }

    fn receive(&mut self, mut piece: &[u8]) {
        while let Some(mut target) = self.target.take() {
            piece = &piece[target.write(piece)..];
            if !target.is_full() {
                self.target = Some(target);
                return;
            }
            self.driver.return_target(target);
            self.target = self.driver.poll_target();
        }
        if !piece.is_empty() && self.driver.connection.next_action() != NextAction::Close {
            self.driver.receive(piece);
        }
        if matches!(self.driver.connection.next_action(), NextAction::Receive) {
            self.target = self.driver.poll_target();
        }
    }

    /// Something that bytes do not do.
    fn event(&mut self, random: &mut Random) {
        match random.below(16) {
            0..4 => self.complete_one(random),
            12.. => self.send_item(random),
            4 => self.driver.queued_bytes = random.below(2) << 21,
            5 => self.driver.resume(),
            6 => self.pass_time(Duration::from_secs(random.below(40) as u64)),
            7 if random.one_in(4) => self.driver.drain = Drain::Serving,
            8 if random.one_in(4) => self.driver.drain = Drain::Refusing,
            _ => {}
        }
    }

    fn pass_time(&mut self, time: Duration) {
        if self.target.is_none() {
            self.driver.advance_time(time);
        } else {
            self.driver.now += time;
        }
    }

    /// Sends an item of a stream, whose value is the id of its call. After the end of the stream
    /// nothing may be sent.
    fn send_item(&mut self, random: &mut Random) {
        let streams = &self.driver.service.streams;
        if streams.is_empty() {
            return;
        }
        let (number, id) = streams[random.below(streams.len())].clone();
        let is_open = self.driver.service.deferred.iter().any(|(deferred, _)| *deferred == number);
        let before = self.driver.out.len();
        let is_taken = self.driver.item(number, &id);
        assert_eq!(is_taken, self.driver.out.len() > before);
        assert!(is_open || !is_taken, "an item after the reply");
    }

    fn complete_one(&mut self, random: &mut Random) {
        let count = self.driver.service.deferred.len();
        if count == 0 {
            return;
        }
        let (number, content) = self.driver.service.deferred.swap_remove(random.below(count));
        let long = [b"\"", &[b'x'; 600][..], b"\""].concat();
        let text: &[u8] = match random.below(3) {
            0 => return self.driver.complete(number, Err(&RpcError::new(-2, "as asked"))),
            1 => &long,
            _ => b"\"late\"",
        };
        match content {
            Content::Result => self.driver.complete(number, Ok(text)),
            Content::Response if random.one_in(2) => self.stream_response(number, random),
            Content::Response => self.driver.complete(number, Ok(&response(text))),
        }
    }

    /// Gives a response in parts. It ends with an empty text, or fails.
    fn stream_response(&mut self, number: CallNumber, random: &mut Random) {
        self.driver.item(number, "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..random.below(3) {
            self.driver.item(number, ["", "part"][random.below(2)]);
        }
        match random.one_in(4) {
            true => self.driver.complete(number, Err(&RpcError::new(-2, "as asked"))),
            false => self.driver.complete(number, Ok(b"")),
        }
    }

    /// The peer ends its side, everything that waited happens, and the discarding times out.
    fn end(&mut self, random: &mut Random) {
        if let Some(target) = self.target.take() {
            self.driver.return_target(target);
        }
        self.driver.queued_bytes = 0;
        self.driver.handle_eof();
        self.driver.flush_output();
        while !self.driver.service.deferred.is_empty() {
            self.complete_one(random);
            self.driver.flush_output();
        }
        self.driver.advance_time(Duration::from_secs(1000));
        assert_eq!(self.driver.connection.next_action(), NextAction::Close);
        self.driver.release();
        assert_eq!(self.driver.held_bytes(), 0);
    }
}

impl Driver<Mixed> {
    /// The peer has received all output, so no request waits for it.
    fn flush_output(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.resume();
        let new_output = std::mem::replace(&mut self.out, out);
        self.out.extend(new_output);
    }
}

/// If a script has only bytes, the output is the same however they are split, except for `100
/// Continue`. The parser may read a line only when it is complete, so one more line ends the head.
fn check_cuts(stream: &[u8], simulation: &mut Simulation) {
    let mut limits = simulation.driver.limits.clone();
    limits.long_bytes_min = usize::MAX;
    let mut whole = Simulation { driver: Driver::serving(Mixed::default(), limits), target: None };
    whole.receive(stream);
    whole.receive(b"\n");
    simulation.receive(b"\n");
    let (in_pieces, whole) = (&simulation.driver, &whole.driver);
    assert_eq!(without_interim(&in_pieces.out), without_interim(&whole.out));
    assert_eq!(in_pieces.connection.next_action(), whole.connection.next_action());
    assert_eq!(in_pieces.service.called, whole.service.called);
}

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn without_interim(out: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(out).replace(&*String::from_utf8_lossy(INTERIM), "").into_bytes()
}

/// Reads all of the output as its protocol has it.
fn check_output(out: &[u8], called: &[String]) {
    if out.starts_with(b"HTTP/") {
        let (messages, frames) = check_http(out);
        // Replies are in the order of their calls. Some are missing: cancelled, or too large.
        let mut calls = called.iter();
        for message in messages {
            let is_called = match &message {
                Message::Item(id) => calls.clone().any(|call| call == id),
                Message::Reply(id) => calls.any(|call| call == id),
            };
            let (Message::Item(id) | Message::Reply(id)) = message;
            assert!(is_called, "{id} was not called by then: {called:?}");
        }
        check_unordered(check_frames(frames), calls.cloned().collect());
    } else {
        check_unordered(check_raw(out), called.to_vec());
    }
}

/// Checks replies that are sent as they finish.
fn check_unordered(messages: Vec<Message>, mut called: Vec<String>) {
    for message in messages {
        let (Message::Item(id) | Message::Reply(id)) = &message;
        let at = called.iter().position(|call| call == id);
        let at = at.expect("each call is answered once, after its items");
        if let Message::Reply(_) = message {
            called.swap_remove(at);
        }
    }
}

/// Parses consecutive HTTP replies; returns the ids of their results, and the frames after an
/// upgrade.
fn check_http(mut out: &[u8]) -> (Vec<Message>, &[u8]) {
    let mut ids = Vec::new();
    let mut is_last = false;
    while !out.is_empty() {
        if let Some(rest) = out.strip_prefix(INTERIM) {
            out = rest;
            continue;
        }
        assert!(!is_last, "nothing may follow a reply that says close");
        let at = out.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
        let head = std::str::from_utf8(&out[..at]).expect("a head in ASCII");
        let field = |name: &str| {
            let mut lines = head.split("\r\n").skip(1);
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        if head.starts_with("HTTP/1.1 101 ") {
            return (ids, &out[at..]);
        }
        is_last = head.contains("\r\nConnection: close\r\n");
        let is_chunked = head.contains("\r\nTransfer-Encoding: chunked\r\n");
        if is_chunked && head.starts_with("HTTP/1.1 200 ") {
            let content_type = field("Content-Type").expect("a type");
            out = check_chunks(&out[at..], content_type, &mut ids);
            continue;
        }
        let len: usize = match &head[..13] {
            "HTTP/1.1 204 " => 0,
            "HTTP/1.1 201 " if field("Content-Length").is_none() => {
                let (len, is_whole) = match field("Transfer-Encoding") {
                    Some(_) => chunked_len(&out[at..]),
                    // Over HTTP/1.0 the body ends with the connection.
                    None => (out.len() - at, true),
                };
                is_last |= !is_whole;
                len
            }
            "HTTP/1.1 200 " | "HTTP/1.1 201 " => {
                field("Content-Length").expect("a length").parse().expect("digits")
            }
            // The error of a route does not close the connection.
            _ => {
                assert!(is_last || field("Content-Type") == Some("application/json"), "{head}");
                at_most(field("Content-Length").expect("a length"), &out[at..])
            }
        };
        let (body, rest) = out[at..].split_at(len);
        if head.starts_with("HTTP/1.1 200 ") {
            ids.extend(check_message(body));
        }
        out = rest;
    }
    (ids, out)
}

/// The length of a chunked body, and whether it has its last chunk.
fn chunked_len(body: &[u8]) -> (usize, bool) {
    let mut at = 0;
    while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(b"0\r\n\r\n") {
            return (at + 5, true);
        }
        assert!(rest.starts_with(b"4\r\npart\r\n"), "chunks are whole, and none is empty");
        at += b"4\r\npart\r\n".len();
    }
    (at, false)
}

/// Parses the chunks of a stream, each an event or a line; returns what follows the last.
fn check_chunks<'a>(
    mut out: &'a [u8],
    content_type: &str,
    messages: &mut Vec<Message>,
) -> &'a [u8] {
    let (prefix, suffix): (&[u8], &[u8]) = match content_type {
        "text/event-stream" => (b"data: ", b"\n\n"),
        "application/x-ndjson" => (b"", b"\n"),
        other => panic!("{other} is no stream"),
    };
    let mut has_ended = false;
    // A connection that closes cuts a stream between two chunks.
    while !out.is_empty() {
        let at = out.windows(2).position(|window| window == b"\r\n").expect("a length");
        let digits = std::str::from_utf8(&out[..at]).expect("digits");
        let len = usize::from_str_radix(digits, 16).expect("digits");
        let (chunk, rest) = out[at + 2..].split_at(len);
        out = rest.strip_prefix(b"\r\n").expect("the end of a chunk");
        if len == 0 {
            assert!(has_ended, "the reply comes last");
            return out;
        }
        assert!(!has_ended, "nothing may follow the reply");
        if chunk == b": \n\n" && !prefix.is_empty() {
            continue;
        }
        let text = chunk.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix));
        let text = text.expect("an event or a line");
        assert!(!text.contains(&b'\n') && !text.contains(&b'\r'));
        let is_item = text.starts_with(br#"{"jsonrpc":"2.0","method""#);
        has_ended = !is_item;
        messages.extend(check_message(text));
    }
    out
}

/// Parses the frames of a server; returns the ids of their results.
fn check_frames(mut out: &[u8]) -> Vec<Message> {
    let mut ids = Vec::new();
    while let [first, short, rest @ ..] = out {
        let (len, rest) = match short {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            len => (usize::from(*len), rest),
        };
        let (payload, rest) = rest.split_at(len);
        match first {
            0x81 => ids.extend(check_message(payload)),
            0x88 => assert!(rest.is_empty(), "nothing may follow a Close frame"),
            _ => assert!([0x89, 0x8A].contains(first), "{first:#x}"),
        }
        out = rest;
    }
    assert!(out.is_empty(), "a frame is whole");
    ids
}

/// The body of an error may be left out: the method was HEAD.
fn at_most(len: &str, rest: &[u8]) -> usize {
    if rest.is_empty() { 0 } else { len.parse().expect("digits") }
}

fn check_raw(out: &[u8]) -> Vec<Message> {
    let mut ids = Vec::new();
    let mut replies = serde_json::Deserializer::from_slice(out).into_iter::<Box<RawValue>>();
    while let Some(reply) = replies.next() {
        ids.extend(check_message(reply.expect("JSON").get().as_bytes()));
        assert_eq!(out.get(replies.byte_offset()), Some(&b'\n'));
    }
    ids
}

/// Parses an item, a reply or a batch of replies; returns those whose calls were called.
fn check_message(body: &[u8]) -> Vec<Message> {
    // A drain that began before the first request has no count.
    let is_drain = body == br#"{"jsonrpc":"2.0","method":"$/drain"}"#
        || body.starts_with(br#"{"jsonrpc":"2.0","method":"$/drain","params":{"read":"#);
    if is_drain {
        return Vec::new();
    }
    if body.starts_with(br#"{"jsonrpc":"2.0","method""#) {
        return vec![Message::Item(check_item(body))];
    }
    let replies: Vec<&RawValue> = match body.first() {
        Some(b'[') => serde_json::from_slice(body).expect("an array"),
        _ => vec![serde_json::from_slice(body).expect("a reply")],
    };
    assert!(!replies.is_empty());
    replies.into_iter().filter_map(check_one).map(Message::Reply).collect()
}

/// Parses an item; returns its value, which is the id of its call.
fn check_item(item: &[u8]) -> String {
    let text = std::str::from_utf8(item).expect("UTF-8");
    let members = reference::members(text).expect("an object");
    let (_, method) = &members[1];
    assert_eq!((*method, members.len()), ("\"$/progress\"", 3));
    let params = reference::members(members[2].1).expect("an object");
    let names: Vec<&str> = params.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["token", "value"]);
    params[1].1.to_owned()
}

fn check_one(reply: &RawValue) -> Option<String> {
    let members = reference::members(reply.get()).expect("an object");
    let names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    let ([_, (_, id), (_, outcome)], ["jsonrpc", "id", kind]) = (&members[..], &names[..]) else {
        panic!("{reply} has other members")
    };
    if *kind == "result" {
        return Some((*id).to_owned());
    }
    assert_eq!(*kind, "error");
    let error: Value = serde_json::from_str(outcome).expect("an error");
    let code = error["code"].as_i64().expect("a code");
    // Some were refused before they were called.
    (!matches!(code, -32700 | -32600)).then(|| (*id).to_owned())
}
