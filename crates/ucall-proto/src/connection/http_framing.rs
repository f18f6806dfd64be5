//! How the replies of HTTP are framed that cannot be written at once.

use std::time::{Duration, Instant};

use super::Environment;
use super::compression::StreamEncoder;
use super::exchange::ExchangeReply;
use super::http_route::ResponseFraming;
use crate::coding::Flush;
use crate::endpoint::reply::EndpointReply;
use crate::http1::{
    AllowedOrigin, ConnectionOption, Head, Negotiation, ReplyHeaders, ReplyWriter, Version,
    continue_100, write_json_response,
};
use crate::json::Reader;
use crate::rpc::mcp::{self, McpStatus};
use crate::rpc::{ItemFormat, ItemToken, RpcError};

/// How a reply is framed that cannot be written yet.
#[derive(Debug, Default)]
pub(super) struct HttpFraming {
    /// That of the request.
    pub(super) version: Version,
    pub(super) connection: ConnectionOption,
    pub(super) negotiation: Negotiation,
    /// The origin to be named in the reply, when it is a foreign one.
    pub(super) allowed_origin: Option<Vec<u8>>,
    /// How the items of a stream are framed before the reply, and the reply with them.
    pub(super) items: Option<HttpItems>,
    /// Set if it is the reply to a single request of MCP: whether that is of the newest era.
    pub(super) is_newest_mcp: Option<bool>,
    /// Set if the reply is that of a call without JSON-RPC.
    pub(super) endpoint: Option<Box<EndpointReply>>,
    /// Set if the reply is the response of a route.
    pub(super) response: Option<ResponseFraming>,
}

impl HttpFraming {
    pub(super) fn new(head: &Head<'_>, reply_headers: &ReplyHeaders<'_>) -> Self {
        let origin = reply_headers.allowed_origin.map(|origin| origin.as_bytes().to_vec());
        let (version, connection) = (head.version(), reply_headers.connection);
        let negotiation = reply_headers.negotiation;
        Self { version, connection, negotiation, allowed_origin: origin, ..Self::default() }
    }

    /// Whether a part of the reply has been written.
    pub(super) fn has_begun(&self) -> bool {
        self.items.as_ref().is_some_and(|items| items.has_begun)
            || self.response.as_ref().is_some_and(ResponseFraming::has_begun)
    }

    /// Writes something that the client ignores, ahead of the rest of the reply. Returns `false`
    /// if there is nothing of that kind: clients of HTTP/1.0 know no interim responses.
    pub(super) fn write_probe<S>(&mut self, environment: &mut Environment<'_, S>) -> bool {
        if self.version == Version::Http10 {
            return false;
        }
        if !self.has_begun() {
            continue_100(environment.out);
        } else if self.items.as_ref().and_then(HttpItems::comment_due).is_some() {
            self.write_comment(environment);
        } else {
            return false;
        }
        true
    }

    /// Whether it is that of a call alone, whose reply has the status 200.
    pub(super) fn is_of_call(&self) -> bool {
        let Self { items, is_newest_mcp, endpoint, response, .. } = self;
        items.is_none() && is_newest_mcp.is_none() && endpoint.is_none() && response.is_none()
    }

    pub(super) fn reply_headers(&self) -> ReplyHeaders<'_> {
        ReplyHeaders {
            connection: self.connection,
            allowed_origin: self.allowed_origin.as_deref().map(AllowedOrigin::new),
            negotiation: self.negotiation,
        }
    }
}

/// The silence after which a comment shows that a stream of events is alive.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
/// The interval for MCP, whose Python clients by default wait 5 s for a byte.
const MCP_COMMENT_INTERVAL: Duration = Duration::from_secs(3);
const COMMENT: &[u8] = b": \n\n";

/// The framing of a stream over HTTP.
#[derive(Debug)]
pub(super) struct HttpItems {
    format: ItemFormat,
    /// Whether there may be no items.
    is_reporting: bool,
    /// Whether it is the reply to a request of MCP, which begins with a comment if it takes long.
    is_mcp: bool,
    has_begun: bool,
    last_sent_at: Instant,
    /// Set at the beginning, if the stream is compressed.
    encoder: Option<StreamEncoder>,
}

impl HttpItems {
    pub(super) fn new(head: &Head<'_>, is_reporting: bool, now: Instant) -> Self {
        let format = ItemFormat::accepted_by(head).unwrap_or(ItemFormat::Lines);
        let (last_sent_at, encoder) = (now, None);
        Self { format, is_reporting, is_mcp: false, has_begun: false, last_sent_at, encoder }
    }

    /// The framing of the reply to a request of MCP that is deferred; `None` if its client takes
    /// no events.
    pub(super) fn of_mcp(head: &Head<'_>, now: Instant) -> Option<Self> {
        ItemFormat::accepted_by(head).filter(|&format| format == ItemFormat::Events)?;
        Some(Self { is_mcp: true, ..Self::new(head, true, now) })
    }

    /// Whether the reply is the last event or line. An ordinary one has its own status and type,
    /// so a call that reports progress decides by its first item.
    pub(super) fn frame_reply(&self) -> bool {
        self.has_begun || !self.is_reporting
    }

    /// When a comment is due.
    pub(super) fn comment_due(&self) -> Option<Instant> {
        let interval = if self.is_mcp { MCP_COMMENT_INTERVAL } else { COMMENT_INTERVAL };
        let has_comments = self.format == ItemFormat::Events && (self.frame_reply() || self.is_mcp);
        has_comments.then(|| self.last_sent_at + interval)
    }

    fn begin<S>(&mut self, framing: &HttpFraming, environment: &mut Environment<'_, S>) {
        if !self.has_begun {
            self.encoder = StreamEncoder::new(framing.negotiation, environment);
            let negotiation =
                StreamEncoder::negotiation(self.encoder.as_ref(), framing.negotiation);
            let reply_headers = ReplyHeaders { negotiation, ..framing.reply_headers() };
            let content_type = self.format.media_type();
            environment.replies.begin_chunked(environment.out, content_type, &reply_headers);
        }
        self.has_begun = true;
    }

    /// The bytes around an event or a line.
    fn around(&self) -> (&'static [u8], &'static [u8]) {
        match self.format {
            ItemFormat::Events => (b"data: ", b"\n\n"),
            _ => (b"", b"\n"),
        }
    }

    /// Appends a chunk with one event or line, of `len` bytes that `write` appends.
    fn write_chunk(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
        let (prefix, suffix) = self.around();
        let Some(encoder) = &mut self.encoder else {
            let head = format!("{:x}\r\n", prefix.len() + len + suffix.len());
            out.extend_from_slice(head.as_bytes());
            write_line(prefix, write, suffix, out);
            out.extend_from_slice(b"\r\n");
            return;
        };
        let mut line = Vec::with_capacity(prefix.len() + len + suffix.len());
        write_line(prefix, write, suffix, &mut line);
        encoder.write_chunk(&line, Flush::Item, out);
    }

    /// Appends the reply as the last event or line.
    pub(super) fn write_reply<S>(
        mut self,
        framing: &HttpFraming,
        reply: &ExchangeReply,
        environment: &mut Environment<'_, S>,
    ) {
        self.begin(framing, environment);
        let mut text = Vec::new();
        reply.write(&mut text);
        let out = &mut *environment.out;
        self.write_chunk(text.len(), |out| out.extend_from_slice(&text), out);
        if let Some(encoder) = &mut self.encoder {
            encoder.write_chunk(b"", Flush::End, out);
        }
        out.extend_from_slice(b"0\r\n\r\n");
    }
}

/// Appends what `write` appends, as one line.
fn write_line(prefix: &[u8], write: impl FnOnce(&mut Vec<u8>), suffix: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(prefix);
    let start = out.len();
    write(out);
    // Only white space between the tokens of JSON may end a line.
    for byte in out.iter_mut().skip(start).filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    out.extend_from_slice(suffix);
}

impl HttpFraming {
    pub(super) fn write_item<S>(
        &mut self,
        token: &ItemToken,
        value: &[u8],
        environment: &mut Environment<'_, S>,
    ) {
        let Some(mut items) = self.items.take() else { return };
        items.begin(self, environment);
        items.last_sent_at = environment.now;
        let len = token.item_len(value);
        items.write_chunk(len, |out| token.write_item(out, value), environment.out);
        self.items = Some(items);
    }

    /// Writes a part of a route's response.
    pub(super) fn write_part<S>(&mut self, part: &[u8], environment: &mut Environment<'_, S>) {
        let Some(mut response) = self.response.take() else { return };
        response.write_part(part, &self.reply_headers(), environment);
        self.response = Some(response);
    }

    pub(super) fn write_comment<S>(&mut self, environment: &mut Environment<'_, S>) {
        let Some(mut items) = self.items.take() else { return };
        items.begin(self, environment);
        items.last_sent_at = environment.now;
        let out = &mut *environment.out;
        match &mut items.encoder {
            Some(encoder) => encoder.write_chunk(COMMENT, Flush::Item, out),
            None => {
                out.extend_from_slice(format!("{:x}\r\n", COMMENT.len()).as_bytes());
                out.extend_from_slice(COMMENT);
                out.extend_from_slice(b"\r\n");
            }
        }
        self.items = Some(items);
    }
}

/// Writes a reply that had to wait.
pub(super) fn write_deferred_reply(
    framing: &HttpFraming,
    reply: &ExchangeReply,
    replies: &mut ReplyWriter,
    out: &mut Vec<u8>,
) {
    if matches!(reply, ExchangeReply::Framed(_)) {
        return reply.write(out);
    }
    let pending = replies.begin(out, &framing.reply_headers());
    reply.write(out);
    let status = framing.is_newest_mcp.map(|is_newest| {
        let text = out.get(pending.body_at()..).unwrap_or_default();
        mcp::status(error_code(text), is_newest)
    });
    match status {
        None | Some(McpStatus::Ok) => replies.end(out, pending),
        Some(status) => {
            let text = out.split_off(pending.body_at());
            replies.abort(out, pending);
            let (line, headers) = status.lines();
            let mut response = Vec::new();
            write_json_response(&mut response, line, headers, &text);
            replies.response(out, &response, &framing.reply_headers(), false);
        }
    }
}

/// The code of the error that a reply has. A result, which may be long, is not read.
fn error_code(reply: &[u8]) -> Option<i64> {
    let mut reader = Reader::new(reply);
    reader.enter();
    while let Some(name) = reader.next_key() {
        match name.raw() {
            b"result" => return None,
            b"error" => return Some(RpcError::of_object(reader.skip()).code),
            _ => _ = reader.skip(),
        }
    }
    None
}
