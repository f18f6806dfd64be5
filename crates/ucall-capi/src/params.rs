//! The params of one call, by name, by position or by pointer.
//!
//! The scan of a request notes the position of each param. Without that, every lookup would have to
//! scan all params, because the last of two equal names counts.
//!
//! Most lookups are for a short name or an index in params whose positions are noted:
//! [`Params::lookup`] is the fast path for these. [`ParamBuffers::find`] does all others.

use ucall_proto::json::{Member, Reader, Text, ValueKind, collect_members};

use crate::held_buffer::HeldBuffer;
use crate::pointer::NameBuffers;

/// Memory for more members is not cached for the next call.
const MEMBERS_CACHED_MAX: usize = 1024;

/// Names one of the params.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ParamKey<'a> {
    /// The name of a member, or a pointer, which begins with a slash.
    Named(&'a [u8]),
    /// The index of an item.
    At(usize),
}

/// The result of a lookup without memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup<'a> {
    /// The text of one of the params, without white space around it.
    Found(&'a [u8]),
    Absent,
    /// [`ParamBuffers::find`] has to look it up.
    Unknown,
}

/// The params of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params<'a> {
    /// Empty without params.
    pub(crate) text: &'a [u8],
    /// The positions of members, if the scan noted them.
    pub(crate) members: Option<&'a [Member]>,
}

impl<'a> Params<'a> {
    /// Looks up one of the params on the fast path.
    #[inline(always)]
    pub(crate) fn lookup(self, key: ParamKey<'_>) -> Lookup<'a> {
        let Some(members) = self.members else { return Lookup::Unknown };
        match key {
            ParamKey::Named([b'/', ..]) => Lookup::Unknown,
            ParamKey::Named(name) => match name.len() {
                1..=2 => self.lookup_name::<1>(name, members),
                3..=4 => self.lookup_name::<2>(name, members),
                5..=8 => self.lookup_name::<4>(name, members),
                9..=16 => self.lookup_name::<8>(name, members),
                _ => Lookup::Unknown,
            },
            ParamKey::At(index) => match at(members, self.text, index) {
                Some(value) => Lookup::Found(value),
                None => Lookup::Absent,
            },
        }
    }

    #[inline(always)]
    fn lookup_name<const N: usize>(self, name: &[u8], members: &[Member]) -> Lookup<'a> {
        for member in members.iter().rev() {
            match member.is_named_short::<N>(name, self.text) {
                Some(true) => return Lookup::Found(member.value(self.text)),
                Some(false) => {}
                None => return Lookup::Unknown,
            }
        }
        Lookup::Absent
    }
}

/// Buffers for lookups, of one worker or of one deferred call.
#[derive(Debug, Default)]
pub(crate) struct ParamBuffers {
    /// The members of params whose positions the scan did not note.
    members: Vec<Member>,
    names: NameBuffers,
    arena: Arena,
}

impl ParamBuffers {
    /// Discards the params of a call.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if !self.members.is_empty() {
            self.members.clear();
            self.members.shrink_to(MEMBERS_CACHED_MAX);
        }
        self.arena.reset();
    }

    /// The text of one of the params, without white space around it.
    #[inline(always)]
    pub(crate) fn find<'a>(&mut self, params: Params<'a>, key: ParamKey<'_>) -> Option<&'a [u8]> {
        let Self { members, names, .. } = self;
        let members = match params.members {
            Some(members) => members,
            None => collected(params.text, members),
        };
        match key {
            ParamKey::Named([b'/', ..]) => evaluate(members, params.text, key, names),
            ParamKey::Named(name) => named(members, params.text, name, &mut names.key),
            ParamKey::At(index) => at(members, params.text, index),
        }
    }

    /// Holds the memory of a buffer until the next call.
    pub(crate) fn hold(&mut self, buffer: HeldBuffer) {
        self.arena.hold(buffer);
    }

    /// The bytes of a key. Those of an escaped key are in the arena until the next call.
    pub(crate) fn key<'a>(&'a mut self, key: Text<'a>) -> &'a [u8] {
        if key.is_escaped() { self.arena.unescape(key) } else { key.raw() }
    }

    /// The bytes of a string. Those of an escaped string are in the arena until the next call.
    #[inline]
    pub(crate) fn string<'a>(&'a mut self, value: &'a [u8]) -> Option<&'a [u8]> {
        match plain_string(value) {
            None if value.first() == Some(&b'"') => {
                Some(self.arena.unescape(Reader::new(value).string()))
            }
            plain => plain,
        }
    }
}

/// Collects the members of params whose positions the scan did not note, at the first lookup. The
/// text of absent params is empty.
#[cold]
#[inline(never)]
fn collected<'m>(text: &[u8], members: &'m mut Vec<Member>) -> &'m [Member] {
    if members.is_empty() && !text.is_empty() {
        collect_members(text, members);
    }
    members
}

/// An item of an array.
#[inline]
fn at<'a>(members: &[Member], text: &'a [u8], index: usize) -> Option<&'a [u8]> {
    match text.first() {
        Some(b'[') => members.get(index).map(|item| item.value(text)),
        _ => None,
    }
}

#[cold]
#[inline(never)]
fn evaluate<'a>(
    members: &[Member],
    text: &'a [u8],
    key: ParamKey<'_>,
    names: &mut NameBuffers,
) -> Option<&'a [u8]> {
    let ParamKey::Named(pointer) = key else { return None };
    let rest = names.first_token(pointer)?;
    let value = match text.first() {
        Some(b'[') => at(members, text, names.token_index()?),
        _ => {
            let NameBuffers { token, key } = names;
            named(members, text, token, key)
        }
    };
    names.evaluate(value?, rest)
}

/// The last member of that name. Items of an array have no name.
#[inline(always)]
fn named<'a>(
    members: &[Member],
    text: &'a [u8],
    name: &[u8],
    scratch: &mut Vec<u8>,
) -> Option<&'a [u8]> {
    for member in members.iter().rev() {
        if member.is_named(name, text, scratch) {
            return Some(member.value(text));
        }
    }
    None
}

/// The bytes of a string without escapes.
#[inline]
pub(crate) fn plain_string(value: &[u8]) -> Option<&[u8]> {
    let inside = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (!inside.contains(&b'\\')).then_some(inside)
}

/// `true` or `false`, if it is one.
#[inline]
pub(crate) fn boolean(value: &[u8]) -> Option<bool> {
    match value {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// An integer that fits, written without fraction and exponent.
#[inline]
pub(crate) fn integer(value: &[u8]) -> Option<i64> {
    short_integer(value).or_else(|| long_integer(value))
}

#[cold]
#[inline(never)]
fn long_integer(value: &[u8]) -> Option<i64> {
    let mut reader = Reader::new(value);
    if reader.kind() != ValueKind::Number {
        return None;
    }
    reader.number().as_i64()
}

/// An integer that fits and is not negative, written without fraction and exponent.
pub(crate) fn unsigned_integer(value: &[u8]) -> Option<u64> {
    match value {
        b"-0" => Some(0),
        [b'0'..=b'9', ..] => std::str::from_utf8(value).ok()?.parse().ok(),
        _ => None,
    }
}

/// An integer of so few digits that it always fits.
#[inline(always)]
pub(crate) fn short_integer(value: &[u8]) -> Option<i64> {
    match value {
        [b'-', digits @ ..] => Some(-parse_digits(digits)?),
        digits => parse_digits(digits),
    }
}

#[inline(always)]
fn parse_digits(digits: &[u8]) -> Option<i64> {
    const DIGITS_MAX: usize = 18;
    let (first, others) = digits.split_first()?;
    if others.len() >= DIGITS_MAX {
        return None;
    }
    let mut sum = digit(*first)?;
    for other in others {
        sum = sum * 10 + digit(*other)?;
    }
    Some(sum)
}

#[inline(always)]
fn digit(byte: u8) -> Option<i64> {
    let digit = i64::from(byte) - i64::from(b'0');
    if matches!(digit, 0..=9) { Some(digit) } else { None }
}

/// The nearest double to a number, if it is finite.
#[inline]
pub(crate) fn double(value: &[u8]) -> Option<f64> {
    let mut reader = Reader::new(value);
    if reader.kind() != ValueKind::Number {
        return None;
    }
    Some(reader.number().as_f64()).filter(|value| value.is_finite())
}

/// The smallest capacity of a chunk, and the largest that is cached for the next call.
const CHUNK_BYTES: usize = 4 << 10;
const CHUNK_CACHED_BYTES_MAX: usize = 64 << 10;

/// Memory for unescaped strings, at fixed addresses until the call ends: chunks that are filled one
/// after another and never grow.
#[derive(Debug, Default)]
struct Arena {
    chunks: Vec<Vec<u8>>,
    /// Memory of buffers. There is a chunk if there are some.
    held: Vec<HeldBuffer>,
}

impl Arena {
    /// The unescaped bytes of `text`, valid until [`Arena::reset`].
    fn unescape(&mut self, text: Text<'_>) -> &[u8] {
        let chunk = self.with_room(text.raw().len());
        let (start, capacity) = (chunk.len(), chunk.capacity());
        // Every escape is longer than its meaning, so the capacity suffices.
        text.unescape_into(chunk);
        debug_assert_eq!(chunk.capacity(), capacity);
        chunk.get(start..).unwrap_or_default()
    }

    fn hold(&mut self, buffer: HeldBuffer) {
        // `reset` looks at chunks alone.
        self.with_room(0);
        self.held.push(buffer);
    }

    fn with_room(&mut self, bytes: usize) -> &mut Vec<u8> {
        let has_room = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() >= bytes;
        if !self.chunks.last().is_some_and(has_room) {
            self.chunks.push(Vec::with_capacity(bytes.max(CHUNK_BYTES)));
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    /// Invalidates all strings, and keeps one small chunk for the next call.
    #[inline]
    fn reset(&mut self) {
        if !self.chunks.is_empty() {
            self.chunks.truncate(1);
            self.chunks.retain(|chunk| chunk.capacity() <= CHUNK_CACHED_BYTES_MAX);
            self.chunks.iter_mut().for_each(Vec::clear);
            self.held = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, key: ParamKey<'_>) -> Option<String> {
        let params = Params { text: text.as_bytes(), members: None };
        let mut buffers = ParamBuffers::default();
        let found = buffers.find(params, key);
        found.map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn by_name_the_last_duplicate_counts() {
        let text = r#"{ "a" : 1 , "b\u0021":[ 2 ] , "a":"x" , "":null, "\u0061":true }"#;
        let named = |name: &'static str| found(text, ParamKey::Named(name.as_bytes()));
        assert_eq!(named("a").as_deref(), Some("true"));
        assert_eq!(named("b!").as_deref(), Some("[ 2 ]"));
        assert_eq!(named("").as_deref(), Some("null"));
        assert_eq!((named("b"), named("b\\u0021"), named("b!!")), (None, None, None));
        assert_eq!(found(text, ParamKey::At(0)), None);
    }

    /// What a lookup finds; `None` if unknown. Asserts that a whole search finds the same.
    fn lookup_checked(text: &str, key: ParamKey<'_>) -> Option<Option<String>> {
        let mut members = Vec::new();
        collect_members(text.as_bytes(), &mut members);
        let seen = match (Params { text: text.as_bytes(), members: Some(&members) }).lookup(key) {
            Lookup::Found(value) => Some(String::from_utf8(value.to_vec()).unwrap()),
            Lookup::Absent => None,
            Lookup::Unknown => return None,
        };
        assert_eq!(seen, found(text, key), "{text} {key:?}");
        Some(seen)
    }

    #[test]
    fn lookup_distinguishes_names_that_differ_in_one_byte() {
        for len in 1..=20 {
            let name: String = ('a'..='z').take(len).collect();
            let lookup =
                |text: &str, name: &str| lookup_checked(text, ParamKey::Named(name.as_bytes()));
            let known = |value: Option<&str>| (len <= 16).then(|| value.map(str::to_owned));
            for place in 0..len {
                let with = |byte| [&name[..place], byte, &name[place + 1..]].concat();
                let text = format!(r#"{{"{name}":1,"{}":2,"{name}x":3,"":4}}"#, with("A"));
                assert_eq!(lookup(&text, &name), known(Some("1")));
                assert_eq!(lookup(&text, &with("A")), known(Some("2")));
                assert_eq!(lookup(&text, &with("B")), known(None));
            }
            assert_eq!(lookup(&format!(r#"{{"{name}":1,"{name}":2}}"#), &name), known(Some("2")));
        }
    }

    #[test]
    fn lookup_does_not_guess() {
        let escaped = r#"{"a":1,"b":2,"\u0062":3,"c":4}"#;
        assert_eq!(lookup_checked(escaped, ParamKey::Named(b"c")), Some(Some("4".into())));
        for unknown in [&b"b"[..], b"a", b"d", b"/c", b""] {
            assert_eq!(lookup_checked(escaped, ParamKey::Named(unknown)), None);
        }
        assert_eq!(lookup_checked(escaped, ParamKey::At(0)), Some(None));
        assert_eq!(lookup_checked("[1,2]", ParamKey::Named(b"a")), Some(None));
        assert_eq!(lookup_checked("[1,2]", ParamKey::At(1)), Some(Some("2".into())));
        assert_eq!(lookup_checked("[1,2]", ParamKey::At(2)), Some(None));
        let params = Params { text: b"[1]", members: None };
        assert_eq!(params.lookup(ParamKey::At(0)), Lookup::Unknown);
    }

    #[test]
    fn by_position_and_by_pointer() {
        let text = r#"[1,{"a/b":[true,{"c":"d"}]}]"#;
        assert_eq!(found(text, ParamKey::At(0)).as_deref(), Some("1"));
        assert_eq!(found(text, ParamKey::At(2)), None);
        let pointer = |pointer: &'static str| found(text, ParamKey::Named(pointer.as_bytes()));
        assert_eq!(pointer("/1/a~1b/1/c").as_deref(), Some("\"d\""));
        assert_eq!(pointer("/0").as_deref(), Some("1"));
        assert_eq!(
            (pointer("/2"), pointer("/0/0"), pointer("/1/c"), pointer("/")),
            (None, None, None, None)
        );
        assert_eq!(found(text, ParamKey::Named(b"0")), None);
    }

    #[test]
    fn absent_params_are_not_found() {
        for key in
            [ParamKey::At(0), ParamKey::Named(b"a"), ParamKey::Named(b"/a"), ParamKey::Named(b"")]
        {
            assert_eq!(found("", key), None);
            assert_eq!(found("[]", key), None);
            assert_eq!(found("{}", key), None);
        }
    }

    #[test]
    fn values_are_not_converted() {
        assert_eq!(
            (boolean(b"true"), boolean(b"1"), boolean(b"\"true\"")),
            (Some(true), None, None)
        );
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        let longest = b"-999999999999999999";
        assert_eq!(short_integer(longest), Some(-999_999_999_999_999_999));
        assert_eq!(short_integer(b"-1000000000000000000"), None);
        assert_eq!((integer(b"-0"), integer(b"-12")), (Some(0), Some(-12)));
        assert_eq!(integer(b"999999999999999999"), Some(999_999_999_999_999_999));
        assert_eq!(integer(b"1000000000000000000"), Some(1_000_000_000_000_000_000));
        for none in ["9223372036854775808", "1.0", "1e3", "true", "\"1\"", "null", "[1]", ""] {
            assert_eq!(integer(none.as_bytes()), None, "{none}");
        }
        assert_eq!((double(b"3"), double(b"-2.5e-1")), (Some(3.0), Some(-0.25)));
        assert_eq!((double(b"1e999"), double(b"\"1\""), double(b"null")), (None, None, None));
    }

    #[test]
    fn memory_of_a_huge_list_is_not_cached() {
        let mut buffers = ParamBuffers::default();
        let text = format!("[{}0]", "0,".repeat(100_000));
        let params = Params { text: text.as_bytes(), members: None };
        assert_eq!(buffers.find(params, ParamKey::At(100_000)), Some(&b"0"[..]));
        buffers.reset();
        assert!(buffers.members.capacity() <= MEMBERS_CACHED_MAX);
    }

    #[test]
    fn returned_slices_stay_in_place() {
        let mut arena = Arena::default();
        let texts: Vec<String> =
            (0..2_000).map(|number| format!(r#""\u00e9\n{number}""#)).collect();
        let places: Vec<(*const u8, usize)> = texts
            .iter()
            .map(|text| {
                let bytes = arena.unescape(Reader::new(text.as_bytes()).string());
                (bytes.as_ptr(), bytes.len())
            })
            .collect();
        for (number, (start, len)) in places.into_iter().enumerate() {
            // SAFETY: the arena was not reset, so its bytes are there.
            let bytes = unsafe { std::slice::from_raw_parts(start, len) };
            assert_eq!(bytes, format!("é\n{number}").as_bytes());
        }
    }

    #[test]
    fn memory_of_a_huge_string_is_not_cached() {
        let mut arena = Arena::default();
        let huge = format!("\"\\n{}\"", "x".repeat(1 << 20));
        assert_eq!(arena.unescape(Reader::new(huge.as_bytes()).string()).len(), (1 << 20) + 1);
        arena.reset();
        assert_eq!(arena.chunks.len(), 0);
        arena.unescape(Reader::new(br#""\n""#).string());
        arena.reset();
        assert_eq!(arena.chunks.len(), 1);
    }
}
