//! JSON strings as they are in their document, and scans over their bytes.

use std::borrow::Cow;

/// The inside of a JSON string: valid UTF-8, valid escapes, no quotes around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Text<'a> {
    /// Wraps the inside of a string; `escaped` states whether it holds a backslash.
    pub(crate) const fn new(raw: &'a [u8], escaped: bool) -> Self {
        Self { raw, escaped }
    }

    /// A text without escapes, and without quotes or backslashes.
    pub const fn plain(raw: &'a [u8]) -> Self {
        Self::new(raw, false)
    }

    /// The text of a valid value, if it is a string.
    pub(crate) fn of_quoted(value: &'a [u8]) -> Option<Self> {
        let raw = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        Some(Self { raw, escaped: memchr::memchr(b'\\', raw).is_some() })
    }

    /// The bytes as they are in the document.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether [`Text::raw`] holds escapes, and so is not yet the string it means.
    pub fn is_escaped(&self) -> bool {
        self.escaped
    }

    /// The string's bytes in UTF-8, borrowed unless it holds escapes.
    pub fn unescaped(&self) -> Cow<'a, [u8]> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut out = Vec::with_capacity(self.raw.len());
        self.unescape_into(&mut out);
        Cow::Owned(out)
    }

    /// Appends the string's bytes in UTF-8.
    pub fn unescape_into(&self, out: &mut Vec<u8>) {
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            let (plain, escape) = rest.split_at(at);
            out.extend_from_slice(plain);
            rest = unescape_one(escape, out);
        }
        out.extend_from_slice(rest);
    }
}

/// Appends the value of the escape that `text` starts with; returns what follows it.
fn unescape_one<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let (Some(&letter), Some(rest)) = (text.get(1), text.get(2..)) else { return &[] };
    let byte = match letter {
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'u' => return unescape_unicode(rest, out),
        other => other,
    };
    out.push(byte);
    rest
}

fn unescape_unicode<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let (mut code, mut rest) = (hex4(text), text.get(4..).unwrap_or_default());
    if (0xD800..0xDC00).contains(&code) {
        let low = hex4(rest.get(2..).unwrap_or_default());
        code = 0x10000 + ((code - 0xD800) << 10) + (low.wrapping_sub(0xDC00) & 0x3FF);
        rest = rest.get(6..).unwrap_or_default();
    }
    let letter = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
    rest
}

fn hex4(text: &[u8]) -> u32 {
    text.iter()
        .take(4)
        .fold(0, |code, &digit| code << 4 | (digit as char).to_digit(16).unwrap_or(0))
}

/// The number of bytes at the start of `text` that stand for themselves inside a JSON string, and
/// their bitwise or, whose high bits show whether all are ASCII.
///
/// Stops at a quote, a backslash, a control character, or the end.
#[inline]
pub(crate) fn plain_prefix(text: &[u8]) -> (usize, u64) {
    let (mut count, mut seen) = (0, 0);
    // Most strings are short: eight bytes a step until then, wide steps from there on.
    while let Some(word) = text.get(count..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        let special = special_bytes(word);
        if special != 0 {
            let plain = special.trailing_zeros() / 8;
            return (count + plain as usize, seen | word & low_bytes(plain));
        }
        seen |= word;
        count += 8;
        if count == SHORT {
            let (more, seen_later) = plain_prefix_long(text.get(count..).unwrap_or_default());
            return (count + more, seen | seen_later);
        }
    }
    plain_prefix_by_byte(text, count, seen)
}

const SHORT: usize = 32;
const FIRST_BLOCK_BYTES: usize = 64;
const BLOCK_BYTES: usize = 4096;
/// The highest bit of each byte, which ASCII does not have.
pub(super) const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// Sets the high bit of the first byte that is a quote, a backslash or a control character; bytes
/// after it may be marked wrongly.
#[inline]
fn special_bytes(word: u64) -> u64 {
    let is_zero = |word: u64| word.wrapping_sub(LOW_BITS) & !word;
    let quote = is_zero(word ^ (LOW_BITS * b'"' as u64));
    let backslash = is_zero(word ^ (LOW_BITS * b'\\' as u64));
    let control = word.wrapping_sub(LOW_BITS * 0x20) & !word;
    (quote | backslash | control) & HIGH_BITS
}

/// A mask of the lowest `count` bytes, fewer than eight.
#[inline]
fn low_bytes(count: u32) -> u64 {
    (1 << (count * 8)) - 1
}

#[inline]
fn plain_prefix_by_byte(text: &[u8], from: usize, mut seen: u64) -> (usize, u64) {
    let rest = text.get(from..).unwrap_or_default();
    for (count, &byte) in rest.iter().enumerate() {
        if byte < 0x20 || byte == b'"' || byte == b'\\' {
            return (from + count, seen);
        }
        seen |= u64::from(byte);
    }
    (text.len(), seen)
}

/// Scans a block at a time while it is in the first-level cache: finds its first quote or
/// backslash, then checks for a control character before that. Both run at memory speed.
///
/// Blocks double in size, so that a text with a special byte in each line is not scanned many times
/// over.
fn plain_prefix_long(text: &[u8]) -> (usize, u64) {
    let (mut count, mut seen) = (0, 0);
    let mut block_bytes = FIRST_BLOCK_BYTES;
    while let Some(rest) = text.get(count..).filter(|rest| !rest.is_empty()) {
        let block = rest.get(..block_bytes).unwrap_or(rest);
        let end = memchr::memchr2(b'"', b'\\', block).unwrap_or(block.len());
        let plain = block.get(..end).unwrap_or_default();
        let (least, or) = least_and_or(plain);
        if least < 0x20 {
            return plain_prefix_by_byte(text, count, seen);
        }
        seen |= u64::from(or);
        count += end;
        if end < block.len() {
            break;
        }
        block_bytes = (block_bytes * 2).min(BLOCK_BYTES);
    }
    (count, seen)
}

/// The smallest byte, and the bitwise or of all, in a form that compilers vectorize.
fn least_and_or(bytes: &[u8]) -> (u8, u8) {
    let (chunks, rest) = bytes.as_chunks::<32>();
    let (mut least, mut or) = ([u8::MAX; 32], [0; 32]);
    for chunk in chunks {
        for ((least, or), &byte) in least.iter_mut().zip(&mut or).zip(chunk) {
            *least = byte.min(*least);
            *or |= byte;
        }
    }
    let all = least.iter().zip(&or).map(|(&least, &or)| (least, or));
    let all = all.chain(rest.iter().map(|&byte| (byte, byte)));
    all.fold((u8::MAX, 0), |(least, or), (low, bits)| (least.min(low), or | bits))
}

/// The number of bytes at the start of a validated string before its next quote or backslash.
#[inline]
pub(crate) fn validated_prefix(text: &[u8]) -> usize {
    let (count, _) = plain_prefix(text.get(..SHORT).unwrap_or(text));
    match text.get(SHORT..) {
        Some(rest) if count == SHORT => {
            SHORT + memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())
        }
        _ => count,
    }
}

/// Whether bytes or-ed together by [`plain_prefix`] are all ASCII.
#[inline]
pub(crate) fn is_ascii(seen: u64) -> bool {
    seen & HIGH_BITS == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_escape_is_decoded() {
        let text = Text::new(br#"a\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00z"#, true);
        assert_eq!(
            text.unescaped().as_ref(),
            "a\"\\/\u{8}\u{c}\n\r\tA\u{e9}\u{20ac}😀z".as_bytes()
        );
    }

    #[test]
    fn the_plain_prefix_ends_at_each_special_byte_at_each_offset() {
        for len in [0, 1, 23, 24, 25, 31, 56, 57, 95, 96, 97, 224, 225, 500] {
            let plain = vec![b'x'; len];
            assert_eq!(plain_prefix(&plain).0, len);
            for at in 0..len {
                for special in [b'"', b'\\', 0, 0x1f] {
                    let mut text = plain.clone();
                    text[at] = special;
                    assert_eq!(plain_prefix(&text).0, at);
                }
            }
        }
    }

    #[test]
    fn long_and_short_prefixes_agree() {
        let plain = vec![b'x'; SHORT + 2 * BLOCK_BYTES + 40];
        assert_eq!((plain_prefix(&plain).0, validated_prefix(&plain)), (plain.len(), plain.len()));
        let borders = [0, SHORT, SHORT + BLOCK_BYTES, SHORT + 2 * BLOCK_BYTES, plain.len() - 2];
        for at in borders.iter().flat_map(|at| at.saturating_sub(2)..at + 2) {
            for special in [b'"', b'\\', 0, 0x1f] {
                let mut text = plain.clone();
                text[at] = special;
                text[at + 1..].fill(0xe9);
                let (count, seen) = plain_prefix(&text);
                assert!(count == at && is_ascii(seen), "{special} at {at}");
                if special > 0x1f {
                    assert_eq!(validated_prefix(&text), at);
                }
            }
        }
    }

    #[test]
    fn non_ascii_bytes_are_seen_only_within_the_prefix() {
        for len in [1, 7, 8, 9, 31, 32, 33, 64, 65, 100] {
            for at in 0..len {
                let mut text = vec![b'x'; len];
                text[at] = 0xe9;
                assert!(!is_ascii(plain_prefix(&text).1), "{at} of {len}");
                text.insert(at, b'"');
                let (count, seen) = plain_prefix(&text);
                assert_eq!((count, is_ascii(seen)), (at, true));
            }
        }
    }
}
