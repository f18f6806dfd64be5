//! Finds replies in received bytes, however they are split. Does no I/O.
//!
//! The caller receives into [`Parser::space`], so a long body is received where it stays;
//! [`Parser::advance`] then takes complete replies out. A declared length is checked against the
//! limit before memory is reserved for it. Taken bytes are skipped, and moved out only before the
//! next receive, so that many replies in one piece are not moved once for each.
//!
//! | state        | input                      | next                           |
//! |--------------|----------------------------|--------------------------------|
//! | `Head`       | a head of status 1xx       | `Head`, up to the limit        |
//! | `Head`       | a head                     | `Sized`, `Chunked`, `UntilClose` |
//! | `Sized`      | the last byte              | `Head`, with a message         |
//! | `Chunked`    | the last chunk             | `Head`, with a message         |
//! | `UntilClose` | the end of the connection  | `Head`, with a message         |
//! | `Raw`        | the end of a document      | `Raw`, with a message          |
//! | `Head`       | the head of an upgrade     | `Frames`                       |
//! | `Frames`     | the end of a message       | `Frames`, with a message       |
//!
//! A body of server-sent events is no message itself: each event in it is one.

use std::mem;

use ucall_proto::http1::{
    ChunkedDecoder, ChunkedLimits, HttpError, ResponseBodyLength, ResponseHead, parse_response_head,
};
use ucall_proto::json::DocumentStream;
use ucall_proto::websocket::{Event, MessageLimits, MessageReader, Progress, WebSocketError};

use super::error::ClientFault;
use super::events::EventReader;
use super::limits::{FRAMES_MAX, HEAD_BYTES_MAX, INFORMATIONAL_MAX};

/// Results nest at most 128 deep, within the reply and its batch.
pub(super) const NESTING_MAX: usize = 130;
const CHUNK_OVERHEAD_BYTES_MAX: usize = 64 * 1024;
/// Memory of one reply that is kept for the next, at most.
const RETAINED_BYTES_MAX: usize = 256 * 1024;

/// One complete reply, not yet parsed.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The HTTP status; 0 of a document, a WebSocket message or an event.
    pub(super) status: u16,
    /// The reason phrase, for statuses other than success.
    pub(super) reason: String,
    pub(super) body: Vec<u8>,
    /// The seconds of its `Retry-After`.
    pub(super) retry_after_s: Option<u64>,
    /// The `Location` of a redirect.
    pub(super) location: Option<String>,
    /// Whether it is the end of a body of events, without a document.
    pub(super) ends_events: bool,
}

/// The framing of replies.
#[derive(Debug)]
pub(super) enum Protocol {
    /// One reply is the body of one HTTP reply.
    Http,
    /// The same, but a body may also be a stream of server-sent events.
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
    /// The message that is being received.
    message: Message,
    /// The reader of the body of events that is being received.
    events: Option<EventReader>,
    /// The payload of the last Ping without a Pong.
    ping: Option<Vec<u8>>,
    keeps_alive: bool,
}

#[derive(Debug)]
enum ParserState {
    /// The first `seen` bytes of an incomplete head, which do not contain its end.
    Head {
        seen: usize,
        informational: usize,
    },
    Sized {
        len: usize,
    },
    Chunked(ChunkedDecoder),
    UntilClose,
    Raw {
        stream: DocumentStream,
        scanned: usize,
    },
    Frames(MessageReader),
}

impl ParserState {
    fn head() -> Self {
        Self::Head { seen: 0, informational: 0 }
    }

    fn raw() -> Self {
        Self::Raw { stream: DocumentStream::new(), scanned: 0 }
    }
}

impl Parser {
    /// A parser of replies of up to `bytes_max` bytes.
    pub(super) fn new(protocol: Protocol, bytes_max: usize) -> Self {
        let state = match protocol {
            Protocol::Raw => ParserState::raw(),
            _ => ParserState::head(),
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
        }
    }

    /// The buffer to append the next bytes to, and how many at most.
    #[inline]
    pub(super) fn space(&mut self) -> (&mut Vec<u8>, usize) {
        match self.state {
            ParserState::Sized { len } => {
                let left = len.saturating_sub(self.message.body.len());
                (&mut self.message.body, left)
            }
            ParserState::UntilClose => (&mut self.message.body, usize::MAX),
            _ => {
                self.forget_taken();
                (&mut self.buffer, usize::MAX)
            }
        }
    }

    /// Takes a complete reply out. Call it until it returns `None`.
    pub(super) fn advance(&mut self) -> Result<Option<Message>, ClientFault> {
        loop {
            let is_whole = match &mut self.state {
                ParserState::Head { .. } => match self.parse_head()? {
                    true => continue,
                    false => return Ok(None),
                },
                ParserState::Sized { len } => self.message.body.len() >= *len,
                ParserState::Chunked(_) => self.decode_chunks()?,
                ParserState::UntilClose => {
                    self.check_size(self.message.body.len())?;
                    false
                }
                ParserState::Raw { .. } => return self.parse_document(),
                ParserState::Frames(_) => return self.read_frames(),
            };
            if let Some(data) = self.next_event()? {
                return Ok(Some(Message { body: data, ..Message::default() }));
            }
            return Ok(is_whole.then(|| self.finish()));
        }
    }

    /// Handles the end of the connection. Returns the reply that ends with it, if there is one.
    pub(super) fn end(&mut self) -> Result<Option<Message>, ClientFault> {
        match self.state {
            ParserState::UntilClose => Ok(Some(self.finish())),
            _ if self.is_idle() => Ok(None),
            _ => Err(ClientFault::Closed { within_reply: true }),
        }
    }

    /// Whether no byte of a reply has been received.
    pub(super) fn is_idle(&self) -> bool {
        matches!(
            self.state,
            ParserState::Head { .. } | ParserState::Raw { .. } | ParserState::Frames(_)
        ) && self.rest().trim_ascii_start().is_empty()
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

    /// Takes a head off the buffer; `false` while it is incomplete.
    ///
    /// An incomplete head is parsed again only after another line has ended: otherwise a server
    /// could make the client parse all of it again for each byte.
    fn parse_head(&mut self) -> Result<bool, ClientFault> {
        let ParserState::Head { seen, informational } = self.state else { return Ok(false) };
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let unscanned = rest.get(seen..).unwrap_or_default();
        if unscanned.is_empty() {
            return Ok(false);
        }
        let may_be_complete =
            seen == 0 || rest.len() > HEAD_BYTES_MAX || unscanned.contains(&b'\n');
        let parsed =
            if may_be_complete { parse_response_head(rest, HEAD_BYTES_MAX)? } else { None };
        let Some(head) = parsed else {
            self.state = ParserState::Head { seen: rest.len(), informational };
            return Ok(false);
        };
        if head.status == 101 {
            if let Protocol::WebSocket { accept } = &self.protocol
                && head.websocket_accept.as_ref() == Some(accept)
            {
                self.taken += head.len;
                self.state = ParserState::Frames(MessageReader::default());
                return Ok(true);
            }
            return Err(ClientFault::Protocol("HTTP that switches to another protocol".to_owned()));
        }
        if (100..200).contains(&head.status) {
            if informational == INFORMATIONAL_MAX {
                return Err(ClientFault::TooManyInformational);
            }
            self.taken += head.len;
            self.state = ParserState::Head { seen: 0, informational: informational + 1 };
            return Ok(true);
        }
        if matches!(self.protocol, Protocol::WebSocket { .. }) && head.status < 300 {
            let clause = "HTTP without an upgrade to WebSocket".to_owned();
            return Err(ClientFault::Protocol(clause));
        }
        self.begin_body(head)?;
        Ok(true)
    }

    /// Starts on the body after a head, of which a part may have been received.
    fn begin_body(&mut self, head: ResponseHead) -> Result<(), ClientFault> {
        let rest = self.buffer.get(self.taken + head.len..).unwrap_or_default();
        let mut body = Vec::new();
        let (state, taken) = match head.body {
            ResponseBodyLength::Sized(len) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                self.check_size(len)?;
                body.reserve_exact(len);
                (ParserState::Sized { len }, len.min(rest.len()))
            }
            ResponseBodyLength::Chunked => (ParserState::Chunked(ChunkedDecoder::default()), 0),
            ResponseBodyLength::UntilClose => (ParserState::UntilClose, rest.len()),
        };
        body.extend_from_slice(rest.get(..taken).unwrap_or_default());
        self.taken += head.len + taken;
        let has_events = head.has_events && head.status == 200;
        if has_events && matches!(self.protocol, Protocol::HttpEvents) {
            self.events = Some(EventReader::new(self.bytes_max));
        }
        self.message = Message {
            status: head.status,
            reason: head.reason,
            body,
            retry_after_s: head.retry_after_s,
            location: head.location,
            ends_events: false,
        };
        self.keeps_alive = head.keeps_alive;
        self.state = state;
        Ok(())
    }

    /// Decodes the received part of a chunked body; `true` when it is complete.
    fn decode_chunks(&mut self) -> Result<bool, ClientFault> {
        let ParserState::Chunked(decoder) = &mut self.state else { return Ok(false) };
        let limits = ChunkedLimits {
            // The events of a body are limited one by one.
            body_bytes_max: if self.events.is_some() { u64::MAX } else { self.bytes_max as u64 },
            overhead_bytes_max: CHUNK_OVERHEAD_BYTES_MAX,
        };
        let bytes_max = self.bytes_max;
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let progress = decoder.decode(rest, &mut self.message.body, &limits);
        let progress = progress.map_err(|error| match error {
            HttpError::BodyTooLarge { .. } => ClientFault::TooLarge { bytes_max },
            error => ClientFault::Protocol(format!("HTTP where {error}")),
        })?;
        self.taken += progress.consumed;
        Ok(progress.is_done)
    }

    fn finish(&mut self) -> Message {
        self.state = ParserState::head();
        self.shrink();
        let message = mem::take(&mut self.message);
        match self.events.take() {
            Some(_) => Message { ends_events: true, ..Message::default() },
            None => message,
        }
    }

    /// Takes an event out of the received part of a body of events.
    fn next_event(&mut self) -> Result<Option<Vec<u8>>, ClientFault> {
        let Some(events) = &mut self.events else { return Ok(None) };
        let data = events.next(&self.message.body)?;
        // The length of a body of known length counts what was received.
        if data.is_none() && !matches!(self.state, ParserState::Sized { .. }) {
            events.forget_taken(&mut self.message.body);
        }
        Ok(data)
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
                Event::Fragment { .. } | Event::Pong(_) => {}
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
