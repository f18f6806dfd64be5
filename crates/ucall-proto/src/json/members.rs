//! The positions of an object's members, or of an array's items, in their text.
//!
//! The scan that validates the text notes them in a [`MemberSink`] as it steps over each.

use ucall_buffer::has_same_ends;

use super::text::Text;

/// Params with more members, or items, are scanned again when one of them is read.
pub(crate) const MEMBERS_MAX: usize = 32;

/// Marks, in the length of a key, that it holds escapes. No text is that long.
const ESCAPED: u32 = 1 << 31;

/// The position of a member or an item, in bytes from the start of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Behind the opening quote; 0 for an item.
    key: u32,
    key_len: u32,
    value: u32,
    value_end: u32,
}

impl Member {
    /// A member; for an item, `key` and `key_len` are 0.
    #[inline(always)]
    pub(super) fn new(key: usize, key_len: usize, value: usize, value_end: usize) -> Self {
        // Documents are smaller than 4 GiB, which `Limits` promises, and keys than half of that.
        Self {
            key: key as u32,
            key_len: key_len as u32,
            value: value as u32,
            value_end: value_end as u32,
        }
    }

    pub(super) fn with_escapes(self) -> Self {
        Self { key_len: self.key_len | ESCAPED, ..self }
    }

    /// The text of the value.
    #[inline(always)]
    pub fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.value as usize..self.value_end as usize).unwrap_or_default()
    }

    /// Whether it is a member of that name; an item is none. `scratch` is for keys with escapes.
    #[inline(always)]
    pub fn is_named(&self, name: &[u8], text: &[u8], scratch: &mut Vec<u8>) -> bool {
        if self.key_len as usize != name.len() {
            return self.key_len >= ESCAPED && self.is_named_escaped(name, text, scratch);
        }
        // A quote comes before each key, so no key is at 0.
        self.key != 0 && self.key(text) == Some(name)
    }

    /// Whether it is a member of a name of `N` to `2 * N` bytes, without a call: it compares the
    /// first and the last `N` bytes. `None` for keys with escapes.
    #[inline(always)]
    pub fn is_named_short<const N: usize>(&self, name: &[u8], text: &[u8]) -> Option<bool> {
        if self.key_len as usize != name.len() {
            return if self.key_len < ESCAPED { Some(false) } else { None };
        }
        let Some(key) = self.key(text) else { return Some(false) };
        Some(has_same_ends::<N>(key, name))
    }

    #[inline(always)]
    fn key<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.key as usize;
        text.get(start..start + self.key_len as usize)
    }

    #[cold]
    #[inline(never)]
    fn is_named_escaped(&self, name: &[u8], text: &[u8], scratch: &mut Vec<u8>) -> bool {
        let (start, len) = (self.key as usize, (self.key_len & !ESCAPED) as usize);
        scratch.clear();
        Text::new(text.get(start..start + len).unwrap_or_default(), true).unescape_into(scratch);
        scratch == name
    }
}

/// Receives the members that a scan finds.
pub(crate) trait MemberSink {
    fn push_member(&mut self, member: Member);
}

impl MemberSink for Vec<Member> {
    #[inline(always)]
    fn push_member(&mut self, member: Member) {
        self.push(member);
    }
}

/// Ignores the members of a value that is only validated.
pub(crate) struct IgnoreMembers;

impl MemberSink for IgnoreMembers {
    #[inline(always)]
    fn push_member(&mut self, _member: Member) {}
}

/// Where the members of one request's params are, in the list of a document's members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Noted {
    start: u32,
    end: u32,
}

impl Noted {
    #[inline(always)]
    pub(crate) fn of(self, members: &[Member]) -> Option<&[Member]> {
        members.get(self.start as usize..self.end as usize)
    }
}

/// Appends the members of each request's params to one list, which is reused for each document. It
/// stores at most `max` for each request, and none if there are more.
pub(crate) struct FirstMembers<'a> {
    list: &'a mut Vec<Member>,
    start: usize,
    max: usize,
    are_all: bool,
}

impl<'a> FirstMembers<'a> {
    #[inline(always)]
    pub(crate) fn new(list: &'a mut Vec<Member>, max: usize) -> Self {
        list.clear();
        Self { list, start: 0, max, are_all: true }
    }

    /// Drops the members noted since the last call of [`FirstMembers::finish`].
    #[inline(always)]
    pub(crate) fn restart(&mut self) {
        self.list.truncate(self.start);
        self.are_all = true;
    }

    /// The members noted since the last call; `None` if there were more than `max`.
    #[inline(always)]
    pub(crate) fn finish(&mut self) -> Option<Noted> {
        if !self.are_all {
            self.restart();
            return None;
        }
        let start = std::mem::replace(&mut self.start, self.list.len());
        Some(Noted { start: start as u32, end: self.start as u32 })
    }
}

impl MemberSink for FirstMembers<'_> {
    #[inline(always)]
    fn push_member(&mut self, member: Member) {
        if self.list.len() - self.start < self.max {
            self.list.push(member);
        } else {
            self.are_all = false;
        }
    }
}
