//! Arrays as nested lists of numbers.

use std::slice::ChunksExact;

use pyo3::prelude::*;
use ucall_proto::arrays::{DType, Kind, Tensor};
use ucall_proto::json::{write_f32, write_f64, write_i64};

use super::ConversionFault;
use crate::ffi::{Imported, NumPy};

type Written = Result<(), ConversionFault>;

/// Whether [`write`] takes arrays of a dtype.
pub(super) fn can_write(dtype: DType) -> bool {
    let is_number = match dtype.kind {
        Kind::Bool | Kind::Int | Kind::UInt => true,
        Kind::Float => matches!(dtype.item_bytes, 4 | 8),
        Kind::Complex | Kind::BFloat => false,
    };
    is_number && dtype.is_native()
}

/// A copy in the order of C, with a dtype that has all numbers and that [`write`] takes.
#[cold]
pub(super) fn plain_copy<'py>(
    array: &Bound<'py, PyAny>,
    dtype: DType,
) -> Result<Bound<'py, PyAny>, ConversionFault> {
    static COPY: Imported<PyAny> = Imported::new("numpy", "ascontiguousarray");
    let py = array.py();
    let plain = match dtype.kind {
        Kind::Complex => {
            return Err(ConversionFault::value("complex numbers cannot be written as lists"));
        }
        Kind::Float if dtype.item_bytes > 8 => DType::native(Kind::Float, 8),
        Kind::Float | Kind::BFloat => DType::native(Kind::Float, dtype.item_bytes.max(4)),
        kind => DType::native(kind, dtype.item_bytes),
    };
    Ok(COPY.get(py)?.call1((array, NumPy::get(py)?.dtype(py, plain)?))?)
}

/// Appends an array that [`can_write`] allows; `items` are in the order of C.
pub(super) fn write(out: &mut Vec<u8>, len_max: usize, tensor: &Tensor, items: &[u8]) -> Written {
    let item_bytes = usize::from(tensor.dtype.item_bytes).max(1);
    let items = items.chunks_exact(item_bytes);
    Lists { out, len_max, kind: tensor.dtype.kind, items }.level(&tensor.shape)
}

struct Lists<'a> {
    out: &'a mut Vec<u8>,
    len_max: usize,
    kind: Kind,
    items: ChunksExact<'a, u8>,
}

impl Lists<'_> {
    /// Writes the next items as lists of this shape. An array has few dimensions.
    fn level(&mut self, shape: &[usize]) -> Written {
        if self.out.len() > self.len_max {
            return Err(ConversionFault::TooLarge);
        }
        let Some((side, inner)) = shape.split_first() else { return self.number() };
        self.out.push(b'[');
        for index in 0..*side {
            if index > 0 {
                self.out.push(b',');
            }
            self.level(inner).map_err(|fault| fault.at_index(index))?;
        }
        self.out.push(b']');
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Written {
        let Some(item) = self.items.next() else { return Ok(()) };
        let out = &mut *self.out;
        match (self.kind, item) {
            (Kind::Bool, [0]) => out.extend_from_slice(b"false"),
            (Kind::Bool, _) => out.extend_from_slice(b"true"),
            (Kind::Float, [a, b, c, d]) => {
                return finite(write_f32(out, f32::from_ne_bytes([*a, *b, *c, *d])));
            }
            (Kind::Float, _) => return finite(write_f64(out, f64::from_bits(bits_of(item)))),
            (Kind::Int, _) => {
                // Moves the sign of a shorter number to the top, and back.
                let shift = 64 - 8 * item.len().min(8) as u32;
                write_i64(out, ((bits_of(item) << shift) as i64) >> shift);
            }
            _ => match i64::try_from(bits_of(item)) {
                Ok(value) => write_i64(out, value),
                Err(_) => out.extend_from_slice(bits_of(item).to_string().as_bytes()),
            },
        }
        Ok(())
    }
}

fn finite(is_written: bool) -> Written {
    match is_written {
        true => Ok(()),
        false => Err(ConversionFault::value("nan and inf cannot be written as JSON")),
    }
}

/// The bytes of an item as a number.
fn bits_of(item: &[u8]) -> u64 {
    match *item {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}
