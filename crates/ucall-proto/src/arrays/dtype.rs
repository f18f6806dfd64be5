//! The types of an array's items, and their names in NumPy.

use std::fmt;

/// What the items of an array are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// One byte, 0 or 1.
    Bool,
    /// Integers with a sign.
    Int,
    /// Integers without a sign.
    UInt,
    /// IEEE 754 floating-point numbers.
    Float,
    /// Pairs of floating-point numbers.
    Complex,
    /// The upper half of a 32-bit float.
    BFloat,
}

/// The type of an array's items.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DType {
    /// What they are.
    pub kind: Kind,
    /// The bytes of one item.
    pub item_bytes: u8,
    /// Whether the first byte of an item is its highest.
    pub is_big_endian: bool,
}

/// The name of the dtype of [`Kind::BFloat`], which the package `ml_dtypes` adds to NumPy.
const BFLOAT16: &str = "bfloat16";

impl DType {
    /// A dtype in the byte order of this machine.
    pub const fn native(kind: Kind, item_bytes: u8) -> Self {
        let is_big_endian = cfg!(target_endian = "big") && item_bytes > 1;
        Self { kind, item_bytes, is_big_endian }
    }

    /// Whether its items are in the byte order of this machine.
    pub const fn is_native(self) -> bool {
        self.is_big_endian == Self::native(self.kind, self.item_bytes).is_big_endian
    }

    /// The dtype of a name as in a `.npy`: a byte order, a letter and the bytes of an item. Without
    /// a byte order it is that of this machine.
    pub fn of_descr(descr: &str) -> Option<Self> {
        if descr == BFLOAT16 {
            return Some(Self::native(Kind::BFloat, 2));
        }
        let (order, name) = match descr.as_bytes() {
            [order @ (b'<' | b'>' | b'|' | b'='), name @ ..] => (*order, name),
            name => (b'=', name),
        };
        let (kind, item_bytes) = match name {
            b"b1" | b"?" => (Kind::Bool, 1),
            [b'i', size @ ..] => (Kind::Int, size_in(size, &[1, 2, 4, 8])?),
            [b'u', size @ ..] => (Kind::UInt, size_in(size, &[1, 2, 4, 8])?),
            [b'f', size @ ..] => (Kind::Float, size_in(size, &[2, 4, 8, 12, 16])?),
            [b'c', size @ ..] => (Kind::Complex, size_in(size, &[8, 16, 24, 32])?),
            _ => return None,
        };
        let native = Self::native(kind, item_bytes);
        let is_big_endian = match order {
            b'<' => false,
            b'>' => item_bytes > 1,
            _ => native.is_big_endian,
        };
        Some(Self { is_big_endian, ..native })
    }

    /// The name that NumPy shows: `float32`, or that of a `.npy` if the byte order is another than
    /// this machine's.
    pub fn name(self) -> String {
        let kind = match self.kind {
            _ if !self.is_native() => return self.to_string(),
            Kind::Bool => return "bool".to_owned(),
            Kind::BFloat => return BFLOAT16.to_owned(),
            Kind::Int => "int",
            Kind::UInt => "uint",
            Kind::Float => "float",
            Kind::Complex => "complex",
        };
        format!("{kind}{}", u16::from(self.item_bytes) * 8)
    }

    /// Whether each of its values is one of `other`: NumPy's rule of safe casting.
    pub fn fits_in(self, other: Self) -> bool {
        let (from, to) = (self.item_bytes, other.item_bytes);
        // Of integers; those of 64 bits count as exact in a double, as for NumPy.
        let float_bytes = if from == 8 { 8 } else { from * 2 };
        match (self.kind, other.kind) {
            (Kind::Bool, _) => true,
            (Kind::Int, Kind::Int)
            | (Kind::UInt, Kind::UInt)
            | (Kind::Float, Kind::Float)
            | (Kind::Complex, Kind::Complex)
            | (Kind::BFloat, Kind::BFloat) => from <= to,
            (Kind::UInt, Kind::Int) => from < to,
            (Kind::Int | Kind::UInt, Kind::Float) => float_bytes <= to,
            (Kind::Int | Kind::UInt, Kind::Complex) => float_bytes <= to / 2,
            (Kind::Float, Kind::Complex) => from <= to / 2,
            (Kind::BFloat, Kind::Float) => 4 <= to,
            (Kind::BFloat, Kind::Complex) => 8 <= to,
            _ => false,
        }
    }
}

/// Writes the name as in a `.npy`, such as `<f4`.
impl fmt::Display for DType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            Kind::Bool => 'b',
            Kind::Int => 'i',
            Kind::UInt => 'u',
            Kind::Float => 'f',
            Kind::Complex => 'c',
            Kind::BFloat => return out.write_str(BFLOAT16),
        };
        let order = match (self.item_bytes, self.is_big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        write!(out, "{order}{letter}{}", self.item_bytes)
    }
}

fn size_in(text: &[u8], sizes: &[u8]) -> Option<u8> {
    let size = match text {
        [one @ b'1'..=b'9'] => one & 0xf,
        [ten @ b'1'..=b'3', one @ b'0'..=b'9'] => (ten & 0xf) * 10 + (one & 0xf),
        _ => return None,
    };
    sizes.contains(&size).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_numpy() {
        for name in ["|b1", "|i1", "<i2", ">u8", "<f2", ">f16", "<f12", "<c8", ">c32", "|u1"] {
            assert_eq!(DType::of_descr(name).unwrap().to_string(), name);
        }
        assert_eq!(DType::of_descr("bfloat16"), Some(DType::native(Kind::BFloat, 2)));
        assert_eq!(DType::of_descr("bfloat16").unwrap().to_string(), "bfloat16");
        for (other, name) in [("?", "|b1"), (">i1", "|i1"), ("<b1", "|b1"), ("|u1", "|u1")] {
            assert_eq!(DType::of_descr(other).unwrap().to_string(), name);
        }
        for native in ["f8", "=f8", "|f8"] {
            assert_eq!(DType::of_descr(native), Some(DType::native(Kind::Float, 8)));
        }
    }

    #[test]
    fn names_in_messages_are_those_of_numpy() {
        for (dtype, name) in [
            ("b1", "bool"),
            ("u1", "uint8"),
            ("f2", "float16"),
            ("c16", "complex128"),
            ("f12", "float96"),
            ("bfloat16", "bfloat16"),
        ] {
            assert_eq!(DType::of_descr(dtype).unwrap().name(), name);
        }
        let swapped = if cfg!(target_endian = "big") { "<i4" } else { ">i4" };
        assert_eq!(DType::of_descr(swapped).unwrap().name(), swapped);
    }

    #[test]
    fn other_names_are_no_dtypes() {
        for name in [
            "",
            "<",
            "b",
            "b2",
            "<i3",
            "<i",
            "i16",
            "f1",
            "<f08",
            "f40",
            "c4",
            "u-1",
            "O",
            "|O",
            "<U2",
            "S5",
            "V8",
            "<M8[s]",
            "float",
            "bfloat",
            ">bfloat16",
            "<f8 ",
            "<<f8",
            "f٣",
        ] {
            assert_eq!(DType::of_descr(name), None, "{name}");
        }
    }
}
