//! `ucall_buffer_t`: an array or bytes, in a param or in a reply.
//!
//! A param is a part behind the document, or base64 within it; either is a `.npy` or bytes. The
//! items of an array are used where they lie, in the part or in the memory that the base64 was
//! decoded to. Only an array in another byte order or in Fortran order, or one whose items are not
//! aligned, is copied.

use std::ffi::c_void;
use std::ptr;

use base64ct::{Base64, Encoding};
use ucall_proto::arrays::{DIMENSIONS_MAX, DType, Kind, Tensor, npy};
use ucall_proto::{Part, Parts, part_reference};

use crate::held_buffer::HeldBuffer;
use crate::params::ParamBuffers;

/// What a `.npy` begins with.
const NPY_MAGIC: &[u8] = b"\x93NUMPY";
/// The alignment of a copy.
const ALIGNMENT: usize = 64;

/// `ucall_buffer_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    data: *const c_void,
    length: usize,
    dtype: u32,
    rank: u32,
    shape: *const usize,
}

/// The number of each dtype in `ucall_dtype_t`. 0 are bytes.
const DTYPES: [(u32, Kind, u8); 15] = [
    (1, Kind::Bool, 1),
    (2, Kind::Int, 1),
    (3, Kind::Int, 2),
    (4, Kind::Int, 4),
    (5, Kind::Int, 8),
    (6, Kind::UInt, 1),
    (7, Kind::UInt, 2),
    (8, Kind::UInt, 4),
    (9, Kind::UInt, 8),
    (10, Kind::Float, 2),
    (11, Kind::Float, 4),
    (12, Kind::Float, 8),
    (13, Kind::BFloat, 2),
    (14, Kind::Complex, 8),
    (15, Kind::Complex, 16),
];
const BYTES: u32 = 0;

impl Buffer {
    /// The buffer of a param's text. `None` if it is neither a part nor base64, or begins as a
    /// `.npy` and is none of bools or numbers.
    pub(crate) fn of_param(
        value: &[u8],
        parts: Option<&Parts>,
        buffers: &mut ParamBuffers,
    ) -> Option<Self> {
        let mut held = HeldBuffer::default();
        let buffer = match parts.zip(part_reference(value)) {
            Some((parts, index)) => Self::of_part(parts.get(index)?, &mut held)?,
            None => {
                let text = std::str::from_utf8(buffers.string(value)?).ok()?;
                let decoded = Base64::decode_vec(text).ok()?;
                let buffer = Self::of_part(Part { bytes: &decoded, tensor: None }, &mut held)?;
                held.decoded = decoded;
                buffer
            }
        };
        buffers.hold(held);
        Some(buffer)
    }

    fn of_part(part: Part<'_>, held: &mut HeldBuffer) -> Option<Self> {
        if let Some(tensor) = part.tensor {
            return Self::of_array(tensor, part.bytes, held);
        }
        if !part.bytes.starts_with(NPY_MAGIC) {
            let (data, shape) = (part.bytes.as_ptr().cast(), ptr::null());
            return Some(Self { data, length: part.bytes.len(), dtype: BYTES, rank: 0, shape });
        }
        let (tensor, items) = npy::split(part.bytes).ok()?;
        Self::of_array(&tensor, items, held)
    }

    fn of_array(tensor: &Tensor, items: &[u8], held: &mut HeldBuffer) -> Option<Self> {
        let Tensor { dtype, shape, is_fortran } = tensor;
        let is_known =
            |known: &&(u32, Kind, u8)| (known.1, known.2) == (dtype.kind, dtype.item_bytes);
        let (number, ..) = DTYPES.iter().find(is_known)?;
        npy::check_length(tensor, items.len()).ok()?;
        let width = number_bytes(*dtype);
        let is_row_major = !is_fortran || shape.len() < 2;
        held.shape.clone_from(shape);
        let items = if is_row_major && dtype.is_native() && items.as_ptr().align_offset(width) == 0
        {
            items
        } else {
            held.items = aligned(items.len());
            let start = held.items.as_ptr().align_offset(ALIGNMENT);
            let copy = held.items.get_mut(start..start + items.len())?;
            match is_row_major {
                true => copy.copy_from_slice(items),
                false => copy_row_major(items, shape, dtype.item_bytes.into(), copy),
            }
            if !dtype.is_native() {
                copy.chunks_exact_mut(width).for_each(<[u8]>::reverse);
            }
            copy
        };
        let rank = u32::try_from(shape.len()).ok()?;
        let (data, shape) = (items.as_ptr().cast(), held.shape.as_ptr());
        Some(Self { data, length: items.len(), dtype: *number, rank, shape })
    }

    /// What it is, and its bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    ///
    /// # Safety
    /// `data` is NULL or has `length` readable bytes; `shape` is NULL or has `rank` lengths.
    pub(crate) unsafe fn content<'a>(&self) -> Result<(Option<Tensor>, &'a [u8]), &'static str> {
        let (rank, length) = (self.rank as usize, self.length);
        let bytes = match (self.data.is_null(), isize::try_from(length)) {
            (_, Err(_)) => return Err("is longer than half of SIZE_MAX"),
            (true, Ok(1..)) => return Err("has no data"),
            (true, _) => &[],
            // SAFETY: our caller says that they are readable.
            (false, _) => unsafe { std::slice::from_raw_parts(self.data.cast(), length) },
        };
        if self.dtype == BYTES {
            return if rank == 0 { Ok((None, bytes)) } else { Err("has a shape, but no dtype") };
        }
        let known = DTYPES.iter().find(|(number, ..)| *number == self.dtype);
        let Some(&(_, kind, item_bytes)) = known else { return Err("has an unknown dtype") };
        let shape = match (self.shape.is_null(), rank) {
            (_, DIMENSIONS_MAX..) if rank > DIMENSIONS_MAX => {
                return Err("has too many dimensions");
            }
            (_, 0) => Vec::new(),
            (true, _) => return Err("has no shape"),
            // SAFETY: our caller says that they are readable.
            (false, _) => unsafe { std::slice::from_raw_parts(self.shape, rank) }.to_vec(),
        };
        let dtype = DType::native(kind, item_bytes);
        let tensor = Tensor { dtype, shape, is_fortran: false };
        match npy::check_length(&tensor, length) {
            Ok(()) => Ok((Some(tensor), bytes)),
            Err(_) => Err("has another length than its shape"),
        }
    }
}

/// The bytes of one number: half an item of a complex dtype.
fn number_bytes(dtype: DType) -> usize {
    let item_bytes = usize::from(dtype.item_bytes);
    if dtype.kind == Kind::Complex { item_bytes / 2 } else { item_bytes }
}

/// Memory that has so many bytes from a multiple of [`ALIGNMENT`] on.
fn aligned(bytes: usize) -> Vec<u8> {
    vec![0; bytes + ALIGNMENT - 1]
}

/// Copies items whose first index changes fastest so that the last one does.
fn copy_row_major(items: &[u8], shape: &[usize], item_bytes: usize, out: &mut [u8]) {
    let mut strides = Vec::with_capacity(shape.len());
    shape.iter().fold(item_bytes, |stride, side| {
        strides.push(stride);
        // A side may be 0, and the others too long for a product: then there are no items.
        stride.saturating_mul(*side)
    });
    let mut index = vec![0; shape.len()];
    let mut from = 0;
    for item in out.chunks_exact_mut(item_bytes) {
        item.copy_from_slice(items.get(from..from + item_bytes).unwrap_or_default());
        for ((at, side), stride) in index.iter_mut().zip(shape).zip(&strides).rev() {
            *at += 1;
            from += stride;
            if *at < *side {
                break;
            }
            from -= stride * side;
            *at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: DType, shape: &[usize], is_fortran: bool, items: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        npy::write_header(&mut file, &Tensor { dtype, shape: shape.to_vec(), is_fortran });
        [&file, items].concat()
    }

    /// The dtype, the shape and the items of a part.
    fn read(bytes: &[u8]) -> Option<(u32, Vec<usize>, Vec<u8>)> {
        let mut held = HeldBuffer::default();
        let buffer = Buffer::of_part(Part { bytes, tensor: None }, &mut held)?;
        // SAFETY: `bytes` and `held` are there.
        let (tensor, items) = unsafe { buffer.content() }.unwrap();
        Some((buffer.dtype, tensor.map(|tensor| tensor.shape).unwrap_or_default(), items.to_vec()))
    }

    #[test]
    fn an_array_is_read_in_row_major_order_and_native_byte_order() {
        let float = DType::native(Kind::Float, 4);
        let items: Vec<u8> = (0..24).collect();
        let expected = |items: &[u8]| Some((11, vec![3, 2], items.to_vec()));
        assert_eq!(read(&file(float, &[3, 2], false, &items)), expected(&items));
        let columns: Vec<u8> =
            [0, 3, 1, 4, 2, 5].iter().flat_map(|at| at * 4..at * 4 + 4).collect();
        assert_eq!(read(&file(float, &[3, 2], true, &items)), expected(&columns));
        let other = DType { is_big_endian: !float.is_big_endian, ..float };
        let swapped: Vec<u8> =
            items.chunks(4).flat_map(|item| item.iter().rev().copied()).collect();
        assert_eq!(read(&file(other, &[3, 2], false, &swapped)), expected(&items));
        let complex =
            DType { is_big_endian: other.is_big_endian, ..DType::native(Kind::Complex, 8) };
        let pairs = Some((14, vec![3], items));
        assert_eq!(read(&file(complex, &[3], true, &swapped)), pairs);
    }

    #[test]
    fn items_are_aligned() {
        let dtype = DType::native(Kind::Int, 8);
        let file = file(dtype, &[2], false, &[7; 16]);
        for offset in 0..9 {
            let bytes = [&vec![0; offset], &file[..]].concat();
            let part = Part { bytes: &bytes[offset..], tensor: None };
            let mut held = HeldBuffer::default();
            let buffer = Buffer::of_part(part, &mut held).unwrap();
            assert_eq!(buffer.data.cast::<u64>().align_offset(align_of::<u64>()), 0);
            // SAFETY: `bytes` and `held` are there.
            assert_eq!(unsafe { buffer.content() }.unwrap().1, [7; 16]);
        }
    }

    #[test]
    fn what_is_no_array_is_bytes_unless_it_begins_as_one() {
        assert_eq!(read(b""), Some((0, vec![], vec![])));
        assert_eq!(read(b"\x93NUMPX"), Some((0, vec![], b"\x93NUMPX".to_vec())));
        let whole = file(DType::native(Kind::Float, 8), &[], false, &[0; 8]);
        assert_eq!(read(&whole), Some((12, vec![], vec![0; 8])));
        for length in NPY_MAGIC.len()..whole.len() {
            assert_eq!(read(&whole[..length]), None);
        }
        assert_eq!(read(&file(DType::native(Kind::Float, 16), &[1], false, &[0; 16])), None);
        let empty = file(DType::native(Kind::Bool, 1), &[0, 1 << 40, 3], true, &[]);
        assert_eq!(read(&empty), Some((1, vec![0, 1 << 40, 3], vec![])));
    }
}
