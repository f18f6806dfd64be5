//! Frames the items of streams, and cancels calls whose callers ask for that.
//!
//! | protocol | an item is | the reply after the last |
//! |---|---|---|
//! | WebSocket, raw TCP | a message | is a message |
//! | HTTP | an event or a line in a chunk of its own | is the last of them |
//!
//! Over HTTP a stream is the first exchange: its request has waited for the replies before it.

use std::time::{Duration, Instant};

use super::exchange::ExchangeReply;
use super::http::HttpFraming;
use super::{Environment, PlainConnection, Protocol};
use crate::http1::{Head, ReplyWriter};
use crate::rpc::{CallNumber, ItemFormat, RpcError, Service, item_len, write_item};
use crate::websocket::{Opcode, write_head};

/// The silence after which a comment shows that a stream of events is alive.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
const COMMENT: &[u8] = b": \n\n";

/// The framing of a stream over HTTP.
#[derive(Debug)]
pub(super) struct HttpItems {
    format: ItemFormat,
    has_begun: bool,
    last_sent_at: Instant,
}

impl HttpItems {
    pub(super) fn new(head: &Head<'_>, now: Instant) -> Self {
        let format = ItemFormat::accepted_by(head).unwrap_or(ItemFormat::Lines);
        Self { format, has_begun: false, last_sent_at: now }
    }

    /// When a comment is due.
    fn comment_due(&self) -> Option<Instant> {
        (self.format == ItemFormat::Events).then(|| self.last_sent_at + COMMENT_INTERVAL)
    }

    fn begin(&mut self, framing: &HttpFraming, replies: &ReplyWriter, out: &mut Vec<u8>) {
        if !self.has_begun {
            let content_type = self.format.media_type();
            replies.begin_chunked(out, content_type, &framing.reply_headers());
        }
        self.has_begun = true;
    }

    /// Appends a chunk with one event or line, of `len` bytes that `write` appends.
    fn write_chunk(&self, len: usize, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
        let (prefix, suffix): (&[u8], &[u8]) = match self.format {
            ItemFormat::Events => (b"data: ", b"\n\n"),
            _ => (b"", b"\n"),
        };
        let head = format!("{:x}\r\n", prefix.len() + len + suffix.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(prefix);
        let start = out.len();
        write(out);
        debug_assert_eq!(out.len() - start, len);
        // Only white space between the tokens of JSON may end a line.
        for byte in out.iter_mut().skip(start).filter(|byte| matches!(byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
        out.extend_from_slice(suffix);
        out.extend_from_slice(b"\r\n");
    }

    /// Appends the reply as the last event or line.
    pub(super) fn write_reply(
        mut self,
        framing: &HttpFraming,
        answer: &ExchangeReply,
        replies: &ReplyWriter,
        out: &mut Vec<u8>,
    ) {
        self.begin(framing, replies, out);
        let mut reply = Vec::new();
        answer.write(&mut reply);
        self.write_chunk(reply.len(), |out| out.extend_from_slice(&reply), out);
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

impl HttpFraming {
    fn write_item(
        &mut self,
        token: &[u8],
        value: &[u8],
        replies: &ReplyWriter,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        let Some(mut items) = self.items.take() else { return };
        items.begin(self, replies, out);
        items.last_sent_at = now;
        let len = item_len(token, value);
        items.write_chunk(len, |out| write_item(out, token, value), out);
        self.items = Some(items);
    }

    /// Writes a part of a route's response.
    fn write_part(&mut self, part: &[u8], replies: &ReplyWriter, out: &mut Vec<u8>) {
        let Some(mut response) = self.response.take() else { return };
        response.write_part(part, &self.reply_headers(), replies, out);
        self.response = Some(response);
    }

    fn write_comment(&mut self, replies: &ReplyWriter, now: Instant, out: &mut Vec<u8>) {
        let Some(mut items) = self.items.take() else { return };
        items.begin(self, replies, out);
        items.last_sent_at = now;
        out.extend_from_slice(format!("{:x}\r\n", COMMENT.len()).as_bytes());
        out.extend_from_slice(COMMENT);
        out.extend_from_slice(b"\r\n");
        self.items = Some(items);
    }
}

impl PlainConnection {
    /// Appends an item of a stream, whose value is JSON text. Returns `false` if nothing waits for
    /// it any more.
    pub(super) fn write_item<S>(
        &mut self,
        number: CallNumber,
        value: &[u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some((framing, token)) = self.exchanges.stream(number) else { return false };
        match &self.protocol {
            Protocol::Http(_) if framing.response.is_some() => {
                framing.write_part(value, environment.replies, out);
            }
            Protocol::Http(_) => {
                framing.write_item(token, value, environment.replies, environment.now, out);
            }
            Protocol::WebSocket(socket) if socket.is_closed() => return false,
            Protocol::WebSocket(_) => {
                write_head(out, Opcode::Text, item_len(token, value));
                write_item(out, token, value);
            }
            Protocol::Raw(_) | Protocol::Unknown => {
                write_item(out, token, value);
                out.push(b'\n');
            }
        }
        true
    }

    /// When a comment is due to the reader of events.
    pub(super) fn comment_due(&self) -> Option<Instant> {
        self.exchanges.peek_framing()?.items.as_ref()?.comment_due()
    }

    pub(super) fn write_comment<S>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        if let Some(framing) = self.exchanges.first_framing() {
            framing.write_comment(environment.replies, environment.now, out);
        }
    }

    /// Answers the calls that the last document has asked to cancel. Ids of calls that do not wait
    /// are ignored: their replies may be on the way.
    #[cold]
    pub(super) fn cancel_requested<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let error = RpcError::new(RpcError::REQUEST_CANCELLED, "Request cancelled");
        for id in std::mem::take(&mut environment.scratch.cancel_requests) {
            if let Some(number) = self.exchanges.number_of(&id) {
                environment.service.cancel(number);
                self.exchanges.complete(number, Err(&error), environment.limits.reply_bytes_max);
            }
        }
        self.flush_exchanges(environment, out);
    }
}
