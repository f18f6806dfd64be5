//! The fast path: reads JSON in the form that most programs write, or nothing of it.
//!
//! That form has plain strings, whole numbers, and objects and arrays of both, without white space.
//! Each function works on the rest of a text, so it compares no position with the text's length,
//! and returns `None` at the first byte of any other form. The [`Scanner`] then reads the same text
//! from its start.
//!
//! [`Scanner`]: super::scan::Scanner

use super::members::{FirstMembers, MEMBERS_MAX, Member, MemberSink};
use super::text::{is_ascii, plain_prefix};

/// Bytes that are read without a comparison with the text's end.
const CHUNK: usize = 8;
/// A string has at most a chunk and this many bytes.
const PLAIN_MAX: usize = 32;
/// A number has at most this many digits after the first.
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

/// The inside of a plain string whose opening quote comes before `text`, and what follows it.
#[inline(always)]
pub(crate) fn string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (inside, rest) = plain(text)?;
    Some((inside, rest.strip_prefix(b"\"")?))
}

/// The same for a string of at most a chunk.
#[inline(always)]
pub(super) fn short_string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (inside, rest) = text.split_at_checked(count_plain(text))?;
    Some((inside, rest.strip_prefix(b"\"")?))
}

/// The plain bytes that `text` starts with, and what follows them.
#[inline(always)]
fn plain(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut len = count_plain(text);
    if len == CHUNK {
        len += plain_len(text.get(CHUNK..)?)?;
    }
    text.split_at_checked(len)
}

/// How many plain bytes `text` starts with, if they are ASCII. Reads a word at a time.
#[inline(never)]
fn plain_len(text: &[u8]) -> Option<usize> {
    let (len, seen) = plain_prefix(text.get(..PLAIN_MAX).unwrap_or(text));
    is_ascii(seen).then_some(len)
}

/// A whole number or a plain string, with its quotes, and what follows it.
///
/// The caller checks the byte that follows: a comma ends a number, a point or a digit does not.
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

/// The length of the object or array that `text` starts with. Notes its members, of which there are
/// at most [`MEMBERS_MAX`], so that a text in any other form is not read twice for long.
///
/// A function of its own, which keeps its loop in registers.
#[inline(never)]
pub(crate) fn container(text: &[u8], members: &mut FirstMembers<'_>) -> Option<usize> {
    match text.first()? {
        b'{' => container_to(b'}', text, members),
        b'[' => container_to(b']', text, members),
        _ => None,
    }
}

#[inline(always)]
fn container_to(end: u8, text: &[u8], members: &mut FirstMembers<'_>) -> Option<usize> {
    let mut rest = text.get(1..)?;
    for _ in 0..MEMBERS_MAX {
        let at = text.len() - rest.len();
        let (noted, behind) = if end == b'}' { member(rest, at)? } else { item(rest, at)? };
        members.push_member(noted);
        let (&byte, behind) = behind.split_first()?;
        rest = behind;
        if byte == end {
            return Some(text.len() - rest.len());
        }
        if byte != b',' {
            return None;
        }
    }
    None
}

/// The member that `text` starts with, `at` bytes after the object's brace, and what follows it: as
/// after [`value`], the caller checks that this is a comma or the brace.
#[inline(always)]
pub(super) fn member(text: &[u8], at: usize) -> Option<(Member, &[u8])> {
    let (key, rest) = plain(text.strip_prefix(b"\"")?)?;
    let (value, rest) = value(rest.strip_prefix(b"\":")?)?;
    let value_at = at + key.len() + 3;
    Some((Member::new(at + 1, key.len(), value_at, value_at + value.len()), rest))
}

/// The same for an item of an array.
#[inline(always)]
pub(super) fn item(text: &[u8], at: usize) -> Option<(Member, &[u8])> {
    let (value, rest) = value(text)?;
    Some((Member::item(at, at + value.len()), rest))
}

/// How many bytes of the first chunk come before the first that is no `is_such`.
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
    fn part_ends_are_exact_up_to_the_longest() {
        for len in 0..=CHUNK + PLAIN_MAX + 1 {
            for behind in ["", "x", " and something longer"] {
                let (name, digits) = ("n".repeat(len), "7".repeat(len));
                let text = format!("{name}\"{behind}");
                let split = Some((name.as_bytes(), behind.as_bytes()));
                let is_short = len <= CHUNK + PLAIN_MAX;
                assert_eq!(string(text.as_bytes()), split.filter(|_| is_short));
                assert_eq!(short_string(text.as_bytes()), split.filter(|_| len <= CHUNK));
                let text = format!("{digits},{behind}");
                let count = value(text.as_bytes()).map_or(0, |(number, _)| number.len());
                assert_eq!(count, len.min(1 + DIGITS_MAX));
            }
        }
    }

    #[test]
    fn other_forms_are_left_to_the_scanner() {
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
