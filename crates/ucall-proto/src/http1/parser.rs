//! Parses a request's head incrementally.
//!
//! The parser reads each line once. When the input ends within a line, it stores where the line
//! starts and how far it was searched, so the next attempt searches only the new bytes: a head that
//! arrives byte by byte costs no more than its length. Parsed values are spans instead of slices,
//! because the input may have moved by then.
//!
//! | reads          | sees                | then                          |
//! |----------------|---------------------|-------------------------------|
//! | request line   | CRLF alone          | request line (RFC 9112, 2.2)  |
//! | request line   | a request line      | headers                       |
//! | headers        | a header            | headers                       |
//! | headers        | CRLF alone          | the head is complete          |
//! | either         | a line without end  | the same line, with more input |
//! | either         | anything else       | an error                      |

use memchr::memchr;

use super::access::names_loopback;
use super::bytes::{Span, decimal, text_length};
use super::call_paths::CallPaths;
use super::error::HttpError;
use super::fields::{HeaderState, Line, Variable, read_line};
use super::head::{BodyLength, Head, ParsedHead, Version};
use super::request_line::{self, RequestLine};

/// How large a head may be.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Request line and headers together, with the blank line and any CRLF before them.
    pub bytes_max: usize,
    /// Header lines.
    pub headers_max: usize,
    /// A request with `Accept-Encoding` is not on the fast path.
    pub negotiates_coding: bool,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { bytes_max: 16 * 1024, headers_max: 100, negotiates_coding: false }
    }
}

/// Reads the head that `input` starts with in one go. See [`HeadParser::parse`].
///
/// # Errors
/// Those of [`HeadParser::parse`].
pub fn parse_head<'a>(input: &'a [u8], limits: &HeadLimits) -> Result<Option<Head<'a>>, HttpError> {
    HeadParser::default().parse(input, limits)
}

/// Longer heads are not cached.
const CACHED_HEAD_BYTES_MAX: usize = 1024;

/// Parses the heads of one connection.
///
/// Most clients send the same head each time, but for the values in [`Variable`]. The second head
/// is cached, and a head that differs only in these is recognized by comparison. A client with
/// several heads would have each copied in vain, so of the others only every sixteenth replaces the
/// cached one.
#[derive(Clone, Debug, Default)]
pub struct HeadParser {
    /// An incomplete head. Boxed, because most heads arrive whole.
    partial: Option<Box<PartialHead>>,
    cached: Option<Box<CachedHead>>,
    /// The heads that were parsed because they did not match, modulo 256.
    parsed_count: u8,
}

/// The state of an incomplete head.
#[derive(Clone, Debug, Default)]
struct PartialHead {
    /// Where the first line starts that has not been read.
    line_at: usize,
    /// How far that line was searched for its end; 0 before the first attempt.
    searched: usize,
    /// Where the headers start; 0 before the request line was read.
    headers_at: usize,
    header_count: usize,
    line: RequestLine,
    header_state: HeaderState,
}

/// The bytes of an earlier head, and its parsed values.
#[derive(Clone, Debug)]
struct CachedHead {
    text: Vec<u8>,
    parsed: ParsedHead,
    variable: Variable,
}

/// The first head of a connection is not cached: it may be the only one.
const CACHED_HEAD_NUMBER: u8 = 2;
const PARSED_HEADS_PER_COPY: u8 = 16;

impl HeadParser {
    /// Parses the head that `input` starts with.
    ///
    /// `Ok(None)` means that it is incomplete and valid so far: call again with the same bytes and
    /// more after them. After a head, the parser is ready for the next one.
    ///
    /// # Errors
    /// Any of the kinds of [`HttpError`] for 400, 417, 431, 501 and 505. More bytes do not change
    /// the error, so the connection must close.
    #[inline]
    pub fn parse<'a>(
        &mut self,
        input: &'a [u8],
        limits: &HeadLimits,
    ) -> Result<Option<Head<'a>>, HttpError> {
        match self.match_cached_head(input) {
            Some(head) => Ok(Some(head)),
            None => self.parse_general(input, limits, &CallPaths::default()),
        }
    }

    /// The head that `input` starts with, if it equals the cached one but for variable values.
    #[inline(always)]
    pub(crate) fn match_cached_head<'a>(&self, input: &'a [u8]) -> Option<Head<'a>> {
        let cached = self.cached.as_ref()?;
        let text = input.get(..cached.text.len())?;
        if self.partial.is_some() {
            return None;
        }
        if text == cached.text {
            return Some(Head::new(text, &cached.parsed));
        }
        cached.match_variable(text)
    }

    /// [`HeadParser::parse`] without the cached head, on a server whose calls are at `paths`.
    #[inline(never)]
    pub(crate) fn parse_general<'a>(
        &mut self,
        input: &'a [u8],
        limits: &HeadLimits,
        paths: &CallPaths,
    ) -> Result<Option<Head<'a>>, HttpError> {
        // Bytes beyond the limit are not read, so that the verdict is the same however the input is
        // split.
        let window = input.get(..limits.bytes_max).unwrap_or(input);
        let mut partial = self.partial.take().map_or_else(PartialHead::default, |partial| *partial);
        // At the limit no line can become complete, so an incomplete one is parsed, too.
        let is_full = window.len() >= limits.bytes_max;
        if (is_full || partial.has_new_line_end(window)) && partial.read_lines(window, limits)? {
            let text = window.get(..partial.line_at + 2).unwrap_or_default();
            let mut parsed = partial.finish(text, limits)?;
            paths.retarget(&mut parsed, text);
            self.cache_head(text, &parsed, partial.header_state.variable());
            return Ok(Some(Head::new(text, &parsed)));
        }
        partial.searched = window.len();
        self.partial = Some(Box::new(partial));
        // At least one byte more belongs to this head.
        if is_full {
            return Err(HttpError::HeadTooLarge { limit: limits.bytes_max });
        }
        Ok(None)
    }

    fn cache_head(&mut self, text: &[u8], parsed: &ParsedHead, variable: Variable) {
        self.parsed_count = self.parsed_count.wrapping_add(1);
        let is_due = self.parsed_count % PARSED_HEADS_PER_COPY == CACHED_HEAD_NUMBER;
        if is_due && text.len() <= CACHED_HEAD_BYTES_MAX {
            let empty = || Box::new(CachedHead { text: Vec::new(), parsed: *parsed, variable });
            let cached = self.cached.get_or_insert_with(empty);
            cached.text.clear();
            cached.text.extend_from_slice(text);
            (cached.parsed, cached.variable) = (*parsed, variable);
        }
    }
}

impl CachedHead {
    /// The head `text` of the cached one's length, if only variable values differ.
    #[inline(never)]
    fn match_variable<'a>(&self, text: &'a [u8]) -> Option<Head<'a>> {
        let Variable { content_length, traceparent, .. } = self.variable;
        let (first, second) = match traceparent.start < content_length.start {
            true => (traceparent, content_length),
            false => (content_length, traceparent),
        };
        let is_equal =
            |start, end| start == end || text.get(start..end) == self.text.get(start..end);
        let is_fixed = is_equal(0, first.start)
            && is_equal(first.end, second.start)
            && is_equal(second.end, text.len());
        if !(is_fixed || self.differs_by_cookie(text)) || !is_text(traceparent.of(text)) {
            return None;
        }
        let head = Head::new(text, &self.parsed);
        if content_length == Span::default() {
            return Some(head);
        }
        Some(head.with_body(BodyLength::Length(decimal(content_length.of(text))?)))
    }

    /// Whether only variable values differ, one of which is the cookie.
    #[cold]
    fn differs_by_cookie(&self, text: &[u8]) -> bool {
        let cookie = self.variable.cookie;
        cookie != Span::default()
            && is_text(cookie.of(text))
            && self.variable.rest_of(text).iter().all(|span| span.of(text) == span.of(&self.text))
    }
}

fn is_text(value: &[u8]) -> bool {
    value.is_empty() || text_length(value) == value.len()
}

impl PartialHead {
    /// Whether the line that was cut short may be complete now.
    #[inline]
    fn has_new_line_end(&self, window: &[u8]) -> bool {
        self.searched == 0
            || window.get(self.searched..).is_some_and(|new| memchr(b'\n', new).is_some())
    }

    /// Reads all complete lines. Returns `true` after the blank line.
    #[inline]
    fn read_lines(&mut self, window: &[u8], limits: &HeadLimits) -> Result<bool, HttpError> {
        if self.headers_at == 0 && !self.read_request_line(window)? {
            return Ok(false);
        }
        loop {
            let bytes = window.get(self.line_at..).unwrap_or_default();
            match read_line(bytes)? {
                Line::Partial => return Ok(false),
                Line::Blank => return Ok(true),
                Line::Field { name, value, value_at, len } => {
                    if self.header_count == limits.headers_max {
                        return Err(HttpError::TooManyHeaders { limit: limits.headers_max });
                    }
                    self.header_count += 1;
                    let start = self.line_at + value_at;
                    self.header_state.record(
                        name,
                        value,
                        Span { start, end: start + value.len() },
                    )?;
                    self.line_at += len;
                }
            }
        }
    }

    /// Reads the request line. Returns `false` if it is incomplete.
    #[inline]
    fn read_request_line(&mut self, window: &[u8]) -> Result<bool, HttpError> {
        while window.get(self.line_at..).is_some_and(|rest| rest.starts_with(b"\r\n")) {
            self.line_at += 2;
        }
        let bytes = window.get(self.line_at..).unwrap_or_default();
        let Some(line) = request_line::read(bytes)? else { return Ok(false) };
        self.line = line;
        self.line.span = line.span.shifted(self.line_at);
        self.line.authority = line.authority.map(|span| span.shifted(self.line_at));
        self.line_at += line.len;
        self.headers_at = self.line_at;
        Ok(true)
    }

    /// Combines the parsed values, and checks the rules that involve several headers.
    fn finish(&self, text: &[u8], limits: &HeadLimits) -> Result<ParsedHead, HttpError> {
        let &RequestLine { method, version, target, .. } = &self.line;
        let header_state = &self.header_state;
        if header_state.host.is_none() && version == Version::Http11 {
            return Err(HttpError::HostMissing);
        }
        let (body, keep_alive) = (header_state.body(version)?, header_state.keep_alive(version));
        let host = self.line.authority.or(header_state.host);
        let mut parsed = ParsedHead {
            method,
            target,
            target_at: self.line.span,
            version,
            body,
            coding: header_state.coding,
            keep_alive,
            expect_continue: header_state.expect_continue(version, body),
            host,
            origin: header_state.origin,
            timeout_ms: header_state.timeout_ms,
            accepts_streams: header_state.accepts_streams,
            headers: Span { start: self.headers_at, end: self.line_at },
            is_plain: version == Version::Http11
                && keep_alive
                && header_state.origin.is_none()
                && !matches!(body, BodyLength::Chunked | BodyLength::Coded(_))
                && !(limits.negotiates_coding && header_state.accepts_coding),
            is_fast_path: false,
            names_loopback: host.is_some_and(|span| names_loopback(span.of(text))),
        };
        parsed.update_fast_path();
        Ok(parsed)
    }
}
