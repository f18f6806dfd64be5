//! One request object, as slices of its document.
//!
//! Most are written by programs that put its members in the order of the specification's examples,
//! and no white space between them: `{"jsonrpc":"2.0","method":"m","params":{},"id":1}`. Those are
//! stepped over straight on, as far as they are so. The scan of any document goes on from there.

use crate::Limits;
use crate::json::{Member, Text, usual};

/// Params with more members, or items, than this have them noted by whoever asks for one.
pub(super) const MEMBERS_MAX: usize = 32;

/// A place in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    pub(super) const NOTHING: Self = Self { start: 0, len: 0 };

    #[inline(always)]
    pub(super) fn new(start: usize, len: usize) -> Self {
        // Documents are smaller than 4 GiB, which `Limits` promises.
        Self { start: start as u32, len: len as u32 }
    }

    /// Where `part` stands in `text`, which it is a part of unless it is empty.
    #[inline(always)]
    pub(super) fn within(part: &[u8], text: &[u8]) -> Self {
        match part.is_empty() {
            true => Self::NOTHING,
            false => Self::new(part.as_ptr().addr() - text.as_ptr().addr(), part.len()),
        }
    }

    /// The same place behind so many others.
    #[inline(always)]
    pub(super) fn behind(self, count: usize) -> Self {
        Self { start: self.start + count as u32, ..self }
    }

    #[inline(always)]
    pub(super) fn len(self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(super) fn of<T>(self, all: &[T]) -> Option<&[T]> {
        let start = self.start as usize;
        all.get(start..start + self.len as usize)
    }
}

/// A request, or what stands in place of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: Text<'a>,
    pub(crate) params: Option<&'a [u8]>,
    pub(crate) id: Option<&'a [u8]>,
    /// Where the members of the params are in the list of them; `None` when they are too many.
    pub(super) members: Option<Span>,
    /// What a request has and this has not.
    pub(crate) invalid: Option<&'static str>,
}

impl<'a> Request<'a> {
    pub(super) const EMPTY: Self = Self {
        method: Text::new(b"", false),
        params: None,
        id: None,
        members: Some(Span::NOTHING),
        invalid: None,
    };

    /// Where the members of the params stand in those; `None` when they are too many.
    #[inline(always)]
    pub(crate) fn members<'m>(&self, noted: &'m [Member]) -> Option<&'m [Member]> {
        self.members?.of(noted)
    }
}

/// How most requests begin. Most go on with their params and id.
const OPENING: &[u8; 26] = br#"{"jsonrpc":"2.0","method":"#;

/// A request as far as it is written the usual way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun<'a> {
    pub(super) request: Request<'a>,
    /// Where one of its members ends, or all of it if it `is_whole`; 0 if nothing is usual.
    pub(super) len: usize,
    pub(super) is_whole: bool,
}

impl<'a> Begun<'a> {
    pub(super) const NOTHING: Self = Self { request: Request::EMPTY, len: 0, is_whole: false };

    /// The request at the front of `text`. The members of its params are noted in `places`.
    #[inline(always)]
    pub(super) fn usual(text: &'a [u8], limits: &Limits, places: &mut [Member]) -> Self {
        let Some((method, mut rest)) = text.strip_prefix(OPENING).and_then(quoted) else {
            return Self::NOTHING;
        };
        if limits.nesting_max < NESTING {
            return Self::NOTHING;
        }
        let mut request = Request { method: Text::new(method, false), ..Request::EMPTY };
        if let Some(text) = rest.strip_prefix(br#","params":"#)
            && let Some(object) = usual::object(text, places)
            && let Some((params, behind)) = text.split_at_checked(object.len as usize)
        {
            request.params = Some(params);
            request.members = Some(Span { start: 0, len: object.members });
            rest = behind;
        }
        if let Some(text) = rest.strip_prefix(br#","id":"#)
            && let Some((id, behind)) = usual_id(text)
            && id.len() <= limits.id_bytes_max
        {
            request.id = Some(id);
            rest = behind;
        }
        let behind = rest.strip_prefix(b"}");
        let len = text.len() - behind.unwrap_or(rest).len();
        Self { request, len, is_whole: behind.is_some() }
    }
}

/// A usual request nests so deep: in a batch, with an object of params.
const NESTING: usize = 3;

#[inline(always)]
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    usual::string(text.strip_prefix(b"\"")?)
}

/// A number or a string, with its quotes, and the comma or brace that follows it.
#[inline(always)]
fn usual_id(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, rest) = match usual::number(text) {
        Some(number) => number,
        None => quoted(text)?,
    };
    match rest {
        [b',' | b'}', ..] => text.split_at_checked(text.len() - rest.len()),
        _ => None,
    }
}
