//! Reply heads.
//!
//! The body is written directly after its head, so its length is known only afterwards. The head is
//! therefore written with the length of the previous reply, which is often right. If it is wrong,
//! it mostly has the right number of digits; otherwise the body moves by the difference. The head
//! of a success is prebuilt, with the date of the current second.

use std::mem;

use super::access::AllowedOrigin;
use super::date::{DATE_BYTES, date_text};
use super::error::HttpError;
use super::method::Methods;
use crate::coding::Coding;
use crate::json::write_string;

const OK_HEAD: &[u8; 102] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: ";
const DATE_LINE_AT: usize = 49;
const DATE_AT: usize = DATE_LINE_AT + "Date: ".len();
const DATE_LINE_END: usize = DATE_AT + DATE_BYTES + "\r\n".len();

const LENGTH_NAME: &[u8] = b"Content-Length: ";
/// As many digits as a 64-bit number may have.
const DIGITS_MAX: usize = 20;
const HEAD_END: &[u8; 4] = b"\r\n\r\n";

const UPGRADE: &[u8] =
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n";
/// `*` does not cover Authorization, and browsers before 2022 do not know it.
const PREFLIGHT: &[u8] = b"\
    Access-Control-Allow-Headers: Content-Type, Authorization, *\r\n\
    Access-Control-Max-Age: 600\r\n";

/// The `Connection` header of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionOption {
    /// No header: HTTP/1.1 keeps the connection.
    #[default]
    Implied,
    /// `keep-alive`, for HTTP/1.0.
    KeepAlive,
    /// `close`.
    Close,
}

/// Whether a reply is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Negotiation {
    /// The server compresses no replies.
    #[default]
    Off,
    /// The client accepts no coding.
    Identity,
    /// It prefers this one.
    Coding(Coding),
}

impl Negotiation {
    /// Appends the headers of a reply with this coding.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        if self != Self::Off {
            out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
        if let Self::Coding(coding) = self {
            let line = format!("Content-Encoding: {}\r\n", coding.name());
            out.extend_from_slice(line.as_bytes());
        }
    }
}

/// Optional headers of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHeaders<'a> {
    /// What becomes of the connection.
    pub connection: ConnectionOption,
    /// The foreign origin that may read the reply.
    pub allowed_origin: Option<AllowedOrigin<'a>>,
    /// The coding that the reply may have. A whole reply is written without it.
    pub negotiation: Negotiation,
}

impl ReplyHeaders<'_> {
    #[inline]
    fn is_empty(&self) -> bool {
        self.connection == ConnectionOption::Implied && self.allowed_origin.is_none()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self.connection {
            ConnectionOption::Implied => {}
            ConnectionOption::KeepAlive => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            ConnectionOption::Close => out.extend_from_slice(b"Connection: close\r\n"),
        }
        if let Some(origin) = self.allowed_origin {
            out.extend_from_slice(b"Access-Control-Allow-Origin: ");
            out.extend_from_slice(origin.as_bytes());
            out.extend_from_slice(b"\r\nVary: Origin\r\n");
        }
    }
}

/// What the body of an error reply is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorBody {
    /// Plain text.
    #[default]
    Text,
    /// An object with the text as its member `error`, as the Open Inference Protocol has it.
    Json,
}

impl ErrorBody {
    fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json => "application/json",
        }
    }

    fn of(self, error: &HttpError) -> Vec<u8> {
        match self {
            Self::Text => format!("{error}\n").into_bytes(),
            Self::Json => {
                let mut body = b"{\"error\":".to_vec();
                write_string(&mut body, &error.to_string());
                body.push(b'}');
                body
            }
        }
    }
}

/// A reply whose body is being written. Pass it to [`ReplyWriter::end`] or [`ReplyWriter::abort`],
/// with the same buffer and only the body after the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pending reply has no length yet"]
pub struct PendingReply {
    /// Where the reply starts.
    start: usize,
    /// Where the digits of its length start.
    length_at: usize,
    /// The number of digits.
    digits: usize,
    /// The length in these digits.
    length: usize,
}

impl PendingReply {
    /// Where the body starts.
    #[must_use]
    #[inline]
    pub fn body_at(&self) -> usize {
        self.length_at + self.digits + HEAD_END.len()
    }
}

/// Writes replies. Each worker has one, and sets its time.
#[derive(Clone, Debug)]
pub struct ReplyWriter {
    /// The head with the expected length, and the blank line. All of it is appended and the excess
    /// truncated: a copy of constant size needs no call.
    ok_head: [u8; OK_HEAD.len() + DIGITS_MAX + HEAD_END.len()],
    unix_seconds: u64,
    /// The last length, the guess for the next, and how many digits it has.
    length: usize,
    digits: usize,
    /// The value of `WWW-Authenticate`.
    challenge: String,
}

impl Default for ReplyWriter {
    fn default() -> Self {
        let mut ok_head = [b'0'; _];
        ok_head[..OK_HEAD.len()].copy_from_slice(OK_HEAD);
        let challenge = "Bearer".into();
        let mut writer = Self { ok_head, unix_seconds: 0, length: 0, digits: 0, challenge };
        writer.expect_length(0);
        writer
    }
}

impl ReplyWriter {
    /// Sets the time for `Date`. Costs one comparison within the same second.
    #[inline]
    pub fn set_time(&mut self, unix_seconds: u64) {
        if self.unix_seconds != unix_seconds {
            self.unix_seconds = unix_seconds;
            self.ok_head[DATE_AT..DATE_AT + DATE_BYTES].copy_from_slice(&date_text(unix_seconds));
        }
    }

    /// Sets the challenge of a 401 or 403, and returns the one before; the default is `Bearer`.
    pub fn set_challenge(&mut self, challenge: String) -> String {
        mem::replace(&mut self.challenge, challenge)
    }

    /// Sets the length of the next heads; returns its digits.
    fn expect_length(&mut self, length: usize) -> &[u8] {
        let mut buffer = itoa::Buffer::new();
        let text = buffer.format(length).as_bytes();
        (self.length, self.digits) = (length, text.len());
        let (digits, end) = self.ok_head[OK_HEAD.len()..].split_at_mut(text.len());
        digits.copy_from_slice(text);
        end[..HEAD_END.len()].copy_from_slice(HEAD_END);
        digits
    }

    /// Writes the head of a 200, whose body may be a JSON-RPC error. The caller appends the body to
    /// `out`.
    #[inline]
    pub fn begin(&self, out: &mut Vec<u8>, reply_headers: &ReplyHeaders<'_>) -> PendingReply {
        let start = out.len();
        let length_at = if reply_headers.is_empty() {
            out.extend_from_slice(&self.ok_head);
            start + OK_HEAD.len()
        } else {
            self.begin_with_headers(out, reply_headers)
        };
        let pending = PendingReply { start, length_at, digits: self.digits, length: self.length };
        out.truncate(pending.body_at());
        pending
    }

    /// Appends the head of a 200 with optional headers; returns where its length starts.
    #[inline(never)]
    fn begin_with_headers(&self, out: &mut Vec<u8>, reply_headers: &ReplyHeaders<'_>) -> usize {
        out.extend_from_slice(&self.ok_head[..DATE_LINE_END]);
        reply_headers.write(out);
        out.extend_from_slice(LENGTH_NAME);
        let length_at = out.len();
        out.extend_from_slice(&self.ok_head[OK_HEAD.len()..]);
        length_at
    }

    /// Writes the length of the body, which is all that follows the head in `out`.
    #[inline]
    pub fn end(&mut self, out: &mut Vec<u8>, pending: PendingReply) {
        let length = out.len().saturating_sub(pending.body_at());
        if length != pending.length {
            self.correct_length(out, pending, length);
        }
    }

    /// Replaces the expected length by the actual one.
    #[inline(never)]
    fn correct_length(&mut self, out: &mut Vec<u8>, pending: PendingReply, length: usize) {
        let text = self.expect_length(length);
        let Some(digits) = out.get_mut(pending.length_at..pending.length_at + pending.digits)
        else {
            return debug_assert!(false, "the buffer was cut below the head of its reply");
        };
        if digits.len() == text.len() {
            digits.copy_from_slice(text);
        } else {
            out.splice(pending.length_at..pending.length_at + pending.digits, text.iter().copied());
        }
    }

    /// Writes the head of a chunked 200, whose chunks follow as they are made. Asks proxies not to
    /// collect them.
    pub fn begin_chunked(
        &self,
        out: &mut Vec<u8>,
        content_type: &str,
        reply_headers: &ReplyHeaders<'_>,
    ) {
        let lines = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nCache-Control: no-store\r\n\
             X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n"
        );
        out.extend_from_slice(lines.as_bytes());
        out.extend_from_slice(self.date_line());
        reply_headers.write(out);
        reply_headers.negotiation.write(out);
        out.extend_from_slice(b"\r\n");
    }

    /// Takes the reply back, as if it had never begun.
    pub fn abort(&self, out: &mut Vec<u8>, pending: PendingReply) {
        out.truncate(pending.start);
    }

    /// Writes `204 No Content`: the reply to a notification.
    pub fn no_content(&self, out: &mut Vec<u8>, reply_headers: &ReplyHeaders<'_>) {
        self.write_no_content(out, reply_headers, b"");
    }

    /// Writes the reply to OPTIONS: which methods the path has, and to a preflight from an allowed
    /// origin that it may send its request.
    pub fn options(&self, out: &mut Vec<u8>, methods: Methods, reply_headers: &ReplyHeaders<'_>) {
        let mut lines = Vec::new();
        if reply_headers.allowed_origin.is_some() {
            methods.write_line(&mut lines, "Access-Control-Allow-Methods");
            lines.extend_from_slice(PREFLIGHT);
        } else {
            methods.write_line(&mut lines, "Allow");
        }
        self.write_no_content(out, reply_headers, &lines);
    }

    /// Writes an error reply. Its body states what was expected. For the method HEAD (`is_head`)
    /// the body is omitted, but not its length.
    #[cold]
    pub fn error(
        &self,
        out: &mut Vec<u8>,
        error: &HttpError,
        reply_headers: &ReplyHeaders<'_>,
        body: ErrorBody,
        is_head: bool,
    ) {
        let status_line = format!("HTTP/1.1 {} {}\r\n", error.status(), error.reason());
        out.extend_from_slice(status_line.as_bytes());
        out.extend_from_slice(format!("Content-Type: {}\r\n", body.content_type()).as_bytes());
        out.extend_from_slice(self.date_line());
        match *error {
            HttpError::Unauthorized | HttpError::InsufficientScope => {
                let line = format!("WWW-Authenticate: {}\r\n", self.challenge);
                out.extend_from_slice(line.as_bytes());
            }
            HttpError::MethodNotAllowed { allow } => allow.write_line(out, "Allow"),
            HttpError::WebSocketVersionUnsupported => out.extend_from_slice(UPGRADE),
            // RFC 9110, section 12.5.3.
            HttpError::ContentCodingUnsupported => {
                let line = format!("Accept-Encoding: {}\r\n", Coding::ALL);
                out.extend_from_slice(line.as_bytes());
            }
            HttpError::Overloaded | HttpError::Draining | HttpError::AuthenticationUnavailable => {
                out.extend_from_slice(b"Retry-After: 1\r\n");
            }
            _ => {}
        }
        reply_headers.write(out);
        let body = body.of(error);
        out.extend_from_slice(LENGTH_NAME);
        out.extend_from_slice(body.len().to_string().as_bytes());
        out.extend_from_slice(HEAD_END);
        if !is_head {
            out.extend_from_slice(&body);
        }
    }

    fn write_no_content(&self, out: &mut Vec<u8>, reply_headers: &ReplyHeaders<'_>, lines: &[u8]) {
        out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n");
        out.extend_from_slice(self.date_line());
        out.extend_from_slice(lines);
        reply_headers.write(out);
        out.extend_from_slice(b"\r\n");
    }

    pub(super) fn date_line(&self) -> &[u8] {
        &self.ok_head[DATE_LINE_AT..DATE_LINE_END]
    }
}

/// Writes `100 Continue`, for a peer that waits before it sends its body.
pub fn continue_100(out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
}
