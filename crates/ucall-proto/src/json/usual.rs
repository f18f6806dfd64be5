//! Steps over what most requests are made of, written the way that most write it.
//!
//! That is plain strings, whole numbers, and members of both without white space. All work on what
//! is left of a text, so that no place in it has to be compared with its length again, and say no
//! as early as they can: whatever is written otherwise is for the [`Scanner`] to tell.
//!
//! [`Scanner`]: super::scan::Scanner

use super::members::Member;
use super::text::{is_ascii, plain_prefix};

/// So many bytes are looked at without a look at the text's end.
const CHUNK: usize = 8;
/// Strings longer than this and a chunk are not usual.
const PLAIN_MAX: usize = 32;
/// Numbers with more digits behind the first are not usual.
const DIGITS_MAX: usize = 20;

/// Which bytes are ASCII, and stand for themselves inside a string.
const IS_PLAIN: [bool; 256] = {
    let mut is_plain = [false; 256];
    let mut byte = b' ' as usize;
    while byte < 0x80 {
        is_plain[byte] = byte as u8 != b'"' && byte as u8 != b'\\';
        byte += 1;
    }
    is_plain
};

/// The inside of a plain string, from behind its opening quote on, and what follows it.
#[inline(always)]
pub(crate) fn string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (inside, rest) = plain(text)?;
    Some((inside, rest.strip_prefix(b"\"")?))
}

/// The same for strings within a chunk.
#[inline(always)]
pub(super) fn short_string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (inside, rest) = text.split_at_checked(count_plain(text))?;
    Some((inside, rest.strip_prefix(b"\"")?))
}

/// The plain bytes at the front, and what follows them.
#[inline(always)]
fn plain(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut len = count_plain(text);
    if len == CHUNK {
        len += plain_len(text.get(CHUNK..)?)?;
    }
    text.split_at_checked(len)
}

/// How many plain bytes there are, a word at a step, if they are few and all are ASCII.
#[inline(never)]
fn plain_len(text: &[u8]) -> Option<usize> {
    let (len, seen) = plain_prefix(text.get(..PLAIN_MAX).unwrap_or(text));
    is_ascii(seen).then_some(len)
}

/// A whole number or a plain string, with its quotes, and what follows it.
///
/// Whether a number ends there is for the caller to tell: a comma ends it, a point or a digit does
/// not.
#[inline(always)]
pub(crate) fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = text.split_first()?;
    let more = match first {
        b'1'..=b'9' => digits(rest),
        b'0' => 0,
        b'"' => string(rest)?.0.len() + 1,
        b'-' if matches!(rest, [b'1'..=b'9', ..]) => digits(rest),
        _ => return None,
    };
    text.split_at_checked(1 + more)
}

#[inline(always)]
fn count_plain(text: &[u8]) -> usize {
    count_in_chunk(text, |byte| IS_PLAIN[usize::from(byte)])
}

#[inline(always)]
fn digits(text: &[u8]) -> usize {
    let len = count_in_chunk(text, |byte| byte.is_ascii_digit());
    if len < CHUNK {
        return len;
    }
    let more = text.iter().skip(CHUNK).take(DIGITS_MAX - CHUNK);
    CHUNK + more.take_while(|byte| byte.is_ascii_digit()).count()
}

/// A member, or an item, that is usual.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual<'a> {
    pub(super) note: Member,
    /// Behind the comma that follows it, or the bracket.
    pub(super) rest: &'a [u8],
    /// Whether it was that bracket.
    pub(super) is_last: bool,
}

/// A member of a plain key and a usual value at the front of `text`, `at` bytes from where places
/// are counted from.
#[inline(always)]
pub(super) fn member(text: &[u8], at: usize) -> Option<Usual<'_>> {
    let (key, rest) = plain(text.strip_prefix(b"\"")?)?;
    let (value, rest) = value(rest.strip_prefix(b"\":")?)?;
    let value_at = at + key.len() + 3;
    let note = Member::new(at + 1, key.len(), value_at, value_at + value.len());
    followed(note, rest, b'}')
}

/// An item that is a usual value.
#[inline(always)]
pub(super) fn item(text: &[u8], at: usize) -> Option<Usual<'_>> {
    let (value, rest) = value(text)?;
    followed(Member::item(at, at + value.len()), rest, b']')
}

#[inline(always)]
fn followed(note: Member, rest: &[u8], end: u8) -> Option<Usual<'_>> {
    let (&byte, rest) = rest.split_first()?;
    let is_last = byte == end;
    (is_last || byte == b',').then_some(Usual { note, rest, is_last })
}

/// The front of an object, as far as its members are usual. As wide as a register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectFront {
    /// Bytes stepped over; 0 if there is no such member.
    pub(crate) len: u32,
    /// Members noted.
    pub(crate) members: u16,
    /// Whether the object ends there; else another member follows.
    pub(crate) is_whole: bool,
}

/// Steps over the front of the object that `text` is, and notes its members in `places`.
///
/// By itself, so that all of its loop is in registers.
#[inline(never)]
pub(crate) fn object(text: &[u8], places: &mut [Member]) -> ObjectFront {
    let mut front = ObjectFront { len: 0, members: 0, is_whole: false };
    let Some(mut rest) = text.strip_prefix(b"{") else { return front };
    for place in places {
        let Some(usual) = member(rest, text.len() - rest.len()) else { break };
        *place = usual.note;
        front.members += 1;
        rest = usual.rest;
        front.is_whole = usual.is_last;
        if usual.is_last {
            break;
        }
    }
    if front.members > 0 {
        front.len = (text.len() - rest.len()) as u32;
    }
    front
}

/// How many bytes at the front are such, in the first chunk.
#[inline(always)]
fn count_in_chunk(text: &[u8], is_such: impl Fn(u8) -> bool) -> usize {
    let Some(chunk) = text.first_chunk::<CHUNK>() else {
        return text.iter().position(|&byte| !is_such(byte)).unwrap_or(text.len());
    };
    for (index, &byte) in chunk.iter().enumerate() {
        if !is_such(byte) {
            return index;
        }
    }
    CHUNK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_where_they_end_up_to_the_longest() {
        for len in 0..=CHUNK + PLAIN_MAX + 1 {
            for behind in ["", "x", " and something longer"] {
                let (name, digits) = ("n".repeat(len), "7".repeat(len));
                let text = format!("{name}\"{behind}");
                let split = Some((name.as_bytes(), behind.as_bytes()));
                let is_usual = len <= CHUNK + PLAIN_MAX;
                assert_eq!(string(text.as_bytes()), split.filter(|_| is_usual));
                assert_eq!(short_string(text.as_bytes()), split.filter(|_| len <= CHUNK));
                let text = format!("{digits},{behind}");
                let count = value(text.as_bytes()).map_or(0, |(number, _)| number.len());
                assert_eq!(count, len.min(1 + DIGITS_MAX));
            }
        }
    }

    #[test]
    fn what_is_not_plain_is_not_usual() {
        for text in ["a", "a\\\"", "a\u{1}\"", "\u{e9}\"", "1234567\n\"", "\u{7f}"] {
            assert_eq!(string(text.as_bytes()), None, "{text:?}");
            let long = "n".repeat(CHUNK) + text;
            assert_eq!(string(long.as_bytes()), None, "{text:?}");
        }
        for text in ["", "-", "-0", "-x", ".5", "a", "true", "\"1", "[", " 1"] {
            assert_eq!(value(text.as_bytes()), None, "{text:?}");
        }
        for (front, rest) in [("0", ","), ("0", "1,"), ("-7", "."), ("\"\"", ""), ("\"-\"", ":")] {
            let text = format!("{front}{rest}");
            assert_eq!(value(text.as_bytes()), Some((front.as_bytes(), rest.as_bytes())));
        }
    }
}
