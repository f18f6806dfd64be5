//! The fast path of JSON: reads the forms that most clients send, and returns `None` for others.
//!
//! It reads ASCII strings without escapes, numbers without an exponent, literals, and objects and
//! arrays of these, with at most one space after a colon or a comma. Each function takes the rest
//! of a text and returns what follows the value, so no position is compared with the text's length.
//! The [`Scanner`] reads every form, and starts where the fast path has started.
//!
//! [`Scanner`]: super::scan::Scanner

use super::members::{IgnoreMembers, Member, MemberSink};
use super::text::{is_ascii, plain_prefix};

/// Bytes that are read with one comparison against the text's end.
const CHUNK: usize = 8;
/// A string has at most a chunk and this many bytes, so that a long one is rarely read twice.
const PLAIN_MAX: usize = 256;
/// A number has at most this many digits after the first, and after its point.
const DIGITS_MAX: usize = 20;

/// The ASCII bytes that stand for themselves inside a string.
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

/// The inside of a plain string of at most a chunk, and what follows it; see [`string`].
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

/// The number of plain bytes that `text` starts with, if they are ASCII. Reads a word at a time.
#[inline(never)]
fn plain_len(text: &[u8]) -> Option<usize> {
    let (len, seen) = plain_prefix(text.get(..PLAIN_MAX).unwrap_or(text));
    is_ascii(seen).then_some(len)
}

/// A plain string with its quotes or a number without an exponent, and what follows it.
///
/// The caller checks the next byte: a comma ends a number, but a digit or an exponent does not.
#[inline(always)]
pub(crate) fn scalar(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = text.split_first()?;
    let more = match first {
        b'1'..=b'9' => count_digits(rest),
        b'0' => 0,
        b'"' => return text.split_at_checked(string(rest)?.0.len() + 2),
        b'-' => match rest.first()? {
            b'1'..=b'9' => count_digits(rest),
            b'0' => 1,
            _ => return None,
        },
        _ => return None,
    };
    match text.split_at_checked(1 + more)? {
        (_, [b'.', fraction @ ..]) => text.split_at_checked(2 + more + fraction_len(fraction)?),
        integer => Some(integer),
    }
}

#[inline(never)]
fn fraction_len(text: &[u8]) -> Option<usize> {
    Some(count_digits(text)).filter(|&len| len > 0)
}

/// Deeper values are the scanner's: the fast path recurses, and stacks are short.
const NESTING_MAX: usize = 32;

/// The length of the object or array that `text` starts with. Notes its members.
///
/// Not inlined, so that its loop stays in registers.
#[inline(never)]
pub(crate) fn container(
    text: &[u8],
    nesting_max: usize,
    members: &mut impl MemberSink,
) -> Option<usize> {
    let nesting_left = nesting_max.min(NESTING_MAX).checked_sub(1)?;
    let (bracket, inside) = text.split_first()?;
    let (rest, is_open) = match bracket {
        b'{' => members_of::<b'}'>(inside, 1, Some(nesting_left), members),
        b'[' => members_of::<b']'>(inside, 1, Some(nesting_left), members),
        _ => return None,
    };
    if !is_open {
        return Some(text.len() - rest.len());
    }
    matches!(text, [b'{', b'}', ..] | [b'[', b']', ..]).then_some(2)
}

/// Reads the members of an object, or the items of an array, up to its closing bracket `END` or up
/// to the first that has no fast form. Returns what follows, and whether the container is open.
///
/// `text` starts `front` bytes after the opening bracket. Without `nesting_left` only scalars have
/// the fast form, so that a caller which reads all other values itself reads none of them twice.
#[inline(always)]
pub(super) fn members_of<'a, const END: u8>(
    text: &'a [u8],
    front: usize,
    nesting_left: Option<usize>,
    members: &mut impl MemberSink,
) -> (&'a [u8], bool) {
    let mut rest = text;
    loop {
        let at = front + text.len() - rest.len();
        match member::<END>(rest, at, nesting_left) {
            Some((member, [b',', after @ ..])) => {
                members.push_member(member);
                rest = skip_space(after);
            }
            Some((member, [byte, after @ ..])) if *byte == END => {
                members.push_member(member);
                return (after, false);
            }
            _ => return (rest, true),
        }
    }
}

/// The member or the item that `text` starts with, `at` bytes after the opening bracket, and what
/// follows it. Only a member has a key.
#[inline(always)]
fn member<const END: u8>(
    text: &[u8],
    at: usize,
    nesting_left: Option<usize>,
) -> Option<(Member, &[u8])> {
    let (mut key, mut key_len, mut value_text) = (0, 0, text);
    if END == b'}' {
        let (name, rest) = plain(text.strip_prefix(b"\"")?)?;
        (key, key_len, value_text) = (at + 1, name.len(), skip_space(rest.strip_prefix(b"\":")?));
    }
    let value_at = at + text.len() - value_text.len();
    let (value, rest) = match (scalar(value_text), nesting_left) {
        (None, Some(nesting_left)) => other_value(value_text, nesting_left)?,
        (found, _) => found?,
    };
    Some((Member::new(key, key_len, value_at, value_at + value.len()), rest))
}

/// The value that a valid text starts with, and what follows it.
pub(super) fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let found = scalar(text).or_else(|| other_value(text, NESTING_MAX))?;
    // A number may go on where the fast path ends.
    let has_ended = !matches!(found.1, [b'0'..=b'9' | b'.' | b'e' | b'E', ..]);
    has_ended.then_some(found)
}

/// A value that is no [`scalar`], and what follows it.
#[inline(never)]
fn other_value(text: &[u8], nesting_max: usize) -> Option<(&[u8], &[u8])> {
    let len = match text.first()? {
        b't' | b'n' => 4,
        b'f' => 5,
        _ => container(text, nesting_max, &mut IgnoreMembers)?,
    };
    let (value, rest) = text.split_at_checked(len)?;
    let is_valid = matches!(value, b"true" | b"null" | b"false" | [b'{' | b'[', ..]);
    is_valid.then_some((value, rest))
}

/// `text` without the space that many clients write after a colon or a comma.
#[inline(always)]
pub(crate) fn skip_space(text: &[u8]) -> &[u8] {
    match text {
        [b' ', rest @ ..] => rest,
        _ => text,
    }
}

/// The number of plain bytes in the first chunk before any other byte. Most keys are short, so it
/// compares a byte at a time.
#[inline(always)]
fn count_plain(text: &[u8]) -> usize {
    let is_plain = |byte: u8| IS_PLAIN[usize::from(byte)];
    let Some(chunk) = text.first_chunk::<CHUNK>() else {
        return text.iter().position(|&byte| !is_plain(byte)).unwrap_or(text.len());
    };
    for (index, &byte) in chunk.iter().enumerate() {
        if !is_plain(byte) {
            return index;
        }
    }
    CHUNK
}

/// The number of digits that `text` starts with, at most [`DIGITS_MAX`].
#[inline(always)]
fn count_digits(text: &[u8]) -> usize {
    if let Some(chunk) = text.first_chunk() {
        let others = bytes_after_digits(*chunk);
        if others != 0 {
            return others.trailing_zeros() as usize / 8;
        }
    }
    text.iter().take(DIGITS_MAX).take_while(|byte| byte.is_ascii_digit()).count()
}

/// The number of digits that `text` starts with; many, as in most fractions.
#[inline]
pub(super) fn count_all_digits(text: &[u8]) -> usize {
    let mut count = 0;
    while let Some(chunk) = text.get(count..).and_then(<[u8]>::first_chunk) {
        let others = bytes_after_digits(*chunk);
        count += others.trailing_zeros() as usize / 8;
        if others != 0 {
            return count;
        }
    }
    let rest = text.get(count..).unwrap_or_default();
    count + rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Marks, by its high bit, the first of eight bytes that is no digit. Bytes after it may be marked
/// wrongly.
#[inline(always)]
fn bytes_after_digits(chunk: [u8; 8]) -> u64 {
    let values = u64::from_le_bytes(chunk) ^ 0x3030_3030_3030_3030;
    // Only 10 to 0x89 reach the high bit by the sum, and what is above has it already.
    (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080
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
                for text in [format!("{digits},{behind}"), format!("-{digits},{behind}")] {
                    let count = scalar(text.as_bytes()).map_or(0, |(number, _)| number.len());
                    let sign = usize::from(text.starts_with('-'));
                    assert_eq!(
                        count,
                        if len == 0 { 0 } else { sign + len.min(DIGITS_MAX + 1 - sign) }
                    );
                }
                let text = format!("1.{digits},{behind}");
                let count = scalar(text.as_bytes()).map_or(0, |(number, _)| number.len());
                assert_eq!(count, if len == 0 { 0 } else { 2 + len.min(DIGITS_MAX) });
            }
        }
    }

    #[test]
    fn every_other_byte_ends_the_digits() {
        for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
            for len in 0..12 {
                let text = [&b"123456789012"[..len], &[byte], b"1234567"].concat();
                assert_eq!(count_digits(&text), len, "{byte} at {len}");
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
        for text in ["", "-", "-x", "-.5", ".5", "1.", "1.x", "a", "true", "\"1", "[", " 1"] {
            assert_eq!(scalar(text.as_bytes()), None, "{text:?}");
        }
        let fronts = [
            ("0", ","),
            ("-0", ","),
            ("-0", "0"),
            ("0", "1,"),
            ("-7", "e"),
            ("-7.0", "."),
            ("\"\"", ""),
            ("\"-\"", ":"),
        ];
        for (front, rest) in fronts {
            let text = format!("{front}{rest}");
            assert_eq!(scalar(text.as_bytes()), Some((front.as_bytes(), rest.as_bytes())));
        }
    }

    #[test]
    fn containers_end_at_their_bracket() {
        let read = |text: &str| container(text.as_bytes(), 3, &mut IgnoreMembers);
        let texts = ["{}", "[]", "[1]", r#"{"a":1, "b": [2, {"c":null}], "d":{}}"#, "[-0.5, true]"];
        for text in texts {
            for behind in ["", ",", "}", "]", " more"] {
                assert_eq!(read(&format!("{text}{behind}")), Some(text.len()), "{text}{behind}");
            }
            for len in 0..text.len() {
                assert_eq!(read(&text[..len]), None, "{text} cut at {len}");
            }
        }
        let others = ["[1,]", "[1, ]", "[,1]", "[1}", "{\"a\":1]", "{\"a\"}", "{1:2}", "[trux]"];
        for text in others.into_iter().chain(["[[[[1]]]]", "[1e3]", "[1 ]", "[  1]", "[\"\\n\"]"]) {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
