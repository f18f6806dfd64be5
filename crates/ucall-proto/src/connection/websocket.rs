//! Messages of a WebSocket, one document each, answered as they finish.
//!
//! A connection becomes a WebSocket by an upgrade of HTTP. Frames are unmasked in the buffer that
//! they were received into. Under TLS that buffer cannot be written, so their bytes are copied to
//! the input buffer first.
//!
//! | event | Close frame |
//! |---|---|
//! | the peer's Close frame | with its code |
//! | a violation of the protocol or a limit | see [`WebSocketError`] |
//! | a binary message that begins as no JSON | 1003 |
//! | a message that is not complete in time, or `unanswered_pings_max` | 1008 |
//! | no memory for a message that begins, or an application that receives nothing | 1013 |
//! | a drain, `exchanges_max`, `lifetime` | 1001, after the replies |
//! | the end of the stream without a Close frame | none |
//!
//! A compressed message is decoded first (`inflating.rs`). A binary message may be a frame with
//! parts (`frames.rs`).
//!
//! A message that is not JSON gets error -32700, and the connection stays open.

use std::mem;

use super::calls::{DocumentOutcome, RequestContext, run_document, run_outlined};
use super::exchange::ExchangeReply;
use super::http_framing::HttpFraming;
use super::inflating::InflatingMessage;
use super::{
    Drain, Environment, LoadState, PlainConnection, Protocol, ReadEvent, Step, WaitState, body_time,
};
use crate::Limits;
use crate::http1::{ErrorBody, Head, HttpError, Target};
use crate::json::JsonError;
use crate::rpc::frame::begins_frame;
use crate::rpc::{
    CallNumber, CallerIdentity, DocumentOutline, RpcError, Service, write_error_reply,
};
use crate::websocket::{
    CloseCode, Event, FrameWriter, LongMessage, MessageKind, MessageLimits, MessageReader, Opcode,
    Progress, Upgrade, WebSocketError, validate_text, write_close, write_frame,
};

/// The reason of code 1001.
pub(super) const SERVER_CLOSES: &str = "the server closes the connection";

/// The framing of a message that answers no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageFraming {
    /// A text frame of a WebSocket.
    Frame,
    /// A line of raw TCP.
    Line,
}

/// The state of a WebSocket.
#[derive(Debug, Default)]
pub(super) struct WebSocket {
    pub(super) reader: MessageReader,
    writer: FrameWriter,
    /// The bytes of the frame whose head has arrived. While a message is being decoded no frame is
    /// long enough.
    pub(super) bytes_needed: usize,
    /// A compressed message of which a part is not decoded.
    pub(super) inflating: Option<Box<InflatingMessage>>,
    /// The bytes that were decoded in this turn.
    pub(super) inflated: usize,
    /// That frame, if it is a long message, once much of it has arrived.
    pub(super) long: Option<Box<LongFrame>>,
    /// Pings since the last byte of the peer, or the last one that its application has taken.
    pub(super) pings: usize,
    /// The Close frame is written, after which nothing may follow.
    is_closed: bool,
    /// The caller, if the service requires authentication.
    identity: Option<CallerIdentity>,
    /// The request by which an application has the messages, if one has.
    mounted: Option<CallNumber>,
    /// Whether its client sends nothing more.
    pub(super) is_ending: bool,
}

/// A long message, and its requests.
#[derive(Debug)]
pub(super) struct LongFrame {
    pub(super) message: LongMessage,
    outline: DocumentOutline,
}

impl WebSocket {
    /// Reads the next bytes of a long message. Returns the message once it is complete.
    pub(super) fn take_long(
        &mut self,
        input: &mut [u8],
        limits: &Limits,
    ) -> Option<Box<LongFrame>> {
        let may_begin = self.bytes_needed > limits.long_bytes_min
            && !self.reader.has_fragments()
            && self.inflating.is_none()
            && self.mounted.is_none();
        if may_begin && self.long.is_none() {
            let message = LongMessage::begin(input, limits.long_bytes_min)?;
            self.long = Some(Box::new(LongFrame { message, outline: DocumentOutline::default() }));
        }
        let LongFrame { message, outline } = self.long.as_deref_mut()?;
        message.read(input);
        outline.scan_framed(message.payload(input), limits);
        if input.len() < message.len {
            return None;
        }
        self.bytes_needed = 0;
        self.long.take()
    }

    pub(super) fn new(identity: Option<CallerIdentity>, writer: FrameWriter) -> Self {
        Self { identity, writer, ..Self::default() }
    }

    pub(super) fn begin_inflating(&mut self, message: InflatingMessage) {
        self.inflating = Some(Box::new(message));
        self.bytes_needed = usize::MAX;
    }

    pub(super) fn take_inflated(&mut self) -> Option<Box<InflatingMessage>> {
        self.bytes_needed = 0;
        self.inflating.take()
    }

    /// Drops what has arrived of a message.
    pub(super) fn discard(&mut self) {
        (self.long, self.inflating) = (None, None);
        self.reader = MessageReader::default();
    }

    /// One whose messages are an application's.
    pub(super) fn mounted(number: CallNumber) -> Self {
        Self { mounted: Some(number), ..Self::default() }
    }

    /// The request by which an application has the messages.
    pub(super) fn mounted_by(&self) -> Option<CallNumber> {
        self.mounted
    }

    pub(super) fn bytes_needed(&self) -> usize {
        self.bytes_needed
    }

    /// Whether the Close frame is written.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The memory of a message in fragments.
    pub(super) fn held_bytes(&self) -> usize {
        let long = self.long.as_ref().map_or(0, |long| long.outline.held_bytes());
        let inflating = self.inflating.as_ref().map_or(0, |message| message.held_bytes());
        self.reader.held_bytes() + long + inflating
    }

    /// Whether no message is being received, apart from bytes in the input buffer.
    pub(super) fn is_between_messages(&self) -> bool {
        self.bytes_needed == 0 && !self.reader.has_fragments()
    }

    pub(super) fn wait_state(&self, input_len: usize, limits: &Limits) -> WaitState {
        if input_len == 0 && self.is_between_messages() {
            return WaitState::Request;
        }
        let bytes = match &self.inflating {
            Some(message) => message.received_len(),
            None => self.bytes_needed.max(input_len) + self.reader.held_bytes(),
        };
        WaitState::Body { total: body_time(bytes, limits) }
    }

    /// Whether the peer is silent after all of its Pings. It then has until the next sweep: its
    /// Pong may have waited to be read while this process stood still.
    pub(super) fn is_silent(&self, limits: &Limits) -> bool {
        self.pings > limits.unanswered_pings_max
    }

    /// Appends a Close frame, after which the peer gets nothing more.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str, out: &mut Vec<u8>) {
        if !self.is_closed {
            write_close(out, code, reason);
        }
        self.is_closed = true;
    }
}

pub(super) fn message_limits(limits: &Limits) -> MessageLimits {
    MessageLimits {
        frame_bytes_max: limits.frame_bytes_max,
        message_bytes_max: limits.body_bytes_max,
        frames_max: limits.message_frames_max,
    }
}

impl PlainConnection {
    /// Takes bytes of a WebSocket, which are unmasked in place.
    pub(super) fn receive_frames<S: Service>(
        &mut self,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) {
        if !self.input.is_empty() {
            return self.receive_plaintext(bytes, environment);
        }
        let used = self.process_frames(bytes, environment);
        if used < bytes.len() && self.reading.takes_requests() {
            self.buffer_input(bytes.get(used..).unwrap_or_default(), environment);
            if self.reading.is_paused() {
                self.process_input(environment);
            }
        }
        self.update_wait_state(environment);
    }

    /// Turns the connection into a WebSocket, if this GET asks for that and may have it. Returns
    /// `None` for any other one.
    #[cold]
    pub(super) fn upgrade<S: Service>(
        &mut self,
        head: &Head<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Option<Step> {
        if !matches!(head.target(), Target::Root | Target::WebSocket) {
            return self.upgrade_mounted(head, environment);
        }
        let checked = match environment.access.check(head.host(), head.origin(), self.is_tls()) {
            Ok(_) => Upgrade::parse(head),
            Err(error) => Err(error),
        };
        let mut writer = FrameWriter::default();
        let identity = match checked {
            Ok(None) => return None,
            Ok(Some(_)) if environment.drain != Drain::No => Err(HttpError::Draining),
            Ok(Some(_)) if environment.load != LoadState::Normal => Err(HttpError::Overloaded),
            // The reply follows those to earlier requests.
            Ok(Some(_)) if !self.exchanges.is_empty() => {
                self.reading.handle(ReadEvent::Wait);
                return Some(Step::Incomplete);
            }
            Ok(Some(mut upgrade)) => {
                if let Some(lengths) = environment.limits.compression
                    && let Some(deflate) = upgrade.accept_deflate(head)
                {
                    writer = FrameWriter::compressing(deflate, lengths);
                }
                environment.service.upgrading(head);
                let identity = self.authenticate_upgrade(&upgrade, head, environment);
                identity.inspect(|_| upgrade.write_reply(environment.out))
            }
            Err(error) => Err(error),
        };
        Some(match identity {
            Ok(identity) => {
                self.protocol = Protocol::WebSocket(WebSocket::new(identity, writer));
                Step::Consumed(head.len())
            }
            Err(error) => self.refuse_http(&error, ErrorBody::Text, environment),
        })
    }

    /// Runs the messages that `bytes` starts with; returns the length of their frames.
    #[inline(never)]
    pub(super) fn process_frames<S: Service>(
        &mut self,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) -> usize {
        let waits_for_application = self.waits_for_application();
        self.reading.handle(ReadEvent::Run);
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            if !waits_for_application {
                (socket.pings, socket.inflated) = (0, 0);
            }
            if socket.mounted.is_some() {
                return self.process_mounted_frames(bytes, environment);
            }
        }
        let mut used = 0;
        while let Some(rest @ [_, ..]) = bytes.get_mut(used..)
            && self.reading.takes_requests()
            && let Step::Consumed(count) = self.step_frame(rest, environment)
        {
            used += count;
        }
        if used > 0 && environment.drain == Drain::Refusing {
            self.write_read_count(environment.out);
            self.go_away(environment.out);
        }
        used
    }

    /// Handles the frame that `rest` starts with, if it is complete and may run now.
    fn step_frame<S: Service>(
        &mut self,
        rest: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        if self.must_wait(environment) {
            self.reading.handle(ReadEvent::Wait);
            return Step::Incomplete;
        }
        self.run_frame(rest, environment)
    }

    /// Handles the frame that `rest` starts with, if it is complete.
    pub(super) fn run_frame<S: Service>(
        &mut self,
        rest: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return Step::Incomplete };
        if rest.len() < socket.bytes_needed {
            return Step::Incomplete;
        }
        let had_head = mem::take(&mut socket.bytes_needed) > 0;
        let limits = message_limits(environment.limits);
        if let Some((payload, len)) = socket.reader.read_short(rest, &limits) {
            self.run_message(MessageKind::Text, payload, environment);
            return Step::Consumed(len);
        }
        match socket.reader.read(rest, &limits) {
            Ok(Progress::Frame { len, event }) => {
                self.handle_frame(event, environment);
                Step::Consumed(len)
            }
            Ok(Progress::Incomplete { bytes_needed }) => {
                socket.bytes_needed = bytes_needed;
                if !had_head && !socket.reader.has_fragments() {
                    self.close_if_full(environment);
                }
                Step::Incomplete
            }
            Err(WebSocketError::ReservedBits) if socket.writer.compresses() => {
                self.run_compressed_frame(rest, had_head, environment)
            }
            Err(error) => {
                self.violate(&error, environment);
                Step::Incomplete
            }
        }
    }

    /// Handles the frame that `rest` starts with, which begins a compressed message.
    #[cold]
    fn run_compressed_frame<S: Service>(
        &mut self,
        rest: &mut [u8],
        had_head: bool,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let limits = message_limits(environment.limits);
        let Protocol::WebSocket(socket) = &mut self.protocol else { return Step::Incomplete };
        match socket.reader.read_compressed(rest, &limits) {
            Ok(Progress::Frame { len, event }) => {
                self.handle_frame(event, environment);
                return Step::Consumed(len);
            }
            Ok(Progress::Incomplete { bytes_needed }) => {
                socket.bytes_needed = bytes_needed;
                if !had_head {
                    self.close_if_full(environment);
                }
            }
            Err(error) => self.violate(&error, environment),
        }
        Step::Incomplete
    }

    #[inline]
    pub(super) fn handle_frame<S: Service>(
        &mut self,
        event: Event<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        match event {
            Event::Message { kind: MessageKind::Binary, payload } if begins_frame(&payload) => {
                self.run_frame_message(&payload, environment);
            }
            Event::Message { kind: MessageKind::Binary, payload } if !begins_as_json(&payload) => {
                self.close_websocket(CloseCode::UNSUPPORTED, "expected JSON", environment);
            }
            Event::Message { kind, payload } => self.run_message(kind, &payload, environment),
            Event::Compressed { kind, payload } => {
                self.inflate_message(kind, payload, environment);
            }
            Event::Fragment { is_first: true } => self.close_if_full(environment),
            Event::Fragment { .. } | Event::Pong(_) => {}
            Event::Ping(payload) => write_frame(environment.out, Opcode::Pong, payload),
            Event::Close(close) => {
                let code = close.map_or(CloseCode::NORMAL, |close| close.code);
                self.close_websocket(code, "", environment);
            }
        }
    }

    #[inline]
    fn run_message<S: Service>(
        &mut self,
        kind: MessageKind,
        payload: &[u8],
        environment: &mut Environment<'_, S>,
    ) {
        let run = |context: RequestContext<'_>, environment: &mut _| {
            run_document::<true, S>(payload, context, environment).map(|(ran, _)| ran)
        };
        self.run_message_with(kind, payload, environment, run);
    }

    /// Runs a long message, all of which is in `input`.
    #[cold]
    pub(super) fn run_long_message<S: Service>(
        &mut self,
        input: &[u8],
        LongFrame { message, outline }: &LongFrame,
        environment: &mut Environment<'_, S>,
    ) {
        let payload = message.payload(input);
        if outline.has_requests() {
            let run = |context: RequestContext<'_>, environment: &mut _| {
                run_outlined(payload, outline, context, environment)
            };
            self.run_message_with(MessageKind::Text, payload, environment, run);
        } else {
            self.run_message(MessageKind::Text, payload, environment);
        }
        if environment.drain == Drain::Refusing {
            self.write_read_count(environment.out);
            self.go_away(environment.out);
        }
    }

    #[inline(always)]
    pub(super) fn run_message_with<'e, S: Service>(
        &mut self,
        kind: MessageKind,
        payload: &[u8],
        environment: &mut Environment<'e, S>,
        run: impl FnOnce(
            RequestContext<'_>,
            &mut Environment<'e, S>,
        ) -> Result<DocumentOutcome, JsonError>,
    ) {
        let request = self.next_request();
        let Protocol::WebSocket(socket) = &mut self.protocol else { return };
        if let Some(identity) = &socket.identity {
            environment.service.set_identity(identity);
        }
        let pending = socket.writer.begin(environment.out);
        let session = self.session.as_ref();
        let context = RequestContext { request, head: None, session };
        let ran = run(context, environment);
        let Environment { limits, out, .. } = &mut *environment;
        match ran {
            Ok(DocumentOutcome::Replied) => socket.writer.end(out, pending, Opcode::Text),
            Ok(DocumentOutcome::NoReply) => socket.writer.abort(out, pending),
            Ok(DocumentOutcome::Deferred(reply)) => {
                socket.writer.abort(out, pending);
                self.exchanges.push(request, HttpFraming::default(), *reply);
            }
            // Valid JSON is valid UTF-8, so only other text is validated by itself.
            Err(_) if kind == MessageKind::Text && validate_text(payload).is_err() => {
                socket.writer.abort(out, pending);
                return self.violate(&WebSocketError::TextNotUtf8, environment);
            }
            Err(fault) => {
                write_error_reply(out, None, &RpcError::parse(fault, limits));
                socket.writer.end(out, pending, Opcode::Text);
            }
        }
        if !environment.scratch.cancel_requests.is_empty() {
            self.cancel_requested(environment);
        }
        if self.is_last(request, environment) {
            self.go_away(environment.out);
        }
    }

    /// The framing of messages that answer no request; `None` over HTTP, which has none, after the
    /// Close frame of a WebSocket, and on the WebSocket of an application.
    pub fn message_framing(&self) -> Option<MessageFraming> {
        match &self.protocol {
            Protocol::Raw(_) => Some(MessageFraming::Line),
            Protocol::WebSocket(socket) if !socket.is_closed && socket.mounted.is_none() => {
                Some(MessageFraming::Frame)
            }
            _ => None,
        }
    }

    /// Writes a reply that had to wait.
    pub(super) fn write_message(&mut self, reply: &ExchangeReply, out: &mut Vec<u8>) {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return };
        if socket.mounted.is_some() {
            return self.end_mounted(reply, out);
        }
        let pending = socket.writer.begin(out);
        reply.write(out);
        socket.writer.end(out, pending, Opcode::Text);
    }

    /// The peer did not send the rest of a message in time.
    pub(super) fn refuse_slow_message<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let seconds = environment.limits.body_timeout.as_secs();
        let reason = format!("expected the rest of the message within {seconds} s (body_timeout)");
        self.close_websocket(CloseCode::POLICY_VIOLATION, &reason, environment);
    }

    /// There is no memory for the rest of a message.
    #[cold]
    pub(super) fn refuse_for_memory<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.close_websocket(CloseCode::TRY_AGAIN_LATER, "the server is overloaded", environment);
    }

    /// Reads no more messages. The Close frame follows the replies to those that were read.
    #[cold]
    pub(super) fn go_away(&mut self, out: &mut Vec<u8>) {
        self.discard_input();
        self.end_after_replies(out);
    }

    /// Appends the Close frame of a WebSocket whose connection closes at once.
    pub(super) fn abandon_replies(&mut self, out: &mut Vec<u8>) {
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            socket.close(CloseCode::GOING_AWAY, SERVER_CLOSES, out);
            self.cancel();
        }
    }

    /// Appends the Close frame if no more replies follow.
    pub(super) fn end_after_replies(&mut self, out: &mut Vec<u8>) {
        if let Protocol::WebSocket(socket) = &mut self.protocol
            && !self.reading.takes_requests()
            && self.exchanges.is_empty()
        {
            socket.close(CloseCode::GOING_AWAY, SERVER_CLOSES, out);
        }
    }

    /// Refuses a message that begins while there is no memory. One that has begun waits.
    pub(super) fn close_if_full<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        if environment.scratch.is_full(environment.limits) {
            self.refuse_for_memory(environment);
        }
    }

    #[cold]
    pub(super) fn violate<S: Service>(
        &mut self,
        error: &WebSocketError,
        environment: &mut Environment<'_, S>,
    ) {
        self.close_websocket(error.code(), &error.to_string(), environment);
    }

    /// Sends a Close frame, gives up on all replies, and reads nothing more.
    #[cold]
    pub(super) fn close_websocket<S: Service>(
        &mut self,
        code: CloseCode,
        reason: &str,
        environment: &mut Environment<'_, S>,
    ) {
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            if let Some(number) = socket.mounted {
                environment.service.end_messages(number, code.get(), reason);
            }
            socket.close(code, reason, environment.out);
        }
        self.cancel();
    }
}

fn begins_as_json(payload: &[u8]) -> bool {
    matches!(payload.trim_ascii_start().first(), Some(b'{' | b'['))
}
