//! Arrays as bytes: their dtype, their shape, and the order of their items.
//!
//! [`npy`] reads and writes the headers of `.npy` files. [`NestedLists`] reads lists of numbers in
//! JSON, straight into the memory of an array.
//! [`safetensors`] reads and writes files of that format.

mod dtype;
mod floats;
mod lists;
pub mod npy;
pub mod safetensors;

pub use dtype::{DType, Kind};
pub use lists::{ItemFault, NestedLists};

/// NumPy's limit of an array's dimensions.
pub const DIMENSIONS_MAX: usize = 64;

/// The dtype and the shape of an array whose items lie one after another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tensor {
    /// The type of the items.
    pub dtype: DType,
    /// The length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// Whether the first index changes fastest, as in Fortran.
    pub is_fortran: bool,
}

impl Tensor {
    /// The bytes of all items; `None` if they exceed the address space. As in NumPy they do so too
    /// if only the sides of an empty array are too long.
    pub fn bytes(&self) -> Option<usize> {
        let item_bytes = usize::from(self.dtype.item_bytes);
        let sides = self.shape.iter().filter(|side| **side > 0);
        let bytes = sides.copied().try_fold(item_bytes, usize::checked_mul)?;
        if bytes > isize::MAX as usize {
            return None;
        }
        Some(if self.shape.contains(&0) { 0 } else { bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_all_items() {
        let dtype = DType::native(Kind::Float, 4);
        let tensor = |shape: &[usize]| Tensor { dtype, shape: shape.to_vec(), is_fortran: false };
        assert_eq!(tensor(&[]).bytes(), Some(4));
        assert_eq!(tensor(&[3, 5]).bytes(), Some(60));
        assert_eq!(tensor(&[3, 0]).bytes(), Some(0));
        assert_eq!(tensor(&[usize::MAX, 2]).bytes(), None);
        assert_eq!(tensor(&[usize::MAX]).bytes(), None);
        assert_eq!(tensor(&[isize::MAX as usize / 2]).bytes(), None);
        assert_eq!(tensor(&[0, 1 << 62, 1 << 62]).bytes(), None);
    }
}
