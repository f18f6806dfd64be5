//! Lists of numbers in JSON as arrays.
//!
//! The text is read twice: first for its shape and for what its items are, by which the dtype is
//! chosen and the array is allocated; then for the items, which are written where they belong. Both
//! passes are loops without recursion, whatever the lists nest like.

use std::fmt;

use super::floats::{bfloat_bits, half_bits};
use super::{DType, Kind};
use crate::json::{Number, Reader};

/// Nested lists in validated JSON text.
#[derive(Clone, Debug)]
pub struct NestedLists<'a> {
    text: &'a [u8],
    /// Of an array that the lists would be; `None` if lists of one level differ in length, or have
    /// items beside lists.
    pub shape: Option<Vec<usize>>,
    /// Whether an item is `true` or `false`.
    pub has_bools: bool,
    /// Whether an item is a number without fraction and exponent.
    pub has_ints: bool,
    /// Whether an item is another number.
    pub has_floats: bool,
    /// An item that is neither, by the name of its class in Python.
    pub other: Option<&'static str>,
}

/// Why an item does not fit its dtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ItemFault {
    /// An integer exceeds the largest double.
    IntTooLarge,
    /// A number with a fraction or an exponent does.
    FloatTooLarge,
    /// Integers fit neither the signed nor the unsigned integers of 64 bits.
    Beyond64Bits,
    /// A number is out of this dtype's range.
    OutOfRange(DType),
    /// The items are no numbers, or of a dtype that [`NestedLists::write_items`] does not write.
    Unsupported,
}

impl fmt::Display for ItemFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IntTooLarge => out.write_str("int too large to convert to float"),
            Self::FloatTooLarge => out.write_str("a number is out of the range of float64"),
            Self::Beyond64Bits => out.write_str("a number is out of the range of 64-bit integers"),
            Self::OutOfRange(dtype) => {
                write!(out, "a number is out of the range of {}", dtype.name())
            }
            Self::Unsupported => out.write_str("items of another type than numbers"),
        }
    }
}

impl std::error::Error for ItemFault {}

/// The bounds of integers.
#[derive(Clone, Copy, Default, Debug)]
struct Bounds {
    max: u64,
    /// Without its sign.
    min: u64,
    exceeds_64_bits: bool,
}

impl<'a> NestedLists<'a> {
    /// Reads the outline of the next value, which is a list, and consumes it.
    pub fn outline(reader: &mut Reader<'a>) -> Self {
        let mut lists = Self {
            text: reader.rest(),
            shape: None,
            has_bools: false,
            has_ints: false,
            has_floats: false,
            other: None,
        };
        let (shape, len) = lists.read_outline();
        (lists.text, lists.shape) = (lists.text.get(..len).unwrap_or_default(), shape);
        reader.advance(len);
        lists
    }

    /// Returns the shape and the length of the text.
    fn read_outline(&mut self) -> (Option<Vec<usize>>, usize) {
        // The items so far of each list that is open, and the lengths of those that were closed.
        let (mut open, mut shape): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
        let (mut leaf_depth, mut is_ragged) = (None, false);
        let (text, mut position) = (self.text, 0);
        while let Some(&byte) = text.get(position) {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | b',' => {
                    position += 1;
                    continue;
                }
                b']' => {
                    let len = open.pop().unwrap_or_default();
                    if let Some(side) = shape.get_mut(open.len()) {
                        is_ragged |= *side.get_or_insert(len) != len;
                    }
                    position += 1;
                    if open.is_empty() {
                        break;
                    }
                    continue;
                }
                _ => {}
            }
            if let Some(items) = open.last_mut() {
                *items += 1;
            }
            if byte == b'[' {
                if shape.len() == open.len() {
                    shape.push(None);
                }
                open.push(0);
                position += 1;
                continue;
            }
            is_ragged |= *leaf_depth.get_or_insert(open.len()) != open.len();
            position += self.leaf(byte, text.get(position..).unwrap_or_default());
        }
        is_ragged |= leaf_depth.is_some_and(|depth| depth != shape.len());
        let shape = shape.into_iter().map(Option::unwrap_or_default).collect();
        ((!is_ragged).then_some(shape), position)
    }

    /// Notes an item that is no list. Returns its length, at least 1.
    #[inline]
    fn leaf(&mut self, byte: u8, rest: &[u8]) -> usize {
        if byte.is_ascii_digit() || byte == b'-' {
            let is_integer = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-');
            let integer = rest.iter().take_while(is_integer).count();
            if !matches!(rest.get(integer), Some(b'.' | b'e' | b'E')) {
                self.has_ints = true;
                return integer.max(1);
            }
            self.has_floats = true;
            let is_number =
                |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
            return rest.iter().take_while(is_number).count().max(1);
        }
        match byte {
            b't' | b'f' => self.has_bools = true,
            b'"' => self.other = Some("str"),
            b'{' => self.other = Some("dict"),
            _ => self.other = Some("None"),
        }
        Reader::new(rest).skip().len().max(1)
    }

    /// The 64-bit integers that all items fit, which are integers: signed ones if possible.
    ///
    /// # Errors
    /// They fit neither.
    pub fn integer_dtype(&self) -> Result<DType, ItemFault> {
        let bounds = self.bounds();
        match bounds.max > i64::MAX as u64 {
            _ if bounds.exceeds_64_bits => Err(ItemFault::Beyond64Bits),
            true => Ok(DType::native(Kind::UInt, 8)),
            false => Ok(DType::native(Kind::Int, 8)),
        }
    }

    fn bounds(&self) -> Bounds {
        let mut bounds = Bounds::default();
        self.for_each(|number| {
            let (digits, is_negative) = match number.text {
                [b'-', digits @ ..] => (digits, true),
                digits => (digits, false),
            };
            let value = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            match (value, is_negative) {
                (Some(value), false) => bounds.max = bounds.max.max(value),
                (Some(value), true) => bounds.min = bounds.min.max(value),
                (None, _) => bounds.exceeds_64_bits = true,
            }
            Ok(())
        })
        .unwrap_or_default();
        let is_signed = bounds.min > 0;
        bounds.exceeds_64_bits |= bounds.min > 1 << 63;
        bounds.exceeds_64_bits |= is_signed && bounds.max > i64::MAX as u64;
        bounds
    }

    /// Writes all items as those of `dtype`, which is of the byte order of this machine: integers
    /// as integers and floats, other numbers as floats and complex numbers, bools as bools.
    ///
    /// # Errors
    /// An item is out of range, or no such dtype is written.
    pub fn write_items(&self, dtype: DType, target: &mut [u8]) -> Result<(), ItemFault> {
        let out_of_range = ItemFault::OutOfRange(dtype);
        let checked = |value: f64, rounded_is_finite: bool| match rounded_is_finite {
            true => Ok(value),
            false => Err(out_of_range),
        };
        match (dtype.kind, dtype.item_bytes) {
            _ if !dtype.is_native() || self.other.is_some() => Err(ItemFault::Unsupported),
            (Kind::Bool, 1) => self.write_bools(target),
            (Kind::Int | Kind::UInt, 1 | 2 | 4 | 8) if !self.has_floats => {
                self.write_integers(dtype, target)
            }
            (Kind::Float, 8) => self.write_each(target, |number| Ok(double(number)?.to_ne_bytes())),
            (Kind::Float, 4) => self.write_each(target, |number| {
                let value = double(number)?;
                let rounded = value as f32;
                checked(value, rounded.is_finite()).map(|_| rounded.to_ne_bytes())
            }),
            (Kind::Float, 2) => self.write_each(target, |number| {
                let value = double(number)?;
                let rounded = half_bits(value);
                checked(value, rounded & 0x7c00 != 0x7c00).map(|_| rounded.to_ne_bytes())
            }),
            (Kind::BFloat, 2) => self.write_each(target, |number| {
                let value = double(number)?;
                let rounded = bfloat_bits(value as f32);
                checked(value, rounded & 0x7f80 != 0x7f80).map(|_| rounded.to_ne_bytes())
            }),
            (Kind::Complex, 16) => self.write_each::<16>(target, |number| {
                let mut item = [0; 16];
                item[..8].copy_from_slice(&double(number)?.to_ne_bytes());
                Ok(item)
            }),
            (Kind::Complex, 8) => self.write_each::<8>(target, |number| {
                let value = double(number)?;
                let rounded = value as f32;
                checked(value, rounded.is_finite())?;
                let mut item = [0; 8];
                item[..4].copy_from_slice(&rounded.to_ne_bytes());
                Ok(item)
            }),
            _ => Err(ItemFault::Unsupported),
        }
    }

    fn write_integers(&self, dtype: DType, target: &mut [u8]) -> Result<(), ItemFault> {
        let bounds = self.bounds();
        if bounds.exceeds_64_bits {
            return Err(ItemFault::Beyond64Bits);
        }
        let bits = u32::from(dtype.item_bytes) * 8;
        let (max, min) = match dtype.kind {
            Kind::Int => (u64::MAX >> (65 - bits), 1 << (bits - 1)),
            _ => (u64::MAX >> (64 - bits), 0),
        };
        if bounds.max > max || bounds.min > min {
            return Err(ItemFault::OutOfRange(dtype));
        }
        let value = |number: Number<'_>| match number.as_i64() {
            Some(value) => value as u64,
            None => {
                std::str::from_utf8(number.text).ok().and_then(|it| it.parse().ok()).unwrap_or(0)
            }
        };
        match dtype.item_bytes {
            1 => self.write_each(target, |number| Ok((value(number) as u8).to_ne_bytes())),
            2 => self.write_each(target, |number| Ok((value(number) as u16).to_ne_bytes())),
            4 => self.write_each(target, |number| Ok((value(number) as u32).to_ne_bytes())),
            _ => self.write_each(target, |number| Ok(value(number).to_ne_bytes())),
        }
    }

    fn write_bools(&self, target: &mut [u8]) -> Result<(), ItemFault> {
        if self.has_ints || self.has_floats {
            return Err(ItemFault::Unsupported);
        }
        let bools = self.text.iter().filter(|byte| matches!(byte, b't' | b'f'));
        // `false` has no t, and `true` no f.
        for (slot, byte) in target.iter_mut().zip(bools) {
            *slot = u8::from(*byte == b't');
        }
        Ok(())
    }

    /// Writes an item for each number.
    #[inline(always)]
    fn write_each<const BYTES: usize>(
        &self,
        target: &mut [u8],
        item: impl Fn(Number<'a>) -> Result<[u8; BYTES], ItemFault>,
    ) -> Result<(), ItemFault> {
        let mut slots = target.chunks_exact_mut(BYTES);
        self.for_each(|number| {
            let bytes = item(number)?;
            if let Some(slot) = slots.next() {
                slot.copy_from_slice(&bytes);
            }
            Ok(())
        })
    }

    /// Calls `take` with each number, in order. The lists have no other items.
    #[inline(always)]
    fn for_each(
        &self,
        mut take: impl FnMut(Number<'a>) -> Result<(), ItemFault>,
    ) -> Result<(), ItemFault> {
        let (text, mut position) = (self.text, 0);
        while let Some(&byte) = text.get(position) {
            if !byte.is_ascii_digit() && byte != b'-' {
                position += 1;
                continue;
            }
            let number = Number::at_start(text.get(position..).unwrap_or_default());
            position += number.text.len().max(1);
            take(number)?;
        }
        Ok(())
    }
}

#[inline]
fn double(number: Number<'_>) -> Result<f64, ItemFault> {
    let value = number.as_f64();
    match (value.is_finite(), number.is_integer) {
        (true, _) => Ok(value),
        (false, true) => Err(ItemFault::IntTooLarge),
        (false, false) => Err(ItemFault::FloatTooLarge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> NestedLists<'_> {
        crate::json::validate(text.as_bytes(), 128).unwrap();
        let mut reader = Reader::new(text.as_bytes());
        let lists = NestedLists::outline(&mut reader);
        assert!(reader.skip().is_empty());
        lists
    }

    fn items(text: &str, descr: &str) -> Result<Vec<u8>, ItemFault> {
        let (lists, dtype) = (outline(text), DType::of_descr(descr).unwrap());
        let count: usize = lists.shape.clone().unwrap().iter().product();
        let mut target = vec![0xEE; count * usize::from(dtype.item_bytes)];
        lists.write_items(dtype, &mut target).map(|()| target)
    }

    fn shape(text: &str) -> Option<Vec<usize>> {
        outline(text).shape
    }

    #[test]
    fn shapes_are_those_of_the_lists() {
        for (text, expected) in [
            ("[]", &[0][..]),
            ("[1]", &[1]),
            (" [ 1 , 2.5 , -3e4 ] ", &[3]),
            ("[[1,2],[3,4],[5,6]]", &[3, 2]),
            ("[[],[]]", &[2, 0]),
            ("[[[]]]", &[1, 1, 0]),
            ("[[[true],[false]]]", &[1, 2, 1]),
            ("[\"a]\",null,{\"b\":[1]}]", &[3]),
        ] {
            assert_eq!(shape(text).as_deref(), Some(expected), "{text}");
        }
        for ragged in [
            "[[1],[1,2]]",
            "[[1],2]",
            "[1,[2]]",
            "[[[1]],[2]]",
            "[[],[1]]",
            "[[],1]",
            "[1,[]]",
            "[[],[[]]]",
            "[[[]],[]]",
            "[[1,2],[3,[4]]]",
        ] {
            assert_eq!(shape(ragged), None, "{ragged}");
        }
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(shape(&deep), Some(vec![1; 100]));
    }

    #[test]
    fn items_are_told_apart() {
        for (text, expected) in [
            ("[]", (false, false, false, None)),
            ("[1,-0]", (false, true, false, None)),
            ("[1.5,[2e3],-1E-5]", (false, false, true, None)),
            ("[[true],false]", (true, false, false, None)),
            ("[1,2.0,true]", (true, true, true, None)),
            ("[\"1\"]", (false, false, false, Some("str"))),
            ("[{\"a\":1}]", (false, false, false, Some("dict"))),
            ("[[null]]", (false, false, false, Some("None"))),
        ] {
            let lists = outline(text);
            let found = (lists.has_bools, lists.has_ints, lists.has_floats, lists.other);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn items_are_written_by_their_dtype() {
        let doubles = [1.0, -2.5, 0.0, 3.0].map(f64::to_ne_bytes).concat();
        assert_eq!(items("[[1, -2.5e0], [0, 3]]", "f8"), Ok(doubles));
        assert_eq!(items("[1,2.5]", "f4"), Ok([1_f32, 2.5].map(f32::to_ne_bytes).concat()));
        assert_eq!(items("[1.5]", "f2"), Ok(0x3e00_u16.to_ne_bytes().to_vec()));
        assert_eq!(items("[1.5]", "bfloat16"), Ok(0x3fc0_u16.to_ne_bytes().to_vec()));
        assert_eq!(items("[1.5]", "c8"), Ok([1.5_f32, 0.0].map(f32::to_ne_bytes).concat()));
        assert_eq!(items("[2]", "c16"), Ok([2_f64, 0.0].map(f64::to_ne_bytes).concat()));
        assert_eq!(items("[true,false,true]", "b1"), Ok(vec![1, 0, 1]));
        assert_eq!(items("[-128,127]", "i1"), Ok(vec![0x80, 0x7f]));
        assert_eq!(items("[65535]", "u2"), Ok(vec![0xff, 0xff]));
        assert_eq!(items("[-2147483648]", "i4"), Ok(i32::MIN.to_ne_bytes().to_vec()));
        let ends = format!("[{},{}]", i64::MIN, i64::MAX);
        assert_eq!(items(&ends, "i8"), Ok([i64::MIN, i64::MAX].map(i64::to_ne_bytes).concat()));
        let max = format!("[{}]", u64::MAX);
        assert_eq!(items(&max, "u8"), Ok(vec![0xff; 8]));
        assert_eq!(items("[]", "f4"), Ok(vec![]));
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let out = |descr: &str| Err(ItemFault::OutOfRange(DType::of_descr(descr).unwrap()));
        for (text, descr) in [
            ("[-129]", "i1"),
            ("[128]", "i1"),
            ("[-1]", "u1"),
            ("[256]", "u1"),
            ("[-2147483649]", "i4"),
            ("[4294967296]", "u4"),
            ("[9223372036854775808]", "i8"),
            ("[-1]", "u8"),
            ("[9223372036854775808,1]", "u1"),
            ("[1e39]", "f4"),
            ("[65520]", "f2"),
            ("[3.4e38]", "bfloat16"),
            ("[-1e300]", "c8"),
        ] {
            assert_eq!(items(text, descr), out(descr), "{text}");
        }
        for text in ["[18446744073709551616]", "[9223372036854775808,-1]", "[-9223372036854775809]"]
        {
            for descr in ["i8", "u8", "i1"] {
                assert_eq!(items(text, descr), Err(ItemFault::Beyond64Bits), "{text}");
            }
            assert_eq!(outline(text).integer_dtype(), Err(ItemFault::Beyond64Bits), "{text}");
        }
        let digits = format!("[1{}]", "0".repeat(400));
        assert_eq!(items(&digits, "f8"), Err(ItemFault::IntTooLarge));
        assert_eq!(items("[1e400]", "f8"), Err(ItemFault::FloatTooLarge));
        for (text, descr) in [
            ("[1.0]", "i4"),
            ("[1,true]", "b1"),
            ("[1.5,true]", "b1"),
            ("[1]", "f16"),
            ("[\"1\"]", "f8"),
        ] {
            assert_eq!(items(text, descr), Err(ItemFault::Unsupported), "{text}");
        }
        let swapped = if cfg!(target_endian = "big") { "<f8" } else { ">f8" };
        assert_eq!(items("[1]", swapped), Err(ItemFault::Unsupported));
    }

    #[test]
    fn integers_have_64_bits_with_a_sign_if_possible() {
        let dtype = |text: &str| outline(text).integer_dtype().unwrap().name();
        assert_eq!(dtype("[1,-1]"), "int64");
        assert_eq!(dtype("[9223372036854775807,-9223372036854775808]"), "int64");
        assert_eq!(dtype("[9223372036854775808,0]"), "uint64");
        assert_eq!(dtype("[18446744073709551615]"), "uint64");
    }
}
