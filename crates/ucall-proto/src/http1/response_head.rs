//! Parses the head of a response to a client: its status, the length of its body (RFC 9112,
//! section 6.3), and the headers of an upgrade.
//!
//! `httparse` splits the lines. A head that two parsers could read differently is rejected.

use std::mem::MaybeUninit;

use httparse::{Header, ParserConfig, Response, Status};

use super::bytes::{decimal, list};
use super::fields::is_header;
use crate::coding::Coding;

const HEADERS_MAX: usize = 100;

/// Why a response cannot be read, and nothing after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The body is longer than this many bytes.
    BodyTooLarge(usize),
    /// It violates HTTP or another limit, or has what the request does not allow. The text is a
    /// clause.
    Invalid(String),
}

/// A parsed head.
#[derive(Debug)]
pub struct ResponseHead {
    /// Its own length in bytes.
    pub len: usize,
    /// The status code.
    pub status: u16,
    /// The reason phrase, kept for statuses other than success.
    pub reason: String,
    /// The length of the body.
    pub body: ResponseBodyLength,
    /// Whether another request may be sent on the connection.
    pub keeps_alive: bool,
    /// Whether the body is a stream of server-sent events.
    pub has_events: bool,
    /// Whether the body is a document with binary parts.
    pub has_parts: bool,
    /// The coding of the body, if it has one.
    pub coding: Option<Coding>,
    /// The proof of a server that it speaks WebSocket (RFC 6455, section 4.2.2).
    pub websocket_accept: Option<Vec<u8>>,
    /// `Retry-After` in seconds (RFC 9110, section 10.2.3). A date is ignored.
    pub retry_after_s: Option<u64>,
    /// `Location` of a redirect (RFC 9110, section 10.2.2).
    pub location: Option<String>,
}

/// The length of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBodyLength {
    /// The number of bytes.
    Sized(u64),
    /// In chunks, see [`ChunkedDecoder`](super::ChunkedDecoder).
    Chunked,
    /// All bytes until the connection is closed.
    UntilClose,
}

/// Parses the head at the front of `text`; `None` while it is incomplete.
///
/// # Errors
/// See [`ResponseError`]. More bytes do not change the error.
pub(super) fn parse_response_head(
    text: &[u8],
    bytes_max: usize,
) -> Result<Option<ResponseHead>, ResponseError> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = Response::new(&mut []);
    let config = ParserConfig::default();
    let len = match config.parse_response_with_uninit_headers(&mut response, text, &mut headers) {
        Ok(Status::Complete(len)) if len > bytes_max => {
            return Err(too_large(bytes_max));
        }
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if text.len() > bytes_max => {
            return Err(too_large(bytes_max));
        }
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(not_http(&error.to_string())),
    };
    let version = response.version.unwrap_or_default();
    let status = response.code.unwrap_or_default();
    let fields = Fields::of(response.headers)?;
    let body = match status {
        // These statuses have no body, whatever the headers say.
        100..200 | 204 | 304 => ResponseBodyLength::Sized(0),
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
    let location = match status {
        300..400 => value_of(response.headers, "location"),
        _ => None,
    };
    let keeps_alive = keeps_alive && body != ResponseBodyLength::UntilClose;
    Ok(Some(ResponseHead {
        len,
        status,
        reason,
        body,
        keeps_alive,
        has_events: fields.has_events,
        has_parts: fields.has_parts,
        coding: fields.coding,
        websocket_accept: fields.websocket_accept,
        retry_after_s: fields.retry_after_s,
        location,
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
    has_parts: bool,
    coding: Option<Coding>,
    websocket_accept: Option<Vec<u8>>,
    retry_after_s: Option<u64>,
}

impl Fields {
    fn of(headers: &[Header<'_>]) -> Result<Self, ResponseError> {
        let mut fields = Self::default();
        for header in headers {
            fields.take(header)?;
        }
        Ok(fields)
    }

    fn take(&mut self, header: &Header<'_>) -> Result<(), ResponseError> {
        let (name, value) = (header.name.as_bytes(), header.value);
        match name.len() {
            10 if is_header(name, b"Connection") => {
                let has = |token: &[u8]| list(value).any(|part| part.eq_ignore_ascii_case(token));
                self.close |= has(b"close");
                self.keep_alive |= has(b"keep-alive");
            }
            11 if is_header(name, b"Retry-After") => self.retry_after_s = decimal(value),
            12 if is_header(name, b"Content-Type") => {
                self.has_events = is_media(value, b"text/event-stream");
                self.has_parts = is_media(value, b"application/vnd.ucall.parts");
            }
            14 if is_header(name, b"Content-Length") => {
                let length = decimal(value).ok_or_else(|| not_http("a bad Content-Length"))?;
                if self.content_length.is_some_and(|other| other != length) {
                    return Err(not_http("two lengths"));
                }
                self.content_length = Some(length);
            }
            16 if is_header(name, b"Content-Encoding")
                && !value.eq_ignore_ascii_case(b"identity") =>
            {
                match (self.coding, Coding::named(value)) {
                    (None, Some(coding)) => self.coding = Some(coding),
                    _ => return Err(unaccepted_coding()),
                }
            }
            17 if is_header(name, b"Transfer-Encoding") => {
                if self.transfer_encoding || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(not_http("a transfer coding other than chunked"));
                }
                self.transfer_encoding = true;
            }
            20 if is_header(name, b"Sec-WebSocket-Accept") => {
                self.websocket_accept = Some(value.trim_ascii().to_vec());
            }
            24 if is_header(name, b"Sec-WebSocket-Extensions") => {
                let what = "an extension of WebSocket, which the request does not offer";
                return Err(not_http(what));
            }
            _ => {}
        }
        Ok(())
    }

    fn body(&self, version: u8) -> Result<ResponseBodyLength, ResponseError> {
        match (self.transfer_encoding, self.content_length) {
            (true, Some(_)) => Err(not_http("both a length and a transfer coding")),
            (true, None) if version == 0 => Err(not_http("chunks in HTTP/1.0")),
            (true, None) => Ok(ResponseBodyLength::Chunked),
            (false, Some(length)) => Ok(ResponseBodyLength::Sized(length)),
            (false, None) => Ok(ResponseBodyLength::UntilClose),
        }
    }
}

/// The value of the first header of a name.
#[cold]
fn value_of(headers: &[Header<'_>], name: &str) -> Option<String> {
    let found = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
    Some(String::from_utf8_lossy(found.value.trim_ascii()).into_owned())
}

fn is_media(content_type: &[u8], expected: &[u8]) -> bool {
    let Some((media, rest)) = content_type.split_at_checked(expected.len()) else {
        return false;
    };
    media.eq_ignore_ascii_case(expected)
        && matches!(rest.trim_ascii_start().first(), None | Some(b';'))
}

#[cold]
fn too_large(bytes_max: usize) -> ResponseError {
    ResponseError::Invalid(format!("a head of more than {bytes_max} bytes"))
}

/// The body has a coding that the request does not accept.
#[cold]
pub(super) fn unaccepted_coding() -> ResponseError {
    not_http("a compressed body, which the request does not accept")
}

#[cold]
fn not_http(what: &str) -> ResponseError {
    ResponseError::Invalid(format!("HTTP with {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_events_has_their_media_type() {
        for (value, is_stream) in [
            ("text/event-stream", true),
            ("Text/Event-Stream ; charset=utf-8", true),
            ("text/event-streams", false),
            ("text/event", false),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\ncontent-type: {value}\r\n\r\n");
            let head = parse_response_head(text.as_bytes(), 1000).unwrap().unwrap();
            assert_eq!(head.has_events, is_stream, "{value}");
        }
    }
}
