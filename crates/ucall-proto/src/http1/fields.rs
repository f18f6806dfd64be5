//! Header lines, and the headers that determine the framing.
//!
//! Every line is validated byte by byte. Its name is then compared with the few names that this
//! server uses, by length first, because most names differ in length.

use super::bytes::{Span, decimal, list, text_length, token_length, trim, trim_start};
use super::error::HttpError;
use super::head::{BodyLength, ContentCoding, Version};
use super::host::is_authority;
use crate::coding::Coding;

/// What the bytes after the last line hold.
pub(super) enum Line<'a> {
    /// A line whose end has not arrived.
    Partial,
    /// The blank line.
    Blank,
    /// `name: value`; `value_at` and `len` count from the start of the line, CRLF included.
    Field { name: &'a [u8], value: &'a [u8], value_at: usize, len: usize },
}

/// Reads the line that `bytes` starts with.
#[inline]
pub(super) fn read_line(bytes: &[u8]) -> Result<Line<'_>, HttpError> {
    let (name, rest) = bytes.split_at(token_length(bytes));
    let after_colon = match rest {
        [b':', after_colon @ ..] if !name.is_empty() => after_colon,
        [b'\r', b'\n', ..] if name.is_empty() => return Ok(Line::Blank),
        _ => return classify_non_field(name, rest),
    };
    let (padded, end) = after_colon.split_at(text_length(after_colon));
    match end {
        [b'\r', b'\n', ..] => {}
        [] | [b'\r'] => return Ok(Line::Partial),
        [byte, ..] => return Err(HttpError::for_byte(*byte)),
    }
    let value_at = name.len() + 1 + padded.len() - trim_start(padded).len();
    let value = trim(padded);
    Ok(Line::Field { name, value, value_at, len: name.len() + 1 + padded.len() + 2 })
}

/// Why `rest`, which follows the token `name`, does not start with a colon after a name.
#[cold]
fn classify_non_field<'a>(name: &[u8], rest: &[u8]) -> Result<Line<'a>, HttpError> {
    match (name, rest) {
        (_, []) | ([], [b'\r']) => Ok(Line::Partial),
        ([], [b' ' | b'\t', ..]) => Err(HttpError::HeaderFolded),
        (_, [b' ' | b'\t', ..]) => Err(HttpError::SpaceBeforeColon),
        ([], [b'\r', ..]) => Err(HttpError::CarriageReturnAlone),
        (_, [b'\n', ..]) => Err(HttpError::LineFeedAlone),
        _ => Err(HttpError::HeaderNameMalformed),
    }
}

/// The media types of streams.
pub(crate) const EVENTS_TYPE: &str = "text/event-stream";
pub(crate) const LINES_TYPE: &str = "application/x-ndjson";

/// Values that change from one request to the next of a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Variable {
    pub content_length: Span,
    pub traceparent: Span,
    pub cookie: Span,
}

impl Variable {
    /// The spans of `head` before, between and after these values.
    pub(super) fn rest_of(&self, head: &[u8]) -> [Span; 4] {
        let mut values = [self.content_length, self.traceparent, self.cookie];
        values.sort_unstable_by_key(|value| value.start);
        let [first, second, third] = values;
        [
            Span { start: 0, end: first.start },
            Span { start: first.end, end: second.start },
            Span { start: second.end, end: third.start },
            Span { start: third.end, end: head.len() },
        ]
    }
}

/// The values of the headers read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeaderState {
    pub host: Option<Span>,
    pub origin: Option<Span>,
    pub timeout_ms: Option<u64>,
    pub coding: ContentCoding,
    /// There is an `Accept-Encoding`.
    pub accepts_coding: bool,
    /// `Accept` names a type of streams.
    pub accepts_streams: bool,
    /// The values that may differ in an otherwise equal head; empty without the header.
    variable: Variable,
    content_length: Option<u64>,
    has_transfer_encoding: bool,
    is_chunked: bool,
    has_unknown_coding: bool,
    asks_close: bool,
    asks_keep_alive: bool,
    expects_continue: bool,
}

impl HeaderState {
    /// Records one header. `span` is the position of `value` in the input.
    #[inline]
    pub(super) fn record(
        &mut self,
        name: &[u8],
        value: &[u8],
        span: Span,
    ) -> Result<(), HttpError> {
        match name.len() {
            4 if is_header(name, b"Host") => self.record_host(value, span),
            6 if is_header(name, b"Origin") => self.record_origin(span),
            6 if is_header(name, b"Expect") => self.record_expect(value),
            6 if is_header(name, b"Cookie") => {
                self.variable.cookie = span;
                Ok(())
            }
            6 if is_header(name, b"Accept") => {
                self.record_accept(value);
                Ok(())
            }
            10 if is_header(name, b"Connection") => {
                self.record_connection(value);
                Ok(())
            }
            11 if is_header(name, b"Traceparent") => {
                self.variable.traceparent = span;
                Ok(())
            }
            14 if is_header(name, b"Content-Length") => self.record_content_length(value, span),
            15 if is_header(name, b"Accept-Encoding") => {
                self.accepts_coding = true;
                Ok(())
            }
            16 if is_header(name, b"Ucall-Timeout-Ms") => self.record_timeout(value),
            16 if is_header(name, b"Content-Encoding") => {
                self.record_coding(value);
                Ok(())
            }
            17 if is_header(name, b"Transfer-Encoding") => self.record_transfer_encoding(value),
            _ => Ok(()),
        }
    }

    #[inline]
    fn record_host(&mut self, value: &[u8], span: Span) -> Result<(), HttpError> {
        if self.host.is_some() {
            return Err(HttpError::HostRepeated);
        }
        if !is_authority(value) {
            return Err(HttpError::HostMalformed);
        }
        self.host = Some(span);
        Ok(())
    }

    fn record_origin(&mut self, span: Span) -> Result<(), HttpError> {
        match self.origin.replace(span) {
            Some(_) => Err(HttpError::OriginRepeated),
            None => Ok(()),
        }
    }

    fn record_expect(&mut self, value: &[u8]) -> Result<(), HttpError> {
        if !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(HttpError::ExpectationUnknown);
        }
        self.expects_continue = true;
        Ok(())
    }

    fn record_accept(&mut self, value: &[u8]) {
        let begins_with = |range: &[u8], name: &str| {
            range.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name.as_bytes()))
        };
        self.accepts_streams |= list(value)
            .any(|range| begins_with(range, EVENTS_TYPE) || begins_with(range, LINES_TYPE));
    }

    fn record_connection(&mut self, value: &[u8]) {
        for option in list(value) {
            self.asks_close |= option.eq_ignore_ascii_case(b"close");
            self.asks_keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    #[inline]
    fn record_content_length(&mut self, value: &[u8], span: Span) -> Result<(), HttpError> {
        self.variable.content_length = span;
        let length = decimal(value).ok_or(HttpError::ContentLengthMalformed)?;
        match self.content_length.replace(length) {
            Some(_) => Err(HttpError::ContentLengthRepeated),
            None => Ok(()),
        }
    }

    fn record_timeout(&mut self, value: &[u8]) -> Result<(), HttpError> {
        let timeout_ms = decimal(value).ok_or(HttpError::TimeoutMalformed)?;
        match self.timeout_ms.replace(timeout_ms) {
            Some(_) => Err(HttpError::TimeoutMalformed),
            None => Ok(()),
        }
    }

    #[cold]
    fn record_coding(&mut self, value: &[u8]) {
        let is_coding = |it: &&[u8]| !it.is_empty() && !it.eq_ignore_ascii_case(b"identity");
        for name in list(value).filter(is_coding) {
            self.coding = match (self.coding, Coding::named(name)) {
                (ContentCoding::Identity, Some(coding)) => ContentCoding::Known(coding),
                _ => ContentCoding::Unknown,
            };
        }
    }

    fn record_transfer_encoding(&mut self, value: &[u8]) -> Result<(), HttpError> {
        self.has_transfer_encoding = true;
        for coding in list(value) {
            let (name, parameters) = coding.split_at(token_length(coding));
            let is_chunked = name.eq_ignore_ascii_case(b"chunked");
            let has_parameters = matches!(trim(parameters), [b';', ..]);
            let is_coding = !name.is_empty() && (parameters.is_empty() || has_parameters);
            // A coding after `chunked` means that `chunked` was repeated or not last.
            if self.is_chunked || !is_coding || (is_chunked && has_parameters) {
                return Err(HttpError::TransferEncodingMalformed);
            }
            self.is_chunked = is_chunked;
            self.has_unknown_coding |= !is_chunked;
        }
        Ok(())
    }

    /// The values that may differ in a head with the same meaning. Whether `Expect` and a coding
    /// count depends on the length, which is fixed then.
    pub(super) fn variable(&self) -> Variable {
        let is_fixed = self.expects_continue || self.coding != ContentCoding::Identity;
        let content_length = if is_fixed { Span::default() } else { self.variable.content_length };
        Variable { content_length, ..self.variable }
    }

    /// How the body is delimited, after all headers were read.
    #[inline]
    pub(super) fn body(&self, version: Version) -> Result<BodyLength, HttpError> {
        if self.has_transfer_encoding {
            return self.transferred_body(version);
        }
        Ok(match self.content_length {
            None => BodyLength::None,
            Some(length @ 1..) if self.coding != ContentCoding::Identity => {
                BodyLength::Coded(length)
            }
            Some(length) => BodyLength::Length(length),
        })
    }

    #[cold]
    fn transferred_body(&self, version: Version) -> Result<BodyLength, HttpError> {
        if version == Version::Http10 {
            return Err(HttpError::TransferEncodingOnHttp10);
        }
        if self.content_length.is_some() {
            return Err(HttpError::LengthAndTransferEncoding);
        }
        if self.has_unknown_coding {
            return Err(HttpError::TransferCodingUnknown);
        }
        Ok(BodyLength::Chunked)
    }

    pub(super) fn keep_alive(&self, version: Version) -> bool {
        !self.asks_close && (version == Version::Http11 || self.asks_keep_alive)
    }

    pub(super) fn expect_continue(&self, version: Version, body: BodyLength) -> bool {
        let has_body = !matches!(body, BodyLength::None | BodyLength::Length(0));
        self.expects_continue && has_body && version == Version::Http11
    }
}

/// Whether `name` is `expected` in any case. As most clients write it is tried first.
#[inline]
pub(super) fn is_header<const N: usize>(name: &[u8], expected: &[u8; N]) -> bool {
    name == expected || name.eq_ignore_ascii_case(expected)
}
