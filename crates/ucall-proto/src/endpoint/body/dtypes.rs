//! The headers of a body that is the items of an array, and the names of dtypes in them.

use crate::arrays::{DType, Kind};

/// The header with the dtype of a body's array, as NumPy names it.
pub(super) const DTYPE: &str = "Ucall-Dtype";
/// The header with its shape: numbers with commas between them.
pub(super) const SHAPE: &str = "Ucall-Shape";

/// The kinds by the names that NumPy has for them, with the bits of an item behind each.
const KINDS: [(&str, Kind, &[u8]); 5] = [
    ("int", Kind::Int, &[1, 2, 4, 8]),
    ("uint", Kind::UInt, &[1, 2, 4, 8]),
    ("float", Kind::Float, &[2, 4, 8]),
    ("complex", Kind::Complex, &[8, 16]),
    ("bfloat", Kind::BFloat, &[2]),
];

/// The dtype of a name of NumPy, the lowest byte of an item first.
pub(super) fn dtype_named(name: &[u8]) -> Option<DType> {
    let of = |kind, item_bytes| DType { kind, item_bytes, is_big_endian: false };
    let name = std::str::from_utf8(name).ok()?;
    if name == "bool" {
        return Some(of(Kind::Bool, 1));
    }
    KINDS.iter().find_map(|&(prefix, kind, sizes)| {
        let bits: u16 = name.strip_prefix(prefix)?.parse().ok()?;
        let &item_bytes = sizes.iter().find(|&&bytes| u16::from(bytes) * 8 == bits)?;
        Some(of(kind, item_bytes))
    })
}

/// The name that NumPy has for a dtype.
pub(super) fn dtype_name(dtype: DType) -> String {
    match KINDS.iter().find(|(_, kind, _)| *kind == dtype.kind) {
        Some((name, ..)) => format!("{name}{}", u16::from(dtype.item_bytes) * 8),
        None => "bool".to_owned(),
    }
}
