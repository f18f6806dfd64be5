//! Appends JSON values to a buffer.

use super::text::{HIGH_BITS, plain_prefix};

/// Appends an integer. A short one is built in a register and appended as eight bytes, whatever its
/// length: a copy of variable length costs more than the rest.
#[inline(always)]
pub fn write_i64(out: &mut Vec<u8>, value: i64) {
    let (digits, len) = match value as u64 {
        value @ 0..10 => (value, 1),
        value @ 10..100 => (((value % 10) << 8) | (value / 10), 2),
        value @ 100..1000 => (((value % 10) << 16) | ((value / 10 % 10) << 8) | (value / 100), 3),
        _ => return write_long_i64(out, value),
    };
    let start = out.len();
    out.extend_from_slice(&(digits as u32 | u32::from_le_bytes(*b"0000")).to_le_bytes());
    out.truncate(start + len);
}

#[inline(never)]
fn write_long_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Up to this length, in bytes, a text is copied in a loop instead of by a call.
const SHORT: usize = 6;

/// Appends text that is short in most calls.
#[inline(always)]
pub(crate) fn extend_short(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.len() > SHORT {
        return out.extend_from_slice(bytes);
    }
    for &byte in bytes {
        out.push(byte);
    }
}

/// Appends the shortest text that reads back as the same double. JSON has no NaN and no infinity:
/// then nothing is appended and the answer is `false`.
#[inline]
#[must_use]
pub fn write_f64(out: &mut Vec<u8>, value: f64) -> bool {
    if !value.is_finite() {
        return false;
    }
    out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    true
}

/// As [`write_f64`], for a 32-bit float: its text may be shorter.
#[inline]
#[must_use]
pub fn write_f32(out: &mut Vec<u8>, value: f32) -> bool {
    if !value.is_finite() {
        return false;
    }
    out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    true
}

/// Whether a text is ASCII that stands for itself within quotes.
#[inline]
pub fn is_plain_ascii(text: &[u8]) -> bool {
    let (plain, seen) = plain_prefix(text);
    plain == text.len() && seen & HIGH_BITS == 0
}

/// Appends a string with its quotes. Escapes only the characters that JSON requires.
#[inline]
pub fn write_string(out: &mut Vec<u8>, value: &str) {
    out.push(b'"');
    let mut rest = value.as_bytes();
    loop {
        let (plain, special) = rest.split_at(plain_prefix(rest).0);
        out.extend_from_slice(plain);
        let Some((&byte, later)) = special.split_first() else { break };
        write_escape(out, byte);
        rest = later;
    }
    out.push(b'"');
}

#[cold]
fn write_escape(out: &mut Vec<u8>, byte: u8) {
    let letter = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]);
            return out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 5_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn strings_read_back_by_serde_json(value in ".{0,80}|[\u{0}-\u{7f}]{0,80}") {
            let mut out = Vec::new();
            write_string(&mut out, &value);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), value);
        }

        #[test]
        fn doubles_read_back_by_serde_json(value in any::<f64>()) {
            let mut out = Vec::new();
            let finite = write_f64(&mut out, value);
            prop_assert_eq!(finite, value.is_finite());
            if finite {
                let read = serde_json::from_slice::<f64>(&out).unwrap();
                prop_assert_eq!(read.to_bits(), value.to_bits());
            }
        }

        #[test]
        fn integers_read_back_by_serde_json(value in any::<i64>(), shift in 0..64u32) {
            // Shifted, so that there are as many short ones as long ones.
            let value = value >> shift;
            let mut out = Vec::new();
            write_i64(&mut out, value);
            prop_assert_eq!(serde_json::from_slice::<i64>(&out).unwrap(), value);
        }
    }
}
