//! Arrays as bytes: their dtype, their shape, and the order of their items.

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
    /// The bytes of all items; `None` if they exceed the address space.
    pub fn bytes(&self) -> Option<usize> {
        let items = self.shape.iter().try_fold(1_usize, |items, &side| items.checked_mul(side))?;
        items.checked_mul(usize::from(self.dtype.item_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: DType = DType { kind: Kind::Float, item_bytes: 4, is_big_endian: false };

    #[test]
    fn bytes_are_those_of_all_items() {
        let tensor =
            |shape: &[usize]| Tensor { dtype: FLOAT, shape: shape.to_vec(), is_fortran: false };
        assert_eq!(tensor(&[]).bytes(), Some(4));
        assert_eq!(tensor(&[3, 5]).bytes(), Some(60));
        assert_eq!(tensor(&[3, 0]).bytes(), Some(0));
        assert_eq!(tensor(&[usize::MAX, 2]).bytes(), None);
        assert_eq!(tensor(&[usize::MAX]).bytes(), None);
    }
}
