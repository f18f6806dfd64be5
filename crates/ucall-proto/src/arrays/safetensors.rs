//! Files of the format safetensors: a length of 8 bytes, a JSON object with the dtype, the shape
//! and the place of each array, and the items of all arrays one after another.
//!
//! Source: <https://github.com/huggingface/safetensors>, section "Format". The places must cover
//! all that follows the object, without a gap and without an overlap, so that a file has no bytes
//! that nobody looks at.

use std::ops::Range;

use super::{DType, Kind, Tensor};
use crate::json::{self, Reader, ValueKind, write_string};

/// The length of the JSON object. The format allows 100 MB, which nobody needs for the arrays of
/// one call.
pub const HEADER_BYTES_MAX: usize = 1 << 20;
const LENGTH_BYTES: usize = 8;
const NESTING_MAX: usize = 8;
const METADATA: &[u8] = b"__metadata__";

/// An array of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// What it is.
    pub tensor: Tensor,
    /// Where its items are in the file.
    pub range: Range<usize>,
}

const DTYPES: [(&str, Kind, u8); 13] = [
    ("BOOL", Kind::Bool, 1),
    ("U8", Kind::UInt, 1),
    ("U16", Kind::UInt, 2),
    ("U32", Kind::UInt, 4),
    ("U64", Kind::UInt, 8),
    ("I8", Kind::Int, 1),
    ("I16", Kind::Int, 2),
    ("I32", Kind::Int, 4),
    ("I64", Kind::Int, 8),
    ("F16", Kind::Float, 2),
    ("F32", Kind::Float, 4),
    ("F64", Kind::Float, 8),
    ("BF16", Kind::BFloat, 2),
];

/// The name of a dtype; `None` if the format does not have it.
#[must_use]
pub fn dtype_name(dtype: DType) -> Option<&'static str> {
    let same = |&(_, kind, item_bytes): &(&str, Kind, u8)| {
        (kind, item_bytes) == (dtype.kind, dtype.item_bytes)
    };
    DTYPES.iter().find(|it| same(it)).map(|(name, ..)| *name)
}

/// The arrays of a file, at most `max`, in the order of its header.
///
/// # Errors
/// What is wrong with it.
pub fn read(file: &[u8], max: usize) -> Result<Vec<NamedTensor>, String> {
    let (length, rest) = file.split_first_chunk::<LENGTH_BYTES>().ok_or("it has no length")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > HEADER_BYTES_MAX {
        return Err(format!("its header has {length} bytes, more than {HEADER_BYTES_MAX}"));
    }
    let (header, data) = rest.split_at_checked(length).ok_or("its header is not complete")?;
    if !header.starts_with(b"{") || json::validate(header, NESTING_MAX).is_err() {
        return Err("its header is no JSON object".to_owned());
    }
    let data_at = LENGTH_BYTES + length;
    let mut tensors: Vec<NamedTensor> = Vec::new();
    let mut reader = Reader::new(header);
    reader.enter();
    while let Some(key) = reader.next_key() {
        let value = reader.skip();
        let key = key.unescaped();
        if *key == *METADATA {
            continue;
        }
        if tensors.len() == max {
            return Err(format!("it has more than {max} arrays"));
        }
        let name = String::from_utf8_lossy(&key).into_owned();
        let read = read_tensor(value, data_at).and_then(|(tensor, range)| {
            (range.end <= data_at + data.len()).then_some((tensor, range))
        });
        let (tensor, range) = read.ok_or_else(|| format!("its array {name:?} is invalid"))?;
        tensors.push(NamedTensor { name, tensor, range });
    }
    check_cover(&tensors, data_at..data_at + data.len())?;
    Ok(tensors)
}

/// The dtype, the shape and the place of an array, if they agree.
fn read_tensor(value: &[u8], data_at: usize) -> Option<(Tensor, Range<usize>)> {
    let [dtype, shape, offsets] =
        Reader::new(value).members([&b"dtype"[..], b"shape", b"data_offsets"])?;
    let dtype = dtype?.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let (_, kind, item_bytes) = DTYPES.into_iter().find(|(name, ..)| name.as_bytes() == dtype)?;
    let dtype = DType { kind, item_bytes, is_big_endian: false };
    let tensor = Tensor { dtype, shape: sizes(shape?)?, is_fortran: false };
    let &[start, end] = &*sizes(offsets?)? else { return None };
    let range = data_at.checked_add(start)?..data_at.checked_add(end)?;
    (end.checked_sub(start)? == tensor.bytes()?).then_some((tensor, range))
}

/// The numbers of a list.
fn sizes(value: &[u8]) -> Option<Vec<usize>> {
    const MAX: usize = 64;
    let mut reader = Reader::new(value);
    let mut sizes = Vec::new();
    if reader.kind() != ValueKind::Array {
        return None;
    }
    reader.enter();
    while reader.next_item() {
        if reader.kind() != ValueKind::Number || sizes.len() == MAX {
            return None;
        }
        sizes.push(usize::try_from(reader.number().as_i64()?).ok()?);
    }
    Some(sizes)
}

fn check_cover(tensors: &[NamedTensor], data: Range<usize>) -> Result<(), String> {
    let mut ranges: Vec<_> = tensors.iter().map(|it| (it.range.start, it.range.end)).collect();
    ranges.sort_unstable();
    let mut end = data.start;
    for (start, range_end) in ranges {
        if start != end {
            return Err("its arrays overlap, or have a gap between them".to_owned());
        }
        end = range_end;
    }
    let mut names: Vec<&str> = tensors.iter().map(|it| &*it.name).collect();
    names.sort_unstable();
    match names.windows(2).any(|pair| pair.first() == pair.last()) {
        true => Err("it has two arrays of one name".to_owned()),
        false if end != data.end => Err("bytes follow its arrays".to_owned()),
        false => Ok(()),
    }
}

/// The length and the header of a file whose arrays follow in this order; `None` if the format
/// does not have the dtype of one. The items are expected row by row, the lowest byte first.
#[must_use]
pub fn header(tensors: &[(&str, DType, &[usize])]) -> Option<Vec<u8>> {
    let mut header = vec![0; LENGTH_BYTES];
    let mut at = 0_usize;
    header.push(b'{');
    for (index, (name, dtype, shape)) in tensors.iter().enumerate() {
        let tensor = Tensor { dtype: *dtype, shape: shape.to_vec(), is_fortran: false };
        let end = at.checked_add(tensor.bytes()?)?;
        if index > 0 {
            header.push(b',');
        }
        write_string(&mut header, name);
        let dtype = dtype_name(*dtype)?;
        let text =
            format!(":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}");
        header.extend_from_slice(text.as_bytes());
        at = end;
    }
    header.push(b'}');
    // Spaces may follow, so that the items are aligned.
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    let length = (header.len() - LENGTH_BYTES) as u64;
    header.get_mut(..LENGTH_BYTES)?.copy_from_slice(&length.to_le_bytes());
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn arrays_are_where_the_header_says() {
        let header = r#"{"__metadata__":{"a":"b"},
            "b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},
            "a\u0021":{"data_offsets":[0,4],"dtype":"F32","shape":[]},
            "empty":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]}}  "#;
        let bytes = file(header, &[0, 0, 128, 63, 7, 8, 9]);
        let read = read(&bytes, 3).expect("a file");
        let found: Vec<_> = read
            .iter()
            .map(|it| (&*it.name, &it.tensor.shape[..], &bytes[it.range.clone()]))
            .collect();
        let expected: [(&str, &[usize], &[u8]); 3] =
            [("b", &[3], &[7, 8, 9]), ("a!", &[], &[0, 0, 128, 63]), ("empty", &[0, 5], &[])];
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_files_are_refused_before_anything_is_allocated() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let several = |arrays: &[(&str, usize, &str)]| {
            let member = |(name, side, offsets): &(&str, usize, &str)| {
                format!(r#""{name}":{{"dtype":"U8","shape":[{side}],"data_offsets":{offsets}}}"#)
            };
            format!("{{{}}}", arrays.iter().map(member).collect::<Vec<_>>().join(","))
        };
        assert!(read(&file(&several(&[("a", 1, "[1,2]"), ("b", 1, "[0,1]")]), b"ab"), 2).is_ok());
        let valid = one("U8", "[2]", "[0,2]");
        assert!(read(&file(&valid, b"ab"), 1).is_ok());
        assert!(read(&file(&valid, b"ab"), 0).is_err(), "more arrays");
        for (header, data) in [
            (valid.clone(), "abc"),
            (valid.clone(), "a"),
            (one("U8", "[2]", "[1,3]"), "abc"),
            (one("U8", "[3]", "[0,2]"), "ab"),
            (one("U8", "[2]", "[2,0]"), "ab"),
            (one("U8", "[2]", "[0,2,2]"), "ab"),
            (one("U8", "[2.0]", "[0,2]"), "ab"),
            (one("U8", "[-2]", "[0,-2]"), ""),
            (one("F8_E4M3", "[2]", "[0,2]"), "ab"),
            (one("U64", "[9223372036854775807]", "[0,9223372036854775807]"), "ab"),
            (one("U64", "[4611686018427387904,4]", "[0,0]"), ""),
            (one("U8", "[9223372036854775808]", "[0,2]"), "ab"),
            (r#"{"a":1}"#.to_owned(), ""),
            (r#"{"a":{"dtype":"U8","shape":[1]}}"#.to_owned(), ""),
            ("[]".to_owned(), ""),
            (" {}".to_owned(), ""),
            ("{".to_owned(), ""),
            (several(&[("a", 2, "[0,2]"), ("b", 2, "[0,2]")]), "ab"),
            (several(&[("a", 2, "[0,2]"), ("b", 2, "[1,3]")]), "abc"),
            (several(&[("a", 1, "[0,1]"), ("b", 1, "[2,3]")]), "abc"),
            (several(&[("a", 0, "[0,0]"), ("a", 0, "[0,0]")]), ""),
        ] {
            assert!(read(&file(&header, data.as_bytes()), 8).is_err(), "{header}");
        }
        let mut long = file("{}", b"");
        for length in [3, HEADER_BYTES_MAX as u64 + 1, 100_000_000, u64::MAX] {
            long[..8].copy_from_slice(&length.to_le_bytes());
            assert!(read(&long, 8).is_err(), "{length}");
        }
        assert!(read(b"1234567", 8).is_err());
        let spaces = |len: usize| file(&format!("{{}}{}", " ".repeat(len - 2)), b"");
        assert!(read(&spaces(HEADER_BYTES_MAX), 8).is_ok());
        assert!(read(&spaces(HEADER_BYTES_MAX + 1), 8).is_err());
    }

    #[test]
    fn a_file_that_is_written_reads_back() {
        let dtype = |kind, item_bytes| DType { kind, item_bytes, is_big_endian: false };
        let tensors: [(&str, DType, &[usize]); 3] = [
            ("a\"", dtype(Kind::Float, 4), &[1, 2]),
            ("b", dtype(Kind::BFloat, 2), &[]),
            ("c", dtype(Kind::Bool, 1), &[0]),
        ];
        let mut bytes = header(&tensors).expect("a header");
        assert_eq!(bytes.len() % 8, 0);
        bytes.extend_from_slice(&[0; 10]);
        let read = read(&bytes, 3).expect("a file");
        let read: Vec<_> =
            read.iter().map(|it| (&*it.name, it.tensor.dtype, &it.tensor.shape[..])).collect();
        assert_eq!(read, tensors);
        assert_eq!(header(&[("a", dtype(Kind::Complex, 8), &[1])]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, header in "\\PC{0,60}") {
            let _ = read(&bytes, 8);
            if let Ok(tensors) = read(&file(&header, &bytes), 8) {
                let end = 8 + header.len() + bytes.len();
                prop_assert!(tensors.iter().all(|it| it.range.end <= end));
            }
        }
    }
}
