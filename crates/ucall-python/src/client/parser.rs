//! Finds replies in received bytes, however they are split. Does no I/O.
//!
//! The caller receives into [`Parser::space`], so a long body is received where it stays;
//! [`Parser::advance`] then takes complete replies out. Taken bytes are skipped, and moved out only
//! before the next receive, so that many replies in one piece are not moved once for each.
//!
//! | state    | input                      | next                     |
//! |----------|----------------------------|--------------------------|
//! | `Http`   | the end of a response      | `Http`, with a message   |
//! | `Http`   | the head of an upgrade     | `Frames`                 |
//! | `Raw`    | the end of a document      | `Raw`, with a message    |
//! | `Frames` | the end of a message       | `Frames`, with a message |
//! | `Http`   | the head of a long frame   | `Frame`                  |
//! | `Raw`    | the head of a frame        | `Frame`                  |
//! | `Frame`  | the end of the frame       | that before, with a message |
//!
//! A frame with binary parts, of raw TCP or of HTTP with its length, is received into memory of its
//! own. (Those of WebSocket are `Frames`.) A body of server-sent events is no message itself: each
//! event in it is one.

use std::mem;

use ucall_proto::FRAME_BYTE;
use ucall_proto::http1::{ResponseBodyLength, ResponseHead, ResponsePart, ResponseReader};
use ucall_proto::json::DocumentStream;
use ucall_proto::websocket::{Event, MessageLimits, MessageReader, Progress, WebSocketError};

use super::error::ClientFault;
use super::events::EventReader;
use super::incoming::{FrameMemory, SharedParts, frame_head};
use super::shared_memory::SharedMemory;

/// Results nest at most 128 deep, within the reply and its batch.
pub(super) const NESTING_MAX: usize = 130;
/// Frames of one WebSocket message.
const FRAMES_MAX: usize = 1024;
/// A frame of that length is received into memory of its own; a shorter one is copied.
const LONG_FRAME_BYTES_MIN: u64 = 64 * 1024;
/// Memory of one reply that is kept for the next, at most.
const RETAINED_BYTES_MAX: usize = 256 * 1024;

/// One complete reply, not yet parsed.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The head of an HTTP reply; `None` of a document, a WebSocket message or an event.
    pub(super) head: Option<ResponseHead>,
    pub(super) body: Vec<u8>,
    /// A whole frame with binary parts, instead of a body.
    pub(super) frame: Option<Box<FrameMemory>>,
    /// The parts of a frame that are in shared memory.
    pub(super) parts: SharedParts,
    /// Whether it is the end of a body of events, without a document.
    pub(super) ends_events: bool,
}

/// The framing of replies.
#[derive(Debug)]
pub(super) enum Protocol {
    /// One reply is the body of one HTTP reply.
    Http,
    /// HTTP whose body may also be a stream of server-sent events.
    HttpEvents,
    /// WebSocket, whose upgrade has this proof.
    WebSocket { accept: Vec<u8> },
    /// Documents without framing.
    Raw,
}

/// Splits the bytes of a connection into replies.
#[derive(Debug)]
pub(super) struct Parser {
    protocol: Protocol,
    bytes_max: usize,
    state: ParserState,
    /// Received bytes, of which the first `taken` are parsed. The buffer is reused.
    buffer: Vec<u8>,
    taken: usize,
    /// The message that is being received. Its body is that of events only.
    message: Message,
    /// The reader of the body of events that is being received.
    events: Option<EventReader>,
    /// The payload of the last Ping without a Pong.
    ping: Option<Vec<u8>>,
    keeps_alive: bool,
    /// Whether bodies may be in a coding.
    accepts_codings: bool,
    /// The memory that is shared with the server.
    memory: Option<SharedMemory>,
}

#[derive(Debug)]
enum ParserState {
    Http(ResponseReader),
    Raw { stream: DocumentStream, scanned: usize },
    Frames(MessageReader),
    Frame(FrameMemory),
}

impl ParserState {
    fn raw() -> Self {
        Self::Raw { stream: DocumentStream::new(), scanned: 0 }
    }
}

impl Parser {
    /// A parser of replies of up to `bytes_max` bytes.
    pub(super) fn new(protocol: Protocol, bytes_max: usize) -> Self {
        let state = match protocol {
            Protocol::Raw => ParserState::raw(),
            _ => ParserState::Http(ResponseReader::new(bytes_max)),
        };
        Self {
            protocol,
            bytes_max,
            state,
            buffer: Vec::new(),
            taken: 0,
            message: Message::default(),
            events: None,
            ping: None,
            keeps_alive: true,
            accepts_codings: false,
            memory: None,
        }
    }

    /// Decodes bodies in gzip and zstd.
    pub(super) fn accept_codings(&mut self) {
        self.accepts_codings = true;
        if let ParserState::Http(_) = self.state {
            self.state = ParserState::Http(self.response_reader());
        }
    }

    fn response_reader(&self) -> ResponseReader {
        let reader = ResponseReader::new(self.bytes_max);
        if self.accepts_codings { reader.accepting_codings() } else { reader }
    }

    /// Finds the parts of frames in memory that is shared with the server.
    pub(super) fn share(&mut self, memory: SharedMemory) {
        self.memory = Some(memory);
    }

    /// The buffer to append the next bytes to, and how many at most.
    #[inline]
    pub(super) fn space(&mut self) -> (&mut Vec<u8>, usize) {
        self.forget_taken();
        match &mut self.state {
            ParserState::Http(reader) => reader.space(&mut self.buffer),
            ParserState::Frame(memory) => memory.space(),
            _ => (&mut self.buffer, usize::MAX),
        }
    }

    /// Takes a complete reply out. Call it until it returns `None`.
    pub(super) fn advance(&mut self) -> Result<Option<Message>, ClientFault> {
        let mut message = self.next_message()?;
        if let (Some(message), Some(memory)) = (&mut message, &self.memory) {
            let frame = message.frame.as_ref().map_or(&message.body[..], |memory| memory.frame());
            message.parts = memory.take(frame, self.bytes_max)?;
        }
        Ok(message)
    }

    fn next_message(&mut self) -> Result<Option<Message>, ClientFault> {
        match self.state {
            ParserState::Http(_) => self.read_response(),
            ParserState::Raw { .. } => self.parse_document(),
            ParserState::Frames(_) => self.read_frames(),
            ParserState::Frame(_) => Ok(self.read_frame()),
        }
    }

    /// Handles the end of the connection. Returns the reply that ends with it, if there is one.
    pub(super) fn end(&mut self) -> Result<Option<Message>, ClientFault> {
        let body = match &mut self.state {
            ParserState::Http(reader) => reader.end()?,
            _ => None,
        };
        match body {
            Some(body) => Ok(Some(self.finish(body))),
            None if self.is_idle() => Ok(None),
            None => Err(ClientFault::Closed { within_reply: true }),
        }
    }

    /// Whether no byte of a reply has been received.
    pub(super) fn is_idle(&self) -> bool {
        let is_within = match &self.state {
            ParserState::Http(reader) => !reader.is_idle(),
            ParserState::Frame(_) => true,
            _ => false,
        };
        !is_within && self.rest().trim_ascii_start().is_empty()
    }

    /// Whether it reads a body of events.
    pub(super) fn has_events(&self) -> bool {
        self.events.is_some()
    }

    /// Whether the connection was upgraded to WebSocket.
    pub(super) fn is_upgraded(&self) -> bool {
        matches!(self.state, ParserState::Frames(_))
    }

    /// Takes the payload of the last Ping out, which expects a Pong. Earlier ones need none (RFC
    /// 6455, section 5.5.3).
    pub(super) fn take_ping(&mut self) -> Option<Vec<u8>> {
        self.ping.take()
    }

    /// Whether another request may be sent.
    pub(super) fn is_reusable(&self) -> bool {
        self.keeps_alive && self.is_idle()
    }

    fn check_size(&self, len: usize) -> Result<(), ClientFault> {
        match len > self.bytes_max {
            true => Err(ClientFault::TooLarge { bytes_max: self.bytes_max }),
            false => Ok(()),
        }
    }

    /// Received bytes that are not parsed yet.
    fn rest(&self) -> &[u8] {
        self.buffer.get(self.taken..).unwrap_or_default()
    }

    /// Removes the parsed bytes from the buffer.
    #[inline]
    fn forget_taken(&mut self) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken.min(self.buffer.len()));
            self.taken = 0;
        }
    }

    /// Takes the next response off the buffer, or the next event of one.
    fn read_response(&mut self) -> Result<Option<Message>, ClientFault> {
        loop {
            if let Some(events) = &mut self.events {
                if let Some(body) = events.next(&self.message.body)? {
                    return Ok(Some(Message { body, ..Message::default() }));
                }
                events.forget_taken(&mut self.message.body);
                if self.message.ends_events {
                    return Ok(Some(self.finish(Vec::new())));
                }
            }
            let reader = match &mut self.state {
                ParserState::Http(reader) => reader,
                ParserState::Frame(_) => return Ok(self.read_frame()),
                _ => return self.read_frames(),
            };
            let rest = self.buffer.get(self.taken..).unwrap_or_default();
            let (used, part) = reader.read(rest)?;
            self.taken += used;
            match (part, &mut self.events) {
                (Some(ResponsePart::Head(head)), _) => self.begin_message(head)?,
                (Some(ResponsePart::Body(body)), None) => {
                    let body = body.into_owned();
                    return Ok(Some(self.finish(body)));
                }
                (Some(ResponsePart::Body(body)), Some(_)) => {
                    self.message.body.extend_from_slice(&body);
                    self.message.ends_events = true;
                }
                (None, Some(_)) => match reader.take_part() {
                    part if part.is_empty() => return Ok(None),
                    part => self.message.body.extend_from_slice(&part),
                },
                (None, None) => return Ok(None),
            }
        }
    }

    /// Starts on the message of a response, whose body follows.
    fn begin_message(&mut self, head: ResponseHead) -> Result<(), ClientFault> {
        let fault = |clause: &str| Err(ClientFault::Protocol(clause.to_owned()));
        match (&self.protocol, head.status) {
            (Protocol::WebSocket { accept }, 101)
                if head.websocket_accept.as_ref() == Some(accept) =>
            {
                self.state = ParserState::Frames(MessageReader::default());
                return Ok(());
            }
            (_, 101) => return fault("HTTP that switches to another protocol"),
            (Protocol::WebSocket { .. }, ..300) => {
                return fault("HTTP without an upgrade to WebSocket");
            }
            (Protocol::HttpEvents, 200) if head.has_events => {
                self.events = Some(EventReader::new(self.bytes_max));
                if let ParserState::Http(reader) = &mut self.state {
                    // The events of a body are limited one by one.
                    reader.lift_limit();
                }
            }
            _ => {}
        }
        self.keeps_alive = head.keeps_alive;
        match head.body {
            ResponseBodyLength::Sized(len)
                if head.has_parts && head.coding.is_none() && len >= LONG_FRAME_BYTES_MIN =>
            {
                // The reader has checked the length.
                self.begin_frame(len as usize);
            }
            _ => {}
        }
        self.message = Message { head: Some(head), ..Message::default() };
        Ok(())
    }

    /// Receives a frame of that length from now on, of which a part may have been received.
    fn begin_frame(&mut self, len: usize) {
        let mut memory = FrameMemory::new(len);
        let (target, missing) = memory.space();
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let received = rest.get(..missing).unwrap_or(rest);
        target.extend_from_slice(received);
        self.taken += received.len();
        self.state = ParserState::Frame(memory);
    }

    /// Takes the frame out, once it is complete.
    fn read_frame(&mut self) -> Option<Message> {
        let ParserState::Frame(memory) = &mut self.state else { return None };
        if memory.missing() > 0 {
            return None;
        }
        let memory = mem::take(memory);
        self.state = match self.protocol {
            Protocol::Raw => ParserState::raw(),
            _ => ParserState::Http(self.response_reader()),
        };
        self.shrink();
        Some(Message { frame: Some(Box::new(memory)), ..mem::take(&mut self.message) })
    }

    fn finish(&mut self, body: Vec<u8>) -> Message {
        self.shrink();
        let message = mem::take(&mut self.message);
        match self.events.take() {
            Some(_) => Message { ends_events: true, ..Message::default() },
            None => Message { body, ..message },
        }
    }

    /// Takes the next WebSocket message off the buffer, with the control frames before it.
    fn read_frames(&mut self) -> Result<Option<Message>, ClientFault> {
        let ParserState::Frames(reader) = &mut self.state else { return Ok(None) };
        let bytes_max = self.bytes_max;
        let limits = MessageLimits {
            frame_bytes_max: bytes_max,
            message_bytes_max: bytes_max,
            frames_max: FRAMES_MAX,
        };
        loop {
            let rest = self.buffer.get_mut(self.taken..).unwrap_or_default();
            let progress = reader.read_from_server(rest, &limits);
            let progress = progress.map_err(|error| websocket_fault(error, bytes_max))?;
            let Progress::Frame { len, event } = progress else { return Ok(None) };
            self.taken += len;
            match event {
                Event::Message { payload, .. } => {
                    if payload.first() == Some(&FRAME_BYTE) {
                        let frame = Some(Box::new(FrameMemory::of(&payload)));
                        self.shrink();
                        return Ok(Some(Message { frame, ..Message::default() }));
                    }
                    let body = payload.into_owned();
                    self.shrink();
                    return Ok(Some(Message { body, ..Message::default() }));
                }
                Event::Ping(payload) => self.ping = Some(payload.to_vec()),
                Event::Close(frame) => {
                    let code = frame.map(|frame| frame.code.get());
                    let reason = frame.map(|frame| frame.reason.to_owned()).unwrap_or_default();
                    return Err(ClientFault::WebSocketClosed { code, reason });
                }
                // No request offers the extension that allows compressed messages.
                Event::Compressed { .. } | Event::Fragment { .. } | Event::Pong(_) => {}
            }
        }
    }

    /// Frees the memory of a long message, unless another one is in it.
    fn shrink(&mut self) {
        if self.taken == self.buffer.len() {
            self.forget_taken();
            self.buffer.shrink_to(RETAINED_BYTES_MAX);
        }
    }

    /// Takes a raw document off the buffer, with the white space around it.
    fn parse_document(&mut self) -> Result<Option<Message>, ClientFault> {
        let ParserState::Raw { stream, scanned } = &mut self.state else { return Ok(None) };
        let mut rest = self.buffer.get(self.taken..).unwrap_or_default();
        if *scanned == 0 {
            let trimmed = rest.trim_ascii_start();
            self.taken += rest.len() - trimmed.len();
            rest = trimmed;
            match rest.first() {
                None => return Ok(None),
                Some(b'{' | b'[') => {}
                Some(&FRAME_BYTE) => return self.parse_frame_head(),
                Some(_) => {
                    return Err(ClientFault::Protocol(format!("{:?}", ClientFault::excerpt(rest))));
                }
            }
        }
        let end = match stream.scan(rest.get(*scanned..).unwrap_or_default(), NESTING_MAX) {
            Ok(end) => end.map(|end| *scanned + end),
            Err(_) => return Err(ClientFault::Protocol("broken JSON".to_owned())),
        };
        *scanned = rest.len();
        let len = end.unwrap_or(rest.len());
        self.check_size(len)?;
        if end.is_none() {
            return Ok(None);
        }
        self.state = ParserState::raw();
        Ok(Some(Message { body: self.take_body(len), ..Message::default() }))
    }

    /// Begins with the frame at the front of the buffer, once its head is complete.
    fn parse_frame_head(&mut self) -> Result<Option<Message>, ClientFault> {
        let Some(head) = frame_head(self.rest(), self.bytes_max)? else { return Ok(None) };
        self.begin_frame(head.len);
        Ok(self.read_frame())
    }

    /// Takes a document of that length off the buffer, with the white space after it.
    fn take_body(&mut self, len: usize) -> Vec<u8> {
        let is_all = self.rest().get(len..).unwrap_or_default().trim_ascii_start().is_empty();
        if is_all && len > RETAINED_BYTES_MAX {
            // A long document keeps its memory; a short one is copied out.
            self.forget_taken();
            self.buffer.truncate(len);
            return mem::take(&mut self.buffer);
        }
        let body = self.rest().get(..len).unwrap_or_default().to_vec();
        self.taken = if is_all { self.buffer.len() } else { self.taken + len };
        self.shrink();
        body
    }
}

#[cold]
fn websocket_fault(error: WebSocketError, bytes_max: usize) -> ClientFault {
    match error {
        WebSocketError::FrameTooLarge { .. } | WebSocketError::MessageTooLarge { .. } => {
            ClientFault::TooLarge { bytes_max }
        }
        WebSocketError::TooManyFrames { limit } => {
            ClientFault::WebSocket(format!("expected a message of at most {limit} frames"))
        }
        error => ClientFault::WebSocket(error.to_string()),
    }
}
