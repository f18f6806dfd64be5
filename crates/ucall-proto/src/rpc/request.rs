//! One request object, as slices of its document.
//!
//! Most clients write the members without white space, or with a space after each colon and comma,
//! and in the order of the specification's examples:
//! `{"jsonrpc":"2.0","method":"m","params":{},"id":1}`. [`Request::fast_path`] reads such a request
//! whole, with params of any form, or nothing of it. [`Request::in_any_order`] does so for other
//! orders. [`Request::scan`] reads any value, from its start.

use super::meta::{self, Meta};
use crate::Limits;
use crate::json::scan::Scanner;
use crate::json::{FirstMembers, JsonError, Member, Noted, Text, fast_path};

/// A request, or the reason why a value is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: Text<'a>,
    pub(crate) params: Option<&'a [u8]>,
    pub(crate) id: Option<&'a [u8]>,
    pub(crate) meta: Option<Meta<'a>>,
    /// The range of the params' members in the document's list; `None` if the list lacks some of
    /// them.
    pub(super) members: Option<Noted>,
    /// Why it is no request (§4).
    pub(crate) invalid: Option<&'static str>,
}

/// The fast path's requests begin with this, up to the method's name.
const OPENING: &[u8; 27] = br#"{"jsonrpc":"2.0","method":""#;
/// [`OPENING`] as Python's `json.dumps` writes it.
const SPACED_OPENING: &[u8; 30] = br#"{"jsonrpc": "2.0", "method": ""#;

const NO_OBJECT: &str = "expected a request object, or an array of them";
/// "2.0" with all characters escaped is shorter.
const VERSION_BYTES_MAX: usize = 32;

impl<'a> Request<'a> {
    pub(super) const EMPTY: Self = Self {
        method: Text::new(b"", false),
        params: None,
        id: None,
        meta: None,
        members: None,
        invalid: None,
    };

    /// Where the members of the params are in them; `None` if they are not noted.
    #[inline(always)]
    pub(crate) fn members<'m>(&self, list: &'m [Member]) -> Option<&'m [Member]> {
        self.members?.of(list)
    }

    /// The request that `text` starts with, and what follows it, if the fast path can read it.
    #[inline(always)]
    pub(crate) fn fast_path(
        text: &'a [u8],
        nesting_max: usize,
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Option<(Self, &'a [u8])> {
        let nesting_left = nesting_max.checked_sub(1)?;
        let text = strip_either(text, OPENING, SPACED_OPENING)?;
        let (method, mut rest) = fast_path::string(text)?;
        let mut request = Request { method: Text::new(method, false), ..Request::EMPTY };
        if let Some(text) = strip_either(rest, br#","params":"#, br#", "params": "#) {
            let (params, after) = fast_params(text, nesting_left, members)?;
            request.params = Some(params);
            rest = after;
        }
        if let Some(text) = strip_either(rest, br#","id":"#, br#", "id": "#) {
            let (id, after) = fast_id(text, limits)?;
            request.id = Some(id);
            rest = after;
        }
        let rest = rest.strip_prefix(b"}")?;
        request.members = members.finish();
        Some((request, rest))
    }

    /// The request that `text` starts with, and what follows it, with members in any order.
    #[inline(never)]
    pub(crate) fn in_any_order(
        text: &'a [u8],
        nesting_max: usize,
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Option<(Self, &'a [u8])> {
        let nesting_left = nesting_max.checked_sub(1)?;
        let mut rest = text.strip_prefix(b"{")?;
        let (mut request, mut has_version, mut has_method) = (Request::EMPTY, false, false);
        loop {
            match rest.get(1)? {
                b'j' => {
                    let (compact, spaced) = (br#""jsonrpc":"2.0""#, br#""jsonrpc": "2.0""#);
                    rest = strip_either(rest, compact, spaced)?;
                    has_version = true;
                }
                b'm' => {
                    let text = strip_either(rest, br#""method":""#, br#""method": ""#)?;
                    let (method, after) = fast_path::string(text)?;
                    (request.method, rest, has_method) = (Text::new(method, false), after, true);
                }
                b'p' => {
                    let text = fast_path::skip_space(rest.strip_prefix(br#""params":"#)?);
                    members.restart();
                    let (params, after) = fast_params(text, nesting_left, members)?;
                    (request.params, rest) = (Some(params), after);
                }
                b'i' => {
                    let text = fast_path::skip_space(rest.strip_prefix(br#""id":"#)?);
                    let (id, after) = fast_id(text, limits)?;
                    (request.id, rest) = (Some(id), after);
                }
                _ => return None,
            }
            match rest {
                [b',', after @ ..] => rest = fast_path::skip_space(after),
                [b'}', after @ ..] if has_version && has_method => {
                    request.members = members.finish();
                    return Some((request, after));
                }
                _ => return None,
            }
        }
    }

    /// A request of valid members, as [`Key`] numbers them, if its value is an object. The members
    /// of its params are not noted.
    pub(super) fn of_values(
        is_object: bool,
        values: [Option<&'a [u8]>; Key::KNOWN],
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Self {
        if !is_object {
            let invalid = Some(NO_OBJECT);
            return Request { invalid, ..Request::EMPTY };
        }
        let first = |text: &[u8]| text.first().copied().unwrap_or_default();
        let mut builder = RequestBuilder::new(members);
        let [version, method, params, id, meta] = values;
        let version = version.filter(|text| text.len() <= VERSION_BYTES_MAX);
        builder.set_version(version.and_then(Text::of_quoted));
        builder.set_method(method.and_then(Text::of_quoted));
        if let Some(params) = params {
            builder.has_invalid_params = !matches!(first(params), b'{' | b'[');
            builder.request.params = Some(params);
        }
        if let Some(id) = id {
            builder.set_id(first(id), id, limits);
        }
        if let Some(meta) = meta {
            builder.set_meta(first(meta), meta, limits);
        }
        Request { members: None, ..builder.finish() }
    }

    /// A call whose params come without a document; `None` if they are neither an array nor an
    /// object. Empty text is no params.
    pub(crate) fn of_params(
        method: &'a [u8],
        params: &'a [u8],
        id: Option<&'a [u8]>,
        nesting_max: usize,
        members: &mut FirstMembers<'_>,
    ) -> Option<Self> {
        let mut request = Request { method: Text::new(method, false), id, ..Request::EMPTY };
        if !params.is_empty() {
            let (whole, rest) = fast_params(params, nesting_max, members)?;
            if !rest.is_empty() {
                return None;
            }
            request.params = Some(whole);
            request.members = members.finish();
        }
        Some(request)
    }

    /// Scans any value as a request.
    pub(super) fn scan(
        scanner: &mut Scanner<'a>,
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Result<Self, JsonError> {
        members.restart();
        if scanner.peek()? != b'{' {
            scanner.value()?;
            let invalid = Some(NO_OBJECT);
            return Ok(Request { invalid, ..Request::EMPTY });
        }
        let mut builder = RequestBuilder::new(members);
        let mut more = scanner.enter_unless_empty(b'}')?;
        while more {
            match Key::read(scanner)? {
                Key::Version => builder.version(scanner)?,
                Key::Method => builder.method(scanner)?,
                Key::Params => builder.params(scanner)?,
                Key::Id => builder.id(scanner, limits)?,
                Key::Meta => builder.meta(scanner, limits)?,
                Key::Other => scanner.value()?,
            }
            more = scanner.another(b'}')?;
        }
        Ok(builder.finish())
    }
}

/// What follows a prefix, which is written without spaces or with them.
#[inline(always)]
fn strip_either<'a, const M: usize, const N: usize>(
    text: &'a [u8],
    compact: &[u8; M],
    spaced: &[u8; N],
) -> Option<&'a [u8]> {
    text.strip_prefix(compact).or_else(|| text.strip_prefix(spaced))
}

/// The params that `text` starts with, and what follows them.
#[inline(always)]
fn fast_params<'a>(
    text: &'a [u8],
    nesting_left: usize,
    members: &mut FirstMembers<'_>,
) -> Option<(&'a [u8], &'a [u8])> {
    let len = match fast_path::container(text, nesting_left, members) {
        Some(len) => len,
        None => general_params(text, nesting_left, members)?,
    };
    text.split_at_checked(len)
}

/// The id that `text` starts with, and what follows it.
#[inline(always)]
fn fast_id<'a>(text: &'a [u8], limits: &Limits) -> Option<(&'a [u8], &'a [u8])> {
    fast_path::scalar(text).filter(|(id, _)| id.len() <= limits.id_bytes_max)
}

/// The length of the params that `text` starts with, in any valid form. For invalid params it
/// returns `None`, and [`Request::scan`] reports the error.
#[inline(never)]
fn general_params(
    text: &[u8],
    nesting_max: usize,
    members: &mut FirstMembers<'_>,
) -> Option<usize> {
    members.restart();
    let mut scanner = Scanner::new(text, nesting_max);
    let is_container = matches!(text.first(), Some(b'{' | b'['));
    let scanned = scanner.container(members).and_then(|()| scanner.finish());
    (is_container && scanned.is_ok()).then_some(scanner.position())
}

/// The members of a request.
#[derive(Clone, Copy)]
pub(super) enum Key {
    Version,
    Method,
    Params,
    Id,
    Meta,
    Other,
}

impl Key {
    /// The number of names that requests have a meaning for.
    pub(super) const KNOWN: usize = Key::Other as usize;

    /// Steps over a key and its colon.
    #[inline(always)]
    fn read(scanner: &mut Scanner<'_>) -> Result<Self, JsonError> {
        scanner.peek()?;
        let rest = scanner.rest();
        let (key, len) = match rest.get(1) {
            Some(b'j') if rest.starts_with(br#""jsonrpc":"#) => (Key::Version, 10),
            Some(b'm') if rest.starts_with(br#""method":"#) => (Key::Method, 9),
            Some(b'p') if rest.starts_with(br#""params":"#) => (Key::Params, 9),
            Some(b'i') if rest.starts_with(br#""id":"#) => (Key::Id, 5),
            _ => return Ok(Self::of_name(&scanner.key()?.unescaped())),
        };
        scanner.skip(len);
        Ok(key)
    }

    #[cold]
    pub(super) fn of_name(name: &[u8]) -> Self {
        match name {
            b"jsonrpc" => Key::Version,
            b"method" => Key::Method,
            b"params" => Key::Params,
            b"id" => Key::Id,
            b"_meta" => Key::Meta,
            _ => Key::Other,
        }
    }
}

/// A request while its members are scanned. Of two members with one name, the last counts.
struct RequestBuilder<'a, 'm, 'l> {
    request: Request<'a>,
    members: &'m mut FirstMembers<'l>,
    invalid_id: Option<&'static str>,
    invalid_meta: Option<&'static str>,
    has_version: bool,
    has_method: bool,
    has_invalid_params: bool,
}

impl<'a, 'm, 'l> RequestBuilder<'a, 'm, 'l> {
    fn new(members: &'m mut FirstMembers<'l>) -> Self {
        Self {
            request: Request::EMPTY,
            members,
            invalid_id: None,
            invalid_meta: None,
            has_version: false,
            has_method: false,
            has_invalid_params: false,
        }
    }

    fn version(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        let version = scanner.text()?;
        self.set_version(version);
        Ok(())
    }

    #[inline(always)]
    fn set_version(&mut self, version: Option<Text<'a>>) {
        self.has_version = match version {
            None => false,
            Some(version) => version.unescaped().as_ref() == b"2.0",
        };
    }

    fn method(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        let method = scanner.text()?;
        self.set_method(method);
        Ok(())
    }

    #[inline(always)]
    fn set_method(&mut self, method: Option<Text<'a>>) {
        self.has_method = method.is_some();
        self.request.method = method.unwrap_or(self.request.method);
    }

    fn params(&mut self, scanner: &mut Scanner<'a>) -> Result<(), JsonError> {
        let first = scanner.peek()?;
        let start = scanner.position();
        self.has_invalid_params = !matches!(first, b'{' | b'[');
        self.members.restart();
        scanner.container(self.members)?;
        self.request.params = Some(scanner.since(start));
        Ok(())
    }

    fn id(&mut self, scanner: &mut Scanner<'a>, limits: &Limits) -> Result<(), JsonError> {
        let first = scanner.peek()?;
        let start = scanner.position();
        scanner.value()?;
        self.set_id(first, scanner.since(start), limits);
        Ok(())
    }

    #[inline(always)]
    fn set_id(&mut self, first: u8, id: &'a [u8], limits: &Limits) {
        self.invalid_id = if !matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n') {
            Some("expected an id that is a string, a number or null")
        } else if id.len() > limits.id_bytes_max {
            Some("expected a shorter id (max_id_bytes)")
        } else {
            None
        };
        self.request.id = Some(id).filter(|_| self.invalid_id.is_none());
    }

    fn meta(&mut self, scanner: &mut Scanner<'a>, limits: &Limits) -> Result<(), JsonError> {
        let first = scanner.peek()?;
        let start = scanner.position();
        scanner.value()?;
        self.set_meta(first, scanner.since(start), limits);
        Ok(())
    }

    #[inline(always)]
    fn set_meta(&mut self, first: u8, text: &'a [u8], limits: &Limits) {
        self.invalid_meta = if first != b'{' {
            Some("expected a _meta that is an object")
        } else if text.len() > limits.meta_bytes_max {
            Some("expected a shorter _meta (max_meta_bytes)")
        } else {
            meta::check(text).err()
        };
        self.request.meta = Some(Meta(text)).filter(|_| self.invalid_meta.is_none());
    }

    /// The request, with the first reason why it is none (§4).
    fn finish(mut self) -> Request<'a> {
        self.request.invalid = if self.invalid_id.is_some() {
            self.invalid_id
        } else if !self.has_version {
            Some("expected a member \"jsonrpc\" that is \"2.0\"")
        } else if !self.has_method {
            Some("expected a member \"method\" that is a string")
        } else if self.has_invalid_params {
            Some("expected params that are an array or an object")
        } else {
            self.invalid_meta
        };
        self.request.members = self.members.finish();
        self.request
    }
}
