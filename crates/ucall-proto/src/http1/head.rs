//! The head of a request, as slices of the input it was read from.

use memchr::{memchr, memmem};

use super::bytes::{Span, trim};
use super::method::Method;
use super::reply::ConnectionOption;
use crate::coding::Coding;

/// A request line and its headers, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// All bytes of the head; spans of `parsed` count from its start.
    text: &'a [u8],
    parsed: ParsedHead,
}

/// The parsed values of a head. Spans instead of slices, so that they also hold for an equal head
/// at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParsedHead {
    pub method: Method,
    pub target: TargetKind,
    pub target_at: Span,
    pub version: Version,
    pub body: BodyLength,
    pub coding: ContentCoding,
    pub keep_alive: bool,
    pub expect_continue: bool,
    pub host: Option<Span>,
    pub origin: Option<Span>,
    pub timeout_ms: Option<u64>,
    /// `Accept` names a type of streams.
    pub accepts_streams: bool,
    pub headers: Span,
    /// Whether nothing but its target is against the fast path.
    pub is_plain: bool,
    /// A call over a persistent HTTP/1.1, without an origin, with a body of known length that is
    /// not coded.
    pub is_fast_path: bool,
    /// The host is a common name of this machine.
    pub names_loopback: bool,
}

impl ParsedHead {
    pub(super) fn update_fast_path(&mut self) {
        let is_call = (self.method, self.target) == (Method::Post, TargetKind::Root);
        self.is_fast_path = is_call && self.is_plain;
    }
}

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A path of [`CallPaths`](super::CallPaths), by default `/`, with or without a query, alone or
    /// in an absolute `http://host/`.
    Root,
    /// The path `/ws`, likewise.
    WebSocket,
    /// The `*` of OPTIONS, for the server as a whole.
    Asterisk,
    /// The host and the port of CONNECT.
    Authority,
    /// Any other target, unchanged.
    Other(&'a [u8]),
}

/// What kind of [`Target`] a request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TargetKind {
    #[default]
    Root,
    WebSocket,
    Asterisk,
    Authority,
    Other,
}

/// The version of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// How a body is delimited (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body: neither header was there.
    None,
    /// The number of bytes in `Content-Length`.
    Length(u64),
    /// In chunks, see [`ChunkedDecoder`](super::ChunkedDecoder).
    Chunked,
    /// The number of bytes in `Content-Length`, in a content coding.
    Coded(u64),
}

/// How a body is coded (RFC 9110, section 8.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentCoding {
    /// As it is.
    #[default]
    Identity,
    /// In one coding.
    Known(Coding),
    /// In another one, or in several.
    Unknown,
}

impl<'a> Head<'a> {
    #[inline(always)]
    pub(super) fn new(text: &'a [u8], parsed: &ParsedHead) -> Self {
        Self { text, parsed: *parsed }
    }

    /// The same head with another body.
    #[inline(always)]
    pub(super) fn with_body(mut self, body: BodyLength) -> Self {
        self.parsed.body = body;
        self
    }

    pub(super) fn parsed_mut(&mut self) -> &mut ParsedHead {
        &mut self.parsed
    }

    /// The head as it was received.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.text
    }

    /// The bytes of the head, from the first byte of the input through the blank line.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a head is never empty")]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// The request's method.
    #[must_use]
    #[inline]
    pub fn method(&self) -> Method {
        self.parsed.method
    }

    /// The text of the method, also of one without a name.
    #[must_use]
    pub fn method_text(&self) -> &'a [u8] {
        let line = self.text.trim_ascii_start();
        line.get(..memchr(b' ', line).unwrap_or(0)).unwrap_or_default()
    }

    /// The request's target.
    #[must_use]
    #[inline]
    pub fn target(&self) -> Target<'a> {
        match self.parsed.target {
            TargetKind::Root => Target::Root,
            TargetKind::WebSocket => Target::WebSocket,
            TargetKind::Asterisk => Target::Asterisk,
            TargetKind::Authority => Target::Authority,
            TargetKind::Other => Target::Other(self.parsed.target_at.of(self.text)),
        }
    }

    /// Whether this is a JSON-RPC request: a POST to a path of calls.
    #[must_use]
    #[inline]
    pub fn is_call(&self) -> bool {
        (self.parsed.method, self.parsed.target) == (Method::Post, TargetKind::Root)
    }

    /// The path and the query of the target as they were sent, without the `?` between them. An
    /// absolute target without a path has the path `/`. The `*` of OPTIONS is its own path.
    #[must_use]
    pub fn path_and_query(&self) -> (&'a [u8], &'a [u8]) {
        split_target(self.parsed.target_at.of(self.text))
    }

    /// The version the peer speaks.
    #[must_use]
    #[inline]
    pub fn version(&self) -> Version {
        self.parsed.version
    }

    /// How the body is delimited.
    #[must_use]
    #[inline]
    pub fn body(&self) -> BodyLength {
        self.parsed.body
    }

    /// How the body is coded.
    #[must_use]
    #[inline]
    pub fn coding(&self) -> ContentCoding {
        self.parsed.coding
    }

    /// Whether the peer keeps the connection open, by version and `Connection` (RFC 9112, 9.3).
    #[must_use]
    #[inline]
    pub fn keep_alive(&self) -> bool {
        self.parsed.keep_alive
    }

    /// Whether the peer waits for `100 Continue` before it sends the body. False when there is no
    /// body, and on HTTP/1.0, where RFC 9110, section 10.1.1, has it ignored.
    #[must_use]
    pub fn expect_continue(&self) -> bool {
        self.parsed.expect_continue
    }

    /// The host of the request: the authority of an absolute target, which takes precedence (RFC
    /// 9112, section 3.2.2), or the `Host` header. Its syntax is valid.
    #[must_use]
    #[inline]
    pub fn host(&self) -> Option<&'a [u8]> {
        self.parsed.host.map(|span| span.of(self.text))
    }

    /// Whether this is a call over a persistent HTTP/1.1 connection, without an origin and with a
    /// body of known length that is not coded.
    #[must_use]
    #[inline]
    pub fn is_fast_path(&self) -> bool {
        self.parsed.is_fast_path
    }

    /// Whether the host is a common name of this machine; see
    /// [`AccessRules::allows_unchecked`](super::AccessRules::allows_unchecked).
    #[must_use]
    #[inline]
    pub fn names_loopback(&self) -> bool {
        self.parsed.names_loopback
    }

    /// The `Origin` header, which browsers send.
    #[must_use]
    pub fn origin(&self) -> Option<&'a [u8]> {
        self.parsed.origin.map(|span| span.of(self.text))
    }

    /// The `Ucall-Timeout-Ms` header: how long the peer waits for the reply, in milliseconds.
    #[must_use]
    #[inline]
    pub fn timeout_ms(&self) -> Option<u64> {
        self.parsed.timeout_ms
    }

    /// Whether `Accept` names a media type of streams, which it may also refuse.
    #[inline]
    pub(crate) fn accepts_streams(&self) -> bool {
        self.parsed.accepts_streams
    }

    /// All header lines, each with its CRLF, without the blank line. See [`Head::headers`].
    #[must_use]
    pub fn header_block(&self) -> &'a [u8] {
        self.parsed.headers.of(self.text)
    }

    /// The headers in the order of their arrival, without [`RESERVED_HEADER`].
    #[must_use]
    pub fn headers(&self) -> Headers<'a> {
        Headers { block: self.header_block() }
    }

    /// The value of the first header called `name`, in whatever case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers().named(name).next()
    }

    /// The `Connection` header of a reply that follows the request's.
    #[must_use]
    #[inline]
    pub fn reply_connection(&self) -> ConnectionOption {
        match (self.parsed.keep_alive, self.parsed.version) {
            (false, _) => ConnectionOption::Close,
            (true, Version::Http10) => ConnectionOption::KeepAlive,
            (true, Version::Http11) => ConnectionOption::Implied,
        }
    }
}

/// The path of the request that `input` begins with, whose head may be incomplete or invalid. It is
/// empty if there is none.
pub(crate) fn begun_path(input: &[u8]) -> &[u8] {
    let line = input.trim_ascii_start();
    let line = line.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    words.nth(1).map_or(&[], |target| split_target(target).0)
}

/// The path and the query of a target.
fn split_target(target: &[u8]) -> (&[u8], &[u8]) {
    let local = match target.first() {
        Some(b'/') => target,
        _ => after_authority(target),
    };
    let end = memchr(b'?', local).unwrap_or(local.len());
    let (path, query) = local.split_at(end);
    (if path.is_empty() { b"/" } else { path }, query.strip_prefix(b"?").unwrap_or_default())
}

/// What follows the authority of an absolute target; all of another one.
fn after_authority(target: &[u8]) -> &[u8] {
    let Some(scheme) = memmem::find(target, b"://") else { return target };
    let rest = target.get(scheme + 3..).unwrap_or_default();
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    rest.get(end..).unwrap_or_default()
}

/// Programs have found calls of a broker by this header, which any client may send. No request has
/// it.
const RESERVED_HEADER: &[u8] = b"Ucall-Broker";

/// The headers of a [`Head`]: pairs of the name as it was sent and the value without surrounding
/// white space.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    block: &'a [u8],
}

impl<'a> Headers<'a> {
    /// The headers in a copied [`Head::header_block`].
    #[must_use]
    pub fn of_block(block: &'a [u8]) -> Self {
        Self { block }
    }

    /// The values of the headers called `name`, in upper or lower case.
    // A relay looks for several headers of each call: the colon is where it would be.
    #[inline]
    pub fn named(mut self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || {
            loop {
                let line = self.next_line()?;
                if let Some((found, value)) = line.split_at_checked(name.len())
                    && value.first() == Some(&b':')
                    && found.eq_ignore_ascii_case(name.as_bytes())
                    && !is_reserved(found)
                {
                    return trimmed(value);
                }
            }
        })
    }

    #[inline(always)]
    fn next_line(&mut self) -> Option<&'a [u8]> {
        let (line, rest) = self.block.split_at_checked(memchr(b'\n', self.block)? + 1)?;
        self.block = rest;
        Some(line)
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = self.next_line()?;
            let (name, value) = line.split_at_checked(memchr(b':', line)?)?;
            if !is_reserved(name) {
                return Some((name, trimmed(value)?));
            }
        }
    }
}

/// The text of a head without the headers of these names.
pub(crate) fn without_headers(head: &[u8], names: &[&str]) -> Vec<u8> {
    let is_named = |line: &&[u8], name: &&str| {
        line.split_at_checked(name.len()).is_some_and(|(found, value)| {
            value.first() == Some(&b':') && found.eq_ignore_ascii_case(name.as_bytes())
        })
    };
    let lines = head.split_inclusive(|&byte| byte == b'\n');
    lines.filter(|line| !names.iter().any(|name| is_named(line, name))).flatten().copied().collect()
}

fn is_reserved(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(RESERVED_HEADER)
}

/// The value after the colon in front of it, without what surrounds it.
fn trimmed(value: &[u8]) -> Option<&[u8]> {
    Some(trim(value.strip_prefix(b":")?.strip_suffix(b"\r\n")?))
}
