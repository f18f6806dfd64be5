//! Parses the head of a response to a client: its status, the length of its body (RFC 9112,
//! section 6.3), and the headers of an upgrade.
//!
//! `httparse` splits the lines. A head that two parsers could read differently is rejected.

use std::mem::MaybeUninit;

use httparse::{Header, ParserConfig, Response, Status};

const HEADERS_MAX: usize = 100;

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

/// Why a head is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseHeadError {
    /// It is longer than the limit.
    TooLarge,
    /// It violates HTTP, or has what the request does not allow. The text is a clause.
    Invalid(String),
}

/// Parses the head at the front of `text`; `None` while it is incomplete.
///
/// # Errors
/// See [`ResponseHeadError`]. More bytes do not change the error.
pub fn parse_response_head(
    text: &[u8],
    bytes_max: usize,
) -> Result<Option<ResponseHead>, ResponseHeadError> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = Response::new(&mut []);
    let config = ParserConfig::default();
    let len = match config.parse_response_with_uninit_headers(&mut response, text, &mut headers) {
        Ok(Status::Complete(len)) if len > bytes_max => return Err(ResponseHeadError::TooLarge),
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if text.len() > bytes_max => return Err(ResponseHeadError::TooLarge),
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
    websocket_accept: Option<Vec<u8>>,
    retry_after_s: Option<u64>,
}

impl Fields {
    fn of(headers: &[Header<'_>]) -> Result<Self, ResponseHeadError> {
        let mut fields = Self::default();
        for header in headers {
            fields.take(header)?;
        }
        Ok(fields)
    }

    fn take(&mut self, header: &Header<'_>) -> Result<(), ResponseHeadError> {
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
        } else if is("retry-after") {
            self.retry_after_s = decimal(header.value);
        } else if is("sec-websocket-extensions") {
            return Err(not_http("an extension of WebSocket, which the request does not offer"));
        } else if is("content-encoding") && !header.value.eq_ignore_ascii_case(b"identity") {
            return Err(not_http("a compressed body, which the request does not accept"));
        }
        Ok(())
    }

    fn body(&self, version: u8) -> Result<ResponseBodyLength, ResponseHeadError> {
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

/// Parses a number of digits only.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cold]
fn not_http(what: &str) -> ResponseHeadError {
    ResponseHeadError::Invalid(format!("HTTP with {what}"))
}
