//! One request object, as slices of its document.
//!
//! Most are written by programs that put its members in the order of the specification's examples,
//! and no white space between them: `{"jsonrpc":"2.0","method":"m","params":{},"id":1}`. Those are
//! stepped over straight on, as far as they are so. The scan of any document goes on from there.

use crate::Limits;
use crate::json::scan::{Scanner, Seen};
use crate::json::usual::{self, ObjectFront};
use crate::json::{Fault, Member, Notes, Text};

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
    /// Whether the request ends there, and is ASCII.
    pub(super) is_whole: bool,
    pub(super) seen: Seen,
}

impl<'a> Begun<'a> {
    pub(super) const NOTHING: Self =
        Self { request: Request::EMPTY, len: 0, is_whole: false, seen: Seen::NOTHING };

    /// The request at the front of `text`, which may nest so deep; `None` if nothing is usual. The
    /// members of its params are noted in `places`.
    #[inline(always)]
    pub(super) fn usual(
        text: &'a [u8],
        nesting_max: usize,
        limits: &Limits,
        places: &mut [Member],
    ) -> Result<Option<Self>, Fault> {
        let Some((method, mut rest)) = text.strip_prefix(OPENING).and_then(quoted) else {
            return Ok(None);
        };
        if nesting_max < NESTING {
            return Ok(None);
        }
        let mut request = Request { method: Text::new(method, false), ..Request::EMPTY };
        let mut seen = Seen::NOTHING;
        if let Some(text) = rest.strip_prefix(br#","params":"#) {
            let front = usual::object(text, places);
            let params = match front.is_whole {
                true => Params::of(front),
                false => scan_params(text, front, nesting_max - 1, places)?,
            };
            if params.len > 0
                && let Some((params_text, behind)) = text.split_at_checked(params.len)
            {
                request.params = Some(params_text);
                request.members = params.members;
                seen = params.seen;
                rest = behind;
            }
        }
        if let Some(text) = rest.strip_prefix(br#","id":"#)
            && let Some((id, behind)) = usual_id(text)
            && id.len() <= limits.id_bytes_max
        {
            request.id = Some(id);
            rest = behind;
        }
        let behind = rest.strip_prefix(b"}").filter(|_| seen.is_ascii());
        let len = text.len() - behind.unwrap_or(rest).len();
        Ok(Some(Self { request, len, is_whole: behind.is_some(), seen }))
    }
}

/// A request nests so deep, with its params.
const NESTING: usize = 2;

/// What was found of params. They are no array and no object, if that has no length.
struct Params {
    len: usize,
    members: Option<Span>,
    seen: Seen,
}

impl Params {
    #[inline(always)]
    fn of(object: ObjectFront) -> Self {
        let members = Some(Span { start: 0, len: u32::from(object.members) });
        Self { len: object.len as usize, members, seen: Seen::NOTHING }
    }
}

/// Scans any params, of which the front was stepped over already.
#[inline(never)]
fn scan_params(
    text: &[u8],
    front: ObjectFront,
    nesting_max: usize,
    places: &mut [Member],
) -> Result<Params, Fault> {
    let mut scanner = Scanner::new(text, nesting_max);
    let noted = usize::from(front.members);
    let free = places.get_mut(noted..).unwrap_or_default();
    let all = noted + free.len();
    let mut notes = FirstMembers::new(free);
    match text.first() {
        Some(b'{') => scanner.object_behind(front, &mut notes)?,
        Some(b'[') => scanner.array(&mut notes)?,
        _ => {}
    }
    Ok(Params { len: scanner.position(), members: notes.noted(all), seen: scanner.seen() })
}

#[inline(always)]
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    usual::string(text.strip_prefix(b"\"")?)
}

/// A number or a string, with its quotes, and the comma or brace that follows it.
#[inline(always)]
fn usual_id(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, rest) = usual::value(text)?;
    match rest {
        [b',' | b'}', ..] => text.split_at_checked(text.len() - rest.len()),
        _ => None,
    }
}

/// Takes as many members as there are places, and notes whether there were more.
pub(super) struct FirstMembers<'a> {
    places: std::slice::IterMut<'a, Member>,
    are_all: bool,
}

impl<'a> FirstMembers<'a> {
    pub(super) fn new(places: &'a mut [Member]) -> Self {
        Self { places: places.iter_mut(), are_all: true }
    }

    /// Which are noted, of so many places from the first on; `None` when they were more.
    #[inline(always)]
    pub(super) fn noted(&self, places: usize) -> Option<Span> {
        self.are_all.then(|| Span::new(0, places - self.places.len()))
    }
}

impl Notes for FirstMembers<'_> {
    #[inline(always)]
    fn note(&mut self, member: Member) {
        match self.places.next() {
            Some(place) => *place = member,
            None => self.are_all = false,
        }
    }
}
