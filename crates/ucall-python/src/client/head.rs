//! Parses the head of an HTTP reply: its status, the length of its body (RFC 9112, section 6.3),
//! and the headers of an upgrade.
//!
//! `httparse` splits the lines. A head that two parsers could read differently is rejected.

use std::mem::MaybeUninit;

use httparse::{Header, ParserConfig, Response, Status};

use super::error::ClientFault;
use super::limits::HEAD_BYTES_MAX;

const HEADERS_MAX: usize = 100;

/// A parsed head.
#[derive(Debug)]
pub(super) struct Head {
    /// Its own length in bytes.
    pub(super) len: usize,
    pub(super) status: u16,
    /// The reason phrase, kept for statuses other than success.
    pub(super) reason: String,
    pub(super) body: Body,
    /// Whether another request may be sent on the connection.
    pub(super) keeps_alive: bool,
    /// Whether the body is a stream of server-sent events.
    pub(super) has_events: bool,
    /// The proof of a server that it speaks WebSocket (RFC 6455, section 4.2.2).
    pub(super) websocket_accept: Option<Vec<u8>>,
}

/// The length of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Sized(u64),
    Chunked,
    UntilClose,
}

/// Parses the head at the front of `text`; `None` while it is incomplete.
pub(super) fn parse(text: &[u8]) -> Result<Option<Head>, ClientFault> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = Response::new(&mut []);
    let config = ParserConfig::default();
    let len = match config.parse_response_with_uninit_headers(&mut response, text, &mut headers) {
        Ok(Status::Complete(len)) if len > HEAD_BYTES_MAX => return Err(ClientFault::HeadTooLarge),
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if text.len() > HEAD_BYTES_MAX => {
            return Err(ClientFault::HeadTooLarge);
        }
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(not_http(&error.to_string())),
    };
    let version = response.version.unwrap_or_default();
    let status = response.code.unwrap_or_default();
    let fields = Fields::of(response.headers)?;
    let body = match status {
        // These statuses have no body, whatever the headers say.
        100..200 | 204 | 304 => Body::Sized(0),
        _ => fields.body(version)?,
    };
    let keeps_alive = match version {
        0 => fields.keep_alive && !fields.close,
        _ => !fields.close,
    };
    let reason = match status {
        200..300 => String::new(),
        _ => response.reason.unwrap_or_default().to_owned(),
    };
    let keeps_alive = keeps_alive && body != Body::UntilClose;
    Ok(Some(Head {
        len,
        status,
        reason,
        body,
        keeps_alive,
        has_events: fields.has_events,
        websocket_accept: fields.websocket_accept,
    }))
}

/// The headers that determine the body and the connection.
#[derive(Default)]
struct Fields {
    content_length: Option<u64>,
    transfer_encoding: bool,
    close: bool,
    keep_alive: bool,
    has_events: bool,
    websocket_accept: Option<Vec<u8>>,
}

impl Fields {
    fn of(headers: &[Header<'_>]) -> Result<Self, ClientFault> {
        let mut fields = Self::default();
        for header in headers {
            fields.take(header)?;
        }
        Ok(fields)
    }

    fn take(&mut self, header: &Header<'_>) -> Result<(), ClientFault> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let length = decimal(header.value).ok_or_else(|| not_http("a bad Content-Length"))?;
            if self.content_length.is_some_and(|other| other != length) {
                return Err(not_http("two lengths"));
            }
            self.content_length = Some(length);
        } else if is("transfer-encoding") {
            if self.transfer_encoding || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(not_http("a transfer coding other than chunked"));
            }
            self.transfer_encoding = true;
        } else if is("connection") {
            let has = |token: &[u8]| {
                header
                    .value
                    .split(|&byte| byte == b',')
                    .any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
            };
            self.close |= has(b"close");
            self.keep_alive |= has(b"keep-alive");
        } else if is("content-type") {
            let media = header.value.split(|&byte| byte == b';').next().unwrap_or_default();
            self.has_events = media.trim_ascii().eq_ignore_ascii_case(b"text/event-stream");
        } else if is("sec-websocket-accept") {
            self.websocket_accept = Some(header.value.trim_ascii().to_vec());
        } else if is("sec-websocket-extensions") {
            return Err(not_http("an extension of WebSocket, which the request does not offer"));
        } else if is("content-encoding") && !header.value.eq_ignore_ascii_case(b"identity") {
            return Err(not_http("a compressed body, which the request does not accept"));
        }
        Ok(())
    }

    fn body(&self, version: u8) -> Result<Body, ClientFault> {
        match (self.transfer_encoding, self.content_length) {
            (true, Some(_)) => Err(not_http("both a length and a transfer coding")),
            (true, None) if version == 0 => Err(not_http("chunks in HTTP/1.0")),
            (true, None) => Ok(Body::Chunked),
            (false, Some(length)) => Ok(Body::Sized(length)),
            (false, None) => Ok(Body::UntilClose),
        }
    }
}

/// Parses a number of digits only.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cold]
fn not_http(what: &str) -> ClientFault {
    ClientFault::Protocol(format!("HTTP with {what}"))
}
