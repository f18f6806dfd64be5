//! The items of arrays: in the order that other protocols have, as JSON, and from JSON.

use std::borrow::Cow;
use std::str::FromStr;

use ucall_buffer::Bytes;

use crate::arrays::{DType, Kind, Tensor};
use crate::json::{Reader, ValueKind, write_f64, write_i64};

/// The items of an array, the last index changing fastest, the lowest byte of an item first.
pub(crate) fn row_major<'a>(tensor: &Tensor, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    let item_bytes = usize::from(tensor.dtype.item_bytes).max(1);
    let sides = tensor.shape.iter().filter(|&&side| side != 1).count();
    let mut items = Cow::Borrowed(bytes);
    if tensor.is_fortran && sides > 1 && !bytes.is_empty() {
        items = Cow::Owned(transposed(&tensor.shape, item_bytes, bytes));
    }
    if tensor.dtype.is_big_endian && item_bytes > 1 {
        let halves = if tensor.dtype.kind == Kind::Complex { 2 } else { 1 };
        for number in items.to_mut().chunks_exact_mut(item_bytes / halves) {
            number.reverse();
        }
    }
    items
}

/// [`row_major`] items, which lie where they were if they have that order already.
pub(crate) fn row_major_bytes(tensor: &Tensor, bytes: &Bytes) -> Bytes {
    match row_major(tensor, bytes) {
        Cow::Borrowed(_) => bytes.clone(),
        Cow::Owned(items) => items.into(),
    }
}

/// The items of an array in Fortran order in row-major order.
fn transposed(shape: &[usize], item_bytes: usize, bytes: &[u8]) -> Vec<u8> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = item_bytes;
    for &side in shape {
        strides.push(stride);
        stride = stride.saturating_mul(side);
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = vec![0; shape.len()];
    let mut position = 0_usize;
    while out.len() < bytes.len() {
        let Some(item) = bytes.get(position..position + item_bytes) else { break };
        out.extend_from_slice(item);
        for ((at, &side), &stride) in index.iter_mut().zip(shape).zip(&strides).rev() {
            *at += 1;
            position += stride;
            if *at < side {
                break;
            }
            position -= side * stride;
            *at = 0;
        }
    }
    out
}

/// Appends the items of an array as nested lists, or a flat one; a scalar as its value. `items` are
/// [`row_major`]. Returns `false` if JSON does not have one of them: an infinity, or no number.
#[must_use]
pub(crate) fn write_lists(
    out: &mut Vec<u8>,
    dtype: DType,
    shape: &[usize],
    items: &[u8],
    len_max: usize,
) -> bool {
    let Some((&side, inner)) = shape.split_first() else { return write_item(out, dtype, items) };
    out.push(b'[');
    let inner_bytes = items.len().checked_div(side).unwrap_or_default();
    for at in 0..side {
        if at > 0 {
            out.push(b',');
        }
        let range = at * inner_bytes..(at + 1) * inner_bytes;
        let inner_items = items.get(range).unwrap_or_default();
        if out.len() > len_max || !write_lists(out, dtype, inner, inner_items, len_max) {
            return false;
        }
    }
    out.push(b']');
    true
}

/// Appends an item, whose lowest byte is the first. Returns `false` if JSON does not have it.
#[must_use]
pub(crate) fn write_item(out: &mut Vec<u8>, dtype: DType, item: &[u8]) -> bool {
    match (dtype.kind, item) {
        (Kind::Bool, &[value]) => {
            out.extend_from_slice(if value == 0 { b"false" } else { b"true" });
            true
        }
        (Kind::Int, _) => {
            write_i64(out, signed(item));
            true
        }
        (Kind::UInt, _) => {
            out.extend_from_slice(itoa::Buffer::new().format(unsigned(item)).as_bytes());
            true
        }
        (Kind::Float, &[a, b, c, d]) => write_f32(out, f32::from_le_bytes([a, b, c, d])),
        (Kind::Float, &[low, high]) => write_f32(out, half(u16::from_le_bytes([low, high]))),
        (Kind::BFloat, &[low, high]) => write_f32(out, f32::from_le_bytes([0, 0, low, high])),
        (Kind::Float, _) => match <[u8; 8]>::try_from(item) {
            Ok(bytes) => write_f64(out, f64::from_le_bytes(bytes)),
            Err(_) => false,
        },
        _ => false,
    }
}

/// Appends the shortest text that reads back as the same 32-bit float.
fn write_f32(out: &mut Vec<u8>, value: f32) -> bool {
    if value.is_finite() {
        out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    }
    value.is_finite()
}

/// The value of a 16-bit float.
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (bits >> 10 & 0x1f, f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2_f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1024.0 + fraction) * 2_f32.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

fn unsigned(item: &[u8]) -> u64 {
    item.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn signed(item: &[u8]) -> i64 {
    let unused = 64 - 8 * item.len().clamp(1, 8) as u32;
    (unsigned(item) << unused) as i64 >> unused
}

/// The items of a list, in nested lists or not.
pub(crate) struct Leaves<'a> {
    reader: Reader<'a>,
    depth: usize,
}

impl<'a> Leaves<'a> {
    /// Of a valid value; `None` if it is no array.
    pub(crate) fn of(value: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        if reader.kind() != ValueKind::Array {
            return None;
        }
        reader.enter();
        Some(Self { reader, depth: 1 })
    }
}

impl<'a> Iterator for Leaves<'a> {
    /// The text of an item.
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        while self.depth > 0 {
            if !self.reader.next_item() {
                self.depth -= 1;
            } else if self.reader.kind() == ValueKind::Array {
                self.reader.enter();
                self.depth += 1;
            } else {
                return Some(self.reader.skip());
            }
        }
        None
    }
}

/// Appends the item that a JSON value is. Returns `false` if the dtype does not have it.
#[must_use]
pub(crate) fn push_item(out: &mut Vec<u8>, dtype: DType, value: &[u8]) -> bool {
    let mut reader = Reader::new(value);
    match (dtype.kind, reader.kind()) {
        (Kind::Bool, ValueKind::Bool) => {
            out.push(u8::from(reader.boolean()));
            true
        }
        (Kind::Int | Kind::UInt | Kind::Float, ValueKind::Number) => {
            let number = reader.number();
            let Ok(text) = std::str::from_utf8(number.text) else { return false };
            match (dtype.kind, dtype.item_bytes) {
                (Kind::Float, 4) => push_parsed(out, text, f32::is_finite, f32::to_le_bytes),
                (Kind::Float, 8) => push_parsed(out, text, f64::is_finite, f64::to_le_bytes),
                (Kind::Int, bytes) => push_integer::<i64>(out, text, bytes, signed),
                (Kind::UInt, bytes) => push_integer::<u64>(out, text, bytes, unsigned),
                _ => false,
            }
        }
        _ => false,
    }
}

fn push_parsed<T: FromStr + Copy, const N: usize>(
    out: &mut Vec<u8>,
    text: &str,
    is_valid: fn(T) -> bool,
    to_bytes: fn(T) -> [u8; N],
) -> bool {
    let Some(value) = text.parse().ok().filter(|&value| is_valid(value)) else { return false };
    out.extend_from_slice(&to_bytes(value));
    true
}

trait Integer: FromStr + Copy + PartialEq {
    fn bytes(self) -> [u8; 8];
}

impl Integer for i64 {
    fn bytes(self) -> [u8; 8] {
        self.to_le_bytes()
    }
}

impl Integer for u64 {
    fn bytes(self) -> [u8; 8] {
        self.to_le_bytes()
    }
}

/// Appends the lower bytes of an integer, if they have its value.
fn push_integer<T: Integer>(
    out: &mut Vec<u8>,
    text: &str,
    item_bytes: u8,
    read: fn(&[u8]) -> T,
) -> bool {
    let Ok(value) = text.parse::<T>() else { return false };
    let bytes = value.bytes();
    let Some(item) = bytes.get(..usize::from(item_bytes)) else { return false };
    out.extend_from_slice(item);
    read(item) == value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dtype(kind: Kind, item_bytes: u8) -> DType {
        DType { kind, item_bytes, is_big_endian: false }
    }

    fn tensor(dtype: DType, shape: &[usize], is_fortran: bool) -> Tensor {
        Tensor { dtype, shape: shape.to_vec(), is_fortran }
    }

    fn lists(dtype: DType, shape: &[usize], items: &[u8]) -> Option<String> {
        let mut out = Vec::new();
        let is_written = write_lists(&mut out, dtype, shape, items, usize::MAX);
        is_written.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn items_of_any_order_become_row_major() {
        let int = dtype(Kind::Int, 2);
        // [[1, 2, 3], [4, 5, 6]]
        let columns: Vec<u8> =
            [1_i16, 4, 2, 5, 3, 6].into_iter().flat_map(i16::to_le_bytes).collect();
        let rows = row_major(&tensor(int, &[2, 3], true), &columns);
        assert_eq!(lists(int, &[2, 3], &rows).as_deref(), Some("[[1,2,3],[4,5,6]]"));
        let big = DType { is_big_endian: true, ..int };
        let items: Vec<u8> = [1_i16, -2].into_iter().flat_map(i16::to_be_bytes).collect();
        assert_eq!(row_major(&tensor(big, &[2], false), &items), [1, 0, 0xfe, 0xff].as_slice());
        let complex = DType { kind: Kind::Complex, item_bytes: 8, is_big_endian: true };
        let swapped = row_major(&tensor(complex, &[], false), &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(swapped, [4, 3, 2, 1, 8, 7, 6, 5].as_slice());
        assert!(matches!(row_major(&tensor(int, &[6], true), &columns), Cow::Borrowed(_)));
        assert!(matches!(row_major(&tensor(int, &[0, 3], true), &[]), Cow::Borrowed(_)));
    }

    #[test]
    fn lists_have_the_items_and_the_shape() {
        let bytes = [1_f32, -2.5].map(f32::to_le_bytes).concat();
        let float = dtype(Kind::Float, 4);
        assert_eq!(lists(float, &[2], &bytes).as_deref(), Some("[1.0,-2.5]"));
        assert_eq!(lists(float, &[1, 2, 1], &bytes).as_deref(), Some("[[[1.0],[-2.5]]]"));
        assert_eq!(lists(float, &[2, 0], &[]).as_deref(), Some("[[],[]]"));
        assert_eq!(lists(float, &[0, 2], &[]).as_deref(), Some("[]"));
        assert_eq!(lists(dtype(Kind::Bool, 1), &[2], &[0, 1]).as_deref(), Some("[false,true]"));
        let most = u64::MAX.to_le_bytes();
        assert_eq!(
            lists(dtype(Kind::UInt, 8), &[], &most).as_deref(),
            Some("18446744073709551615")
        );
        assert_eq!(lists(dtype(Kind::Int, 8), &[], &most).as_deref(), Some("-1"));
        let infinite = f32::INFINITY.to_le_bytes();
        assert_eq!(lists(float, &[], &infinite), None);
        assert_eq!(lists(dtype(Kind::Complex, 4), &[], &most[..4]), None);
        let mut out = Vec::new();
        assert!(!write_lists(&mut out, dtype(Kind::Bool, 1), &[100], &[0; 100], 20));
        assert!(out.len() < 40);
    }

    #[test]
    fn short_floats_have_their_values() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x3555, 0.333_251_95),
        ] {
            assert!((half(bits) - value).abs() <= value.abs() * 1e-7, "{bits:x}");
        }
        assert!(half(0x7c00) == f32::INFINITY && half(0xfc00) == f32::NEG_INFINITY);
        assert!(half(0x7e00).is_nan() && half(0x8000).is_sign_negative());
        assert_eq!(lists(dtype(Kind::BFloat, 2), &[], &[0xc0, 0x3f]).as_deref(), Some("1.5"));
    }

    #[test]
    fn values_fit_their_dtype_or_are_refused() {
        let fits = |kind, bytes, text: &str| {
            let mut out = Vec::new();
            push_item(&mut out, dtype(kind, bytes), text.as_bytes()).then_some(out)
        };
        assert_eq!(fits(Kind::Int, 1, "-128"), Some(vec![0x80]));
        assert_eq!(fits(Kind::UInt, 2, "65535"), Some(vec![0xff, 0xff]));
        assert_eq!(fits(Kind::Bool, 1, "true"), Some(vec![1]));
        assert_eq!(fits(Kind::Float, 4, "1"), Some(1_f32.to_le_bytes().to_vec()));
        for (kind, bytes, text) in [
            (Kind::Int, 1, "128"),
            (Kind::Int, 8, "9223372036854775808"),
            (Kind::Int, 4, "1.0"),
            (Kind::UInt, 1, "-1"),
            (Kind::UInt, 1, "256"),
            (Kind::Bool, 1, "1"),
            (Kind::Float, 4, "1e39"),
            (Kind::Float, 8, "1e309"),
            (Kind::Float, 8, "true"),
            (Kind::Float, 8, "\"1\""),
            (Kind::Float, 2, "1"),
            (Kind::BFloat, 2, "1"),
        ] {
            assert_eq!(fits(kind, bytes, text), None, "{kind:?} {bytes} {text}");
        }
    }

    #[test]
    fn leaves_are_those_of_all_lists() {
        let text = br#"[1, [2,[ ],[[ "a]" ]]],{"b":[3]} ]"#;
        let leaves: Vec<_> = Leaves::of(text).unwrap().collect();
        assert_eq!(leaves, [&b"1"[..], b"2", b"\"a]\"", br#"{"b":[3]}"#]);
        assert!(Leaves::of(b"1").is_none());
    }

    proptest! {
        #[test]
        fn an_item_reads_back_from_its_text(bits: u64, kind in 0..3_usize, size in 0..4_u32) {
            let kind = [Kind::Int, Kind::UInt, Kind::Float][kind];
            let item_bytes = 1_u8 << if kind == Kind::Float { 2 + size % 2 } else { size };
            let dtype = dtype(kind, item_bytes);
            let item = &bits.to_le_bytes()[..usize::from(item_bytes)];
            let mut text = Vec::new();
            if write_item(&mut text, dtype, item) {
                let mut read = Vec::new();
                prop_assert!(push_item(&mut read, dtype, &text));
                prop_assert_eq!(&read[..], item);
            }
        }

        #[test]
        fn fortran_order_is_undone(shape in prop::collection::vec(0..4_usize, 0..5)) {
            let count: usize = shape.iter().product();
            let columns: Vec<u8> = (0..count as u32).flat_map(u32::to_le_bytes).collect();
            let tensor = tensor(dtype(Kind::UInt, 4), &shape, true);
            let rows = row_major(&tensor, &columns).into_owned();
            // The same by the formula of each position.
            for at in 0..count {
                let (mut rest, mut position, mut stride) = (at, 0, 1);
                let mut index = vec![0; shape.len()];
                for (dimension, &side) in shape.iter().enumerate().rev() {
                    index[dimension] = rest % side;
                    rest /= side;
                }
                for (index, side) in index.iter().zip(&shape) {
                    position += index * stride;
                    stride *= side;
                }
                prop_assert_eq!(&rows[4 * at..4 * at + 4], (position as u32).to_le_bytes());
            }
        }
    }
}
