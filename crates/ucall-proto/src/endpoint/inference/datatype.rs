//! The datatypes of tensors.

use crate::arrays::{DType, Kind};

/// The name of [`Datatype::Bytes`].
pub(crate) const BYTES: &str = "BYTES";

/// The type of a tensor's items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Datatype {
    /// Items of one length.
    Items(DType),
    /// Byte strings, each after its length.
    Bytes,
}

/// All but `BYTES`. `BF16` is an extension of Triton.
const NAMES: [(&str, Kind, u8); 13] = [
    ("BOOL", Kind::Bool, 1),
    ("UINT8", Kind::UInt, 1),
    ("UINT16", Kind::UInt, 2),
    ("UINT32", Kind::UInt, 4),
    ("UINT64", Kind::UInt, 8),
    ("INT8", Kind::Int, 1),
    ("INT16", Kind::Int, 2),
    ("INT32", Kind::Int, 4),
    ("INT64", Kind::Int, 8),
    ("FP16", Kind::Float, 2),
    ("FP32", Kind::Float, 4),
    ("FP64", Kind::Float, 8),
    ("BF16", Kind::BFloat, 2),
];

impl Datatype {
    /// The datatype of a name.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        if name == BYTES.as_bytes() {
            return Some(Self::Bytes);
        }
        let (_, kind, item_bytes) = NAMES.into_iter().find(|(it, ..)| it.as_bytes() == name)?;
        Some(Self::Items(DType { kind, item_bytes, is_big_endian: false }))
    }

    /// Its name; `None` of one that the protocol does not have.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let Self::Items(dtype) = self else { return Some(BYTES) };
        let named = NAMES
            .into_iter()
            .find(|&(_, kind, item_bytes)| (kind, item_bytes) == (dtype.kind, dtype.item_bytes));
        named.map(|(name, ..)| name)
    }

    /// Whether a JSON number can be one of its items.
    pub(crate) fn has_json(self) -> bool {
        !matches!(self, Self::Items(DType { item_bytes: 2, kind: Kind::Float | Kind::BFloat, .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_that_of_its_datatype() {
        for name in NAMES.map(|(name, ..)| name).into_iter().chain([BYTES]) {
            let datatype = Datatype::named(name.as_bytes()).expect("a datatype");
            assert_eq!(datatype.name(), Some(name));
            assert_eq!(datatype.has_json(), !matches!(name, "FP16" | "BF16"), "{name}");
        }
        assert_eq!(Datatype::named(b"FP8"), None);
        let complex = DType { kind: Kind::Complex, item_bytes: 8, is_big_endian: false };
        assert_eq!(Datatype::Items(complex).name(), None);
    }
}
