//! Byte classes of RFC 9110 and the scans over them.
//!
//! A table of 256 entries is indexed by a `u8`, which cannot be out of its bounds. Names and field
//! values are scanned eight bytes at a time inside a `u64`, because they are most of a head and are
//! too short to earn the set-up of a vector search.

/// A range of bytes in the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    #[inline]
    pub(super) fn of(self, input: &[u8]) -> &[u8] {
        input.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn shifted(self, by: usize) -> Self {
        Self { start: self.start + by, end: self.end + by }
    }
}

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const HOST: u8 = 4;

const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let value = byte as u8;
        if value.is_ascii_alphanumeric() {
            table[byte] = TOKEN | HOST;
        }
        // A fragment is no part of a target (RFC 9112, section 3.2).
        if value.is_ascii_graphic() && value != b'#' {
            table[byte] |= TARGET;
        }
        byte += 1;
    }
    add(&mut table, b"!#$%&'*+-.^_`|~", TOKEN);
    // reg-name of RFC 3986, section 3.2.2: unreserved, pct-encoded, sub-delims.
    add(&mut table, b"-._~%!$&'()*+,;=", HOST);
    table
}

const fn add(table: &mut [u8; 256], bytes: &[u8], class: u8) {
    let mut at = 0;
    while at < bytes.len() {
        table[bytes[at] as usize] |= class;
        at += 1;
    }
}

#[inline]
fn has_class(byte: u8, class: u8) -> bool {
    CLASSES[byte as usize] & class != 0
}

/// Whether `byte` is allowed in a method or a header name (`tchar`, RFC 9110, section 5.6.2).
#[inline]
pub(super) fn is_token(byte: u8) -> bool {
    has_class(byte, TOKEN)
}

/// Whether `byte` is allowed in a registered host name.
#[inline]
pub(super) fn is_host(byte: u8) -> bool {
    has_class(byte, HOST)
}

/// Whether `byte` is allowed in a registered host name and is no percent sign.
#[inline]
pub(super) fn is_plain_host(byte: u8) -> bool {
    byte != b'%' && is_host(byte)
}

/// Whether `byte` is allowed in a request target: visible ASCII, without the `#` of a fragment.
#[inline]
pub(super) fn is_target(byte: u8) -> bool {
    has_class(byte, TARGET)
}

/// Whether `byte` is allowed in a field value: all but the control characters, HTAB excepted.
#[inline]
pub(super) fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// How many bytes at the start of `bytes` are token bytes.
#[inline]
pub(super) fn token_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let others = uncommon_in_names(u64::from_le_bytes(*word));
        if others == 0 {
            at += 8;
            continue;
        }
        at += others.trailing_zeros() as usize / 8;
        if !bytes.get(at).is_some_and(|&byte| is_token(byte)) {
            return at;
        }
        at += 1;
    }
    let tail = bytes.get(at..).unwrap_or_default();
    at + tail.iter().position(|&byte| !is_token(byte)).unwrap_or(tail.len())
}

/// The number of bytes at the start of `bytes` that are allowed in a field value.
#[inline]
pub(super) fn text_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let controls = control_bits(u64::from_le_bytes(*word));
        if controls == 0 {
            at += 8;
            continue;
        }
        at += controls.trailing_zeros() as usize / 8;
        if bytes.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
    let tail = bytes.get(at..).unwrap_or_default();
    at + tail.iter().position(|&byte| !is_text(byte)).unwrap_or(tail.len())
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// The top bit of each byte that is neither a letter nor a hyphen. No sum crosses its byte.
#[inline]
fn uncommon_in_names(word: u64) -> u64 {
    let lower = (word | (ONES * 0x20)) & !TOPS;
    let (from_a, after_z) = (lower + ONES * 0x1f, lower + ONES * 0x05);
    let other_than_hyphen = ((word ^ (ONES * 0x2d)) & !TOPS) + ONES * 0x7f;
    (!(from_a & !after_z) & other_than_hyphen | word) & TOPS
}

/// The top bit of each byte that is below 0x20 or is 0x7f. Bits above the lowest one set may be
/// wrong (a borrow crosses bytes), so only the lowest one counts.
#[inline]
fn control_bits(word: u64) -> u64 {
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    let delete = word ^ (ONES * 0x7f);
    (below_space | (delete.wrapping_sub(ONES) & !delete)) & TOPS
}

/// `bytes` without spaces and tabs at both ends (`OWS`, RFC 9110, section 5.6.3).
#[inline]
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let mut bytes = trim_start(bytes);
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// `bytes` without spaces and tabs at the start.
#[inline]
pub(super) fn trim_start(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list, trimmed; empty ones included.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// `text` as a decimal number: digits only, at least one, no overflow.
#[inline]
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Whether `text` starts with `prefix`, in any case.
pub(super) fn starts_with_ignoring_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use super::{is_text, is_token, text_length, token_length};

    /// The scans word by word stop where a scan byte by byte does.
    #[test]
    fn scans_stop_at_the_first_other_byte() {
        for at in 0..80 {
            for byte in 0..=u8::MAX {
                for fill in [b'a', b'Z', b'-', b'7', b'_'] {
                    let mut bytes = [fill; 80];
                    bytes[at] = byte;
                    let position = |is_allowed: fn(u8) -> bool| {
                        bytes.iter().position(|&byte| !is_allowed(byte)).unwrap_or(bytes.len())
                    };
                    assert_eq!(token_length(&bytes), position(is_token), "{byte} at {at}");
                    assert_eq!(text_length(&bytes), position(is_text), "{byte} at {at}");
                }
            }
        }
    }
}
