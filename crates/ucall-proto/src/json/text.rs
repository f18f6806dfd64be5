//! A JSON string as it stands in its document, and the bytes that make one up.

use std::borrow::Cow;

/// The inside of a JSON string: valid UTF-8, valid escapes, no quotes around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Text<'a> {
    /// Wraps what stands between two quotes; `escaped` tells whether a backslash is among it.
    pub(crate) fn new(raw: &'a [u8], escaped: bool) -> Self {
        Self { raw, escaped }
    }

    /// The bytes as they stand in the document.
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

/// Appends what the escape at the front of `text` means; returns what follows it.
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

/// How many bytes at the front of `text` stand for themselves inside a JSON string, and all of
/// them or-ed together, which tells whether any is not ASCII.
///
/// Stops at a quote, a backslash, a control character, or the end.
#[inline]
pub(crate) fn plain_prefix(text: &[u8]) -> (usize, u8) {
    const SHORT: usize = 24;
    let mut seen = 0;
    for (count, &byte) in text.iter().take(SHORT).enumerate() {
        if is_special(byte) {
            return (count, seen);
        }
        seen |= byte;
    }
    if text.len() <= SHORT {
        return (text.len(), seen);
    }
    let (count, seen_later) = plain_prefix_long(&text[SHORT..]);
    (SHORT + count, seen | seen_later)
}

/// Looks at 32 bytes a step, in a form that compilers turn into vector code.
fn plain_prefix_long(text: &[u8]) -> (usize, u8) {
    let (mut count, mut seen) = (0, 0);
    let (chunks, _) = text.as_chunks::<32>();
    for chunk in chunks {
        let (mut special, mut or) = (false, 0);
        for &byte in chunk {
            special |= (byte < 0x20) | (byte == b'"') | (byte == b'\\');
            or |= byte;
        }
        if special {
            break;
        }
        seen |= or;
        count += chunk.len();
    }
    for &byte in &text[count..] {
        if is_special(byte) {
            break;
        }
        seen |= byte;
        count += 1;
    }
    (count, seen)
}

#[inline]
fn is_special(byte: u8) -> bool {
    const SPECIAL: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte < 0x20 {
            table[byte] = true;
            byte += 1;
        }
        table[b'"' as usize] = true;
        table[b'\\' as usize] = true;
        table
    };
    SPECIAL[byte as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_escape_means_its_character() {
        let text = Text::new(br#"a\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00z"#, true);
        assert_eq!(
            text.unescaped().as_ref(),
            "a\"\\/\u{8}\u{c}\n\r\tA\u{e9}\u{20ac}😀z".as_bytes()
        );
    }

    #[test]
    fn the_plain_prefix_ends_at_each_special_byte_at_each_offset() {
        for len in [0, 1, 23, 24, 25, 31, 56, 57, 100] {
            let plain = vec![b'x'; len];
            assert_eq!(plain_prefix(&plain), (len, if len == 0 { 0 } else { b'x' }));
            for at in 0..len {
                for special in [b'"', b'\\', 0, 0x1f] {
                    let mut text = plain.clone();
                    text[at] = special;
                    assert_eq!(plain_prefix(&text).0, at);
                }
            }
        }
        assert_eq!(plain_prefix("é".as_bytes()).1 & 0x80, 0x80);
    }
}
