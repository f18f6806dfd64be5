//! Binary parts: the arrays, images and bytes that lie behind a JSON-RPC document.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64ct::{Base64, Encoding};
use memchr::memmem;
use ucall_buffer::Bytes;

use crate::arrays::{Tensor, npy};
use crate::connection::Reservation;

/// The name of the only member of an object that stands for a part.
const PART_NAME: &[u8] = br#""$part""#;

/// The parts of one document, in memory of their own.
#[derive(Debug)]
pub struct Parts {
    memory: Bytes,
    parts: Vec<Entry>,
    /// What the memory is counted by, until the last holder of the parts drops them.
    reserved: Reservation,
    is_of_batch: bool,
}

#[derive(Debug)]
struct Entry {
    /// Memory of its own; `None` if it lies in that of the document.
    memory: Option<Bytes>,
    range: Range<usize>,
    tensor: Option<Tensor>,
    is_taken: AtomicBool,
}

/// One part of a document.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What the bytes are, if they are the items of an array without the header of a `.npy`.
    pub tensor: Option<&'a Tensor>,
}

/// Why a text refers to a part that it may not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartError {
    /// There is no part of this index.
    Missing(usize),
    /// The part of this index was taken before.
    Repeated(usize),
}

impl fmt::Display for PartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(index) => write!(formatter, "there is no part {index}"),
            Self::Repeated(index) => write!(formatter, "part {index} is used twice"),
        }
    }
}

impl Entry {
    fn new(memory: Option<Bytes>, range: Range<usize>, tensor: Option<Tensor>) -> Self {
        Self { memory, range, tensor, is_taken: AtomicBool::new(false) }
    }
}

impl Parts {
    /// Parts that lie in `memory`, each with what it is the items of.
    pub fn new(memory: impl Into<Bytes>, parts: Vec<(Range<usize>, Option<Tensor>)>) -> Self {
        let entry = |(range, tensor)| Entry::new(None, range, tensor);
        let parts = parts.into_iter().map(entry).collect();
        Self { memory: memory.into(), parts, reserved: Reservation::default(), is_of_batch: false }
    }

    /// The same parts, whose arrays may be rows of one that others in the same memory continue.
    #[must_use]
    pub fn of_batch(self) -> Self {
        Self { is_of_batch: true, ..self }
    }

    /// Whether that is so. Then a reader leaves an array where it lies, however short it is.
    pub fn is_of_batch(&self) -> bool {
        self.is_of_batch
    }

    /// The memory that the parts lie in.
    pub fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// Parts that each have memory of their own.
    pub fn apart(parts: Vec<Bytes>) -> Self {
        let entry = |memory: Bytes| {
            let range = 0..memory.len();
            Entry::new(Some(memory), range, None)
        };
        let parts = parts.into_iter().map(entry).collect();
        Self { memory: Bytes::new(), parts, reserved: Reservation::default(), is_of_batch: false }
    }

    /// The same parts, which hold a reservation of their memory.
    #[must_use]
    pub fn reserving(self, reserved: Reservation) -> Self {
        Self { reserved, ..self }
    }

    /// The same parts in the same memory, of which none has been taken: for another reading of a
    /// text whose values are gone.
    #[must_use]
    pub fn untaken(&self) -> Self {
        let entry = |Entry { memory, range, tensor, .. }: &Entry| {
            Entry::new(memory.clone(), range.clone(), tensor.clone())
        };
        let parts = self.parts.iter().map(entry).collect();
        let (memory, is_of_batch) = (self.memory.clone(), self.is_of_batch);
        Self { memory, parts, reserved: Reservation::default(), is_of_batch }
    }

    /// The bytes that are reserved for the parts.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved.bytes()
    }

    /// The number of parts.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The part of an index.
    pub fn get(&self, index: usize) -> Option<Part<'_>> {
        let Entry { memory, range, tensor, .. } = self.parts.get(index)?;
        let memory = memory.as_ref().unwrap_or(&self.memory);
        Some(Part { bytes: memory.get(range.clone())?, tensor: tensor.as_ref() })
    }

    /// The part of an index, for the one value that may use it.
    ///
    /// # Errors
    /// There is none, or it was taken before.
    pub fn take(&self, index: usize) -> Result<Part<'_>, PartError> {
        let (Some(part), Some(entry)) = (self.get(index), self.parts.get(index)) else {
            return Err(PartError::Missing(index));
        };
        match entry.is_taken.swap(true, Ordering::Relaxed) {
            true => Err(PartError::Repeated(index)),
            false => Ok(part),
        }
    }

    /// The JSON text with the base64 of parts in place of the objects that stand for them.
    ///
    /// # Errors
    /// It refers to a part that does not exist, or that was taken before.
    pub fn inline(&self, text: &[u8]) -> Result<Vec<u8>, PartError> {
        inline(text, |index, out| {
            let part = self.take(index)?;
            write_file(part.tensor, part.bytes, out);
            Ok(())
        })
    }
}

/// How arrays and bytes are written in a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResultFormat {
    /// As base64 in the JSON text.
    #[default]
    Json,
    /// As parts beside the JSON text.
    Parts,
    /// Arrays as nested lists, bytes as base64.
    Lists,
}

/// What the calls of a document have beside their text.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The parts of the document, if it has any.
    pub parts: Option<Arc<Parts>>,
    /// How results are written.
    pub results: ResultFormat,
}

/// A part of a result.
#[derive(Clone, Debug)]
pub struct ResultPart {
    /// What the bytes are, if they are the items of an array.
    pub tensor: Option<Tensor>,
    /// Its bytes.
    pub bytes: Bytes,
}

impl ResultPart {
    /// What precedes the bytes in a frame: the header of a `.npy`, if they are the items of an
    /// array.
    pub(crate) fn header(&self) -> Vec<u8> {
        self.tensor.as_ref().map(npy_header).unwrap_or_default()
    }
}

/// The index of the part that a value stands for, without white space around it.
pub fn part_reference(value: &[u8]) -> Option<usize> {
    let name = value.strip_prefix(b"{")?.trim_ascii_start();
    let (index, len) = part_index(name)?;
    (len == name.len()).then_some(index)
}

/// The indices of the parts that a text refers to.
pub fn part_references(text: &[u8]) -> impl Iterator<Item = usize> {
    references(text).map(|(_, index)| index)
}

/// The JSON text of a result with the base64 of its parts in place of the objects that stand for
/// them.
pub fn inline_results(text: &[u8], parts: &[ResultPart]) -> Vec<u8> {
    let inlined = inline(text, |index, out| {
        let part = parts.get(index).ok_or(PartError::Missing(index))?;
        write_file(part.tensor.as_ref(), &part.bytes, out);
        Ok(())
    });
    // A result that refers to a part that it does not have stays as it is.
    inlined.unwrap_or_else(|_| text.to_vec())
}

/// Where the objects are that stand for parts, and the index of each.
///
/// In valid JSON a quote within a string follows a backslash, so a name behind a brace is one.
fn references(text: &[u8]) -> impl Iterator<Item = (Range<usize>, usize)> {
    memmem::find_iter(text, PART_NAME).filter_map(|name_at| {
        let (before, after) = text.split_at(name_at);
        let start = before.trim_ascii_end().strip_suffix(b"{")?.len();
        let (index, len) = part_index(after)?;
        Some((start..name_at + len, index))
    })
}

/// Replaces each object that stands for a part by what `write` appends for its index.
fn inline(
    text: &[u8],
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<(), PartError>,
) -> Result<Vec<u8>, PartError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest_at = 0;
    for (object, index) in references(text) {
        out.extend_from_slice(text.get(rest_at..object.start).unwrap_or_default());
        out.push(b'"');
        write(index, &mut out)?;
        out.push(b'"');
        rest_at = object.end;
    }
    out.extend_from_slice(text.get(rest_at..).unwrap_or_default());
    Ok(out)
}

/// The index that a text gives after its name and the length with the brace behind it, if it is
/// the only member.
fn part_index(text: &[u8]) -> Option<(usize, usize)> {
    let rest = text.strip_prefix(PART_NAME)?.trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = rest.split_at(digits);
    let index = std::str::from_utf8(number).ok()?.parse().ok()?;
    let rest = rest.trim_ascii_start().strip_prefix(b"}")?;
    Some((index, text.len() - rest.len()))
}

/// Appends the base64 of a part as it is in a frame: the items of an array behind their header.
fn write_file(tensor: Option<&Tensor>, bytes: &[u8], out: &mut Vec<u8>) {
    match tensor {
        None => write_base64(bytes, out),
        Some(tensor) => write_base64(&[&npy_header(tensor), bytes].concat(), out),
    }
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + Base64::encoded_len(bytes), 0);
    let room = out.get_mut(start..).unwrap_or_default();
    let is_encoded = Base64::encode(bytes, room).is_ok();
    debug_assert!(is_encoded, "there is room for all of it");
}

/// The header of a `.npy` whose items follow it, at a multiple of 64 bytes.
fn npy_header(tensor: &Tensor) -> Vec<u8> {
    let mut header = Vec::new();
    npy::write_header(&mut header, tensor);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::{DType, Kind};

    fn parts() -> Parts {
        let tensor = Tensor {
            dtype: DType { kind: Kind::Int, item_bytes: 2, is_big_endian: true },
            shape: vec![1, 2],
            is_fortran: true,
        };
        Parts::new(b"abcdefg".to_vec(), vec![(0..3, None), (3..7, Some(tensor)), (2..9, None)])
    }

    #[test]
    fn a_part_is_taken_once_and_lies_in_the_memory() {
        let parts = parts();
        assert_eq!(parts.take(0).map(|part| part.bytes), Ok(&b"abc"[..]));
        assert_eq!(parts.take(0).map(|part| part.bytes), Err(PartError::Repeated(0)));
        assert_eq!(parts.get(0).map(|part| part.bytes), Some(&b"abc"[..]));
        for index in [2, 3, usize::MAX] {
            assert_eq!(parts.take(index).map(|part| part.bytes), Err(PartError::Missing(index)));
        }
    }

    #[test]
    fn objects_that_stand_for_parts_become_base64() {
        let inlined = |text: &str| {
            let text = parts().inline(text.as_bytes());
            text.map(|text| String::from_utf8(text).expect("base64 is ASCII"))
        };
        assert_eq!(inlined(r#"[{"$part":0}]"#), Ok(r#"["YWJj"]"#.into()));
        assert_eq!(inlined("{\"a\": { \"$part\"\n: 0\t},1"), Ok(r#"{"a": "YWJj",1"#.into()));
        for same in [
            r#""\\{\"$part\":0}""#,
            r#"{"$part":-0}"#,
            r#"{"$part":0.0}"#,
            r#"{"$part":"0"}"#,
            r#"{"$part":0,"a":1}"#,
            r#"{"a":1,"$part":0}"#,
            r#"["$part",0]"#,
            r#"{"$part":99999999999999999999}"#,
        ] {
            assert_eq!(inlined(same), Ok(same.into()));
        }
        assert_eq!(inlined(r#"[{"$part":0},{"$part":0}]"#), Err(PartError::Repeated(0)));
        assert_eq!(inlined(r#"{"$part":3}"#), Err(PartError::Missing(3)));
        let npy = inlined(r#"{"$part":1}"#).expect("there is one");
        let npy = Base64::decode_vec(npy.trim_matches('"')).expect("it is base64");
        assert!(npy.starts_with(b"\x93NUMPY\x01\x00v\x00{'descr': '>i2', 'fortran_order': True"));
        assert_eq!((npy.len(), &npy[128..]), (132, &b"defg"[..]));
    }
}
