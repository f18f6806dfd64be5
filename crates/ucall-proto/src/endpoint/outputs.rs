//! The result of a call as arrays with names.

use std::borrow::Cow;

use ucall_buffer::Bytes;

use super::inference::datatype::{BYTES, Datatype};
use super::tensors::{push_item, row_major_bytes};
use crate::arrays::{DIMENSIONS_MAX, DType, Kind, Tensor};
use crate::json::{Reader, ValueKind};
use crate::rpc::ResultPart;

/// An output, with the text of its value.
pub(crate) struct Output<'a> {
    pub(crate) name: Cow<'a, str>,
    pub(crate) value: &'a [u8],
}

/// How a result has several outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Items {
    /// If it is a list of arrays.
    Guessed,
    /// If it is a list.
    Each,
}

/// The outputs of a result: the members of an object, the items of a list of arrays, or the result
/// itself. `names` are those of outputs without a name in the result, as far as they are known.
pub(crate) fn of_result<'a>(
    result: &'a [u8],
    parts: &[ResultPart],
    names: &'a [String],
    items: Items,
) -> Vec<Output<'a>> {
    let name = |at: usize| match names.get(at) {
        Some(name) => Cow::Borrowed(name.as_str()),
        None => Cow::Owned(format!("output{at}")),
    };
    let mut outputs = Vec::new();
    let mut reader = Reader::new(result);
    match reader.kind() {
        ValueKind::Null => {}
        ValueKind::Object if part_index(result, parts).is_none() => {
            reader.enter();
            while let Some(key) = reader.next_key() {
                let name = match key.unescaped() {
                    Cow::Borrowed(name) => String::from_utf8_lossy(name),
                    Cow::Owned(name) => Cow::Owned(String::from_utf8_lossy(&name).into_owned()),
                };
                outputs.push(Output { name, value: reader.skip() });
            }
        }
        ValueKind::Array if items == Items::Each || has_array(result, parts) => {
            reader.enter();
            while reader.next_item() {
                outputs.push(Output { name: name(outputs.len()), value: reader.skip() });
            }
        }
        _ => outputs.push(Output { name: name(0), value: result }),
    }
    outputs
}

/// Whether an item of a list is an array.
fn has_array(list: &[u8], parts: &[ResultPart]) -> bool {
    let mut reader = Reader::new(list);
    reader.enter();
    while reader.next_item() {
        let part = part_index(reader.skip(), parts).and_then(|index| parts.get(index));
        if part.is_some_and(|part| part.tensor.is_some()) {
            return true;
        }
    }
    false
}

const PART: &[u8] = br#"{"$part":"#;

/// The index of the part that a value stands for.
pub(crate) fn part_index(value: &[u8], parts: &[ResultPart]) -> Option<usize> {
    let digits = value.strip_prefix(PART)?.strip_suffix(b"}")?;
    let index = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (index < parts.len()).then_some(index)
}

/// An array that an output is.
#[derive(Debug)]
pub(crate) struct OutputTensor {
    pub(crate) datatype: Datatype,
    pub(crate) shape: Vec<usize>,
    /// The items, row by row; of [`Datatype::Bytes`] each after its length.
    pub(crate) items: Bytes,
}

impl OutputTensor {
    /// The array that a value of a result is. `declared` is the datatype that its annotation has.
    ///
    /// # Errors
    /// It is none; the reason.
    pub(crate) fn of_value(
        value: &[u8],
        parts: &[ResultPart],
        declared: Option<Datatype>,
    ) -> Result<Self, String> {
        if let Some(part) = part_index(value, parts).and_then(|index| parts.get(index)) {
            return match &part.tensor {
                Some(tensor) => Self::of_tensor(tensor, &part.bytes),
                None => {
                    let mut items = Vec::with_capacity(part.bytes.len() + 4);
                    push_element(&mut items, &part.bytes)?;
                    Ok(Self { datatype: Datatype::Bytes, shape: vec![1], items: items.into() })
                }
            };
        }
        let mut leaves = Vec::new();
        let shape = match Reader::new(value).kind() {
            ValueKind::Array => shape_of(value, &mut leaves)?,
            _ => {
                leaves.push(value);
                vec![1]
            }
        };
        let datatype = datatype_of(&leaves, parts, declared)?;
        let items = items_of(&leaves, parts, datatype)?;
        Ok(Self { datatype, shape, items: items.into() })
    }

    fn of_tensor(tensor: &Tensor, bytes: &Bytes) -> Result<Self, String> {
        let datatype = Datatype::Items(DType { is_big_endian: false, ..tensor.dtype });
        if datatype.name().is_none() {
            return Err("is complex, which the protocol does not have".to_owned());
        }
        Ok(Self { datatype, shape: tensor.shape.clone(), items: row_major_bytes(tensor, bytes) })
    }
}

/// The lengths of lists within one another, of which each dimension has one. Collects their items.
fn shape_of<'a>(list: &'a [u8], leaves: &mut Vec<&'a [u8]>) -> Result<Vec<usize>, String> {
    let mut shape: Vec<Option<usize>> = vec![None];
    let mut counts = vec![0_usize];
    let mut reader = Reader::new(list);
    let ragged = || "has lists of different lengths".to_owned();
    reader.enter();
    while !counts.is_empty() {
        let (level, depth) = (counts.len(), shape.len());
        if !reader.next_item() {
            let count = counts.pop().unwrap_or_default();
            match shape.get_mut(level - 1) {
                Some(side @ None) => *side = Some(count),
                Some(Some(side)) if *side == count => {}
                _ => return Err(ragged()),
            }
            continue;
        }
        if let Some(count) = counts.last_mut() {
            *count += 1;
        }
        if reader.kind() == ValueKind::Array {
            reader.enter();
            counts.push(0);
            if level == depth {
                // A list where an item was, or deeper than an array may be.
                if !leaves.is_empty()
                    || shape.iter().any(Option::is_some)
                    || level == DIMENSIONS_MAX
                {
                    return Err(ragged());
                }
                shape.push(None);
            }
        } else if level == depth {
            leaves.push(reader.skip());
        } else {
            return Err(ragged());
        }
    }
    Ok(shape.into_iter().map(Option::unwrap_or_default).collect())
}

/// The datatype of items.
fn datatype_of(
    leaves: &[&[u8]],
    parts: &[ResultPart],
    declared: Option<Datatype>,
) -> Result<Datatype, String> {
    let mut found = None;
    for leaf in leaves {
        let mut reader = Reader::new(leaf);
        let datatype = match reader.kind() {
            ValueKind::String => Datatype::Bytes,
            ValueKind::Bool => Datatype::BOOL,
            ValueKind::Number if reader.number().is_integer => Datatype::INT64,
            ValueKind::Number => Datatype::FP64,
            ValueKind::Object if is_bytes(leaf, parts) => Datatype::Bytes,
            ValueKind::Object => return Err("has an object in it".to_owned()),
            _ => return Err("has null in it".to_owned()),
        };
        found = match (found, datatype) {
            (None, datatype) => Some(datatype),
            (Some(Datatype::INT64), Datatype::FP64) => Some(Datatype::FP64),
            (Some(Datatype::FP64), Datatype::INT64) => Some(Datatype::FP64),
            (Some(known), datatype) if known == datatype => Some(known),
            _ => return Err("has items of several types".to_owned()),
        };
    }
    Ok(match (declared, found) {
        (Some(declared), None) => declared,
        (Some(declared), Some(found)) if declared.is_wider_than(found) => declared,
        (_, found) => found.unwrap_or(Datatype::FP64),
    })
}

fn is_bytes(leaf: &[u8], parts: &[ResultPart]) -> bool {
    let part = part_index(leaf, parts).and_then(|index| parts.get(index));
    part.is_some_and(|part| part.tensor.is_none())
}

fn items_of(leaves: &[&[u8]], parts: &[ResultPart], datatype: Datatype) -> Result<Vec<u8>, String> {
    let mut items = Vec::new();
    for leaf in leaves {
        match datatype {
            Datatype::Items(dtype) => {
                if !push_item(&mut items, dtype, leaf) {
                    let name = datatype.name().unwrap_or(BYTES);
                    return Err(format!("has an item that is no {name}"));
                }
            }
            Datatype::Bytes => match part_index(leaf, parts).and_then(|index| parts.get(index)) {
                Some(part) => push_element(&mut items, &part.bytes)?,
                None => push_element(&mut items, &Reader::new(leaf).string().unescaped())?,
            },
        }
    }
    Ok(items)
}

/// Appends an item of [`Datatype::Bytes`].
fn push_element(items: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
    let len = u32::try_from(bytes.len()).map_err(|_| "has 4 GiB in an item".to_owned())?;
    items.extend_from_slice(&len.to_le_bytes());
    items.extend_from_slice(bytes);
    Ok(())
}

impl Datatype {
    const BOOL: Self = Self::of(Kind::Bool, 1);
    const INT64: Self = Self::of(Kind::Int, 8);
    const FP64: Self = Self::of(Kind::Float, 8);

    const fn of(kind: Kind, item_bytes: u8) -> Self {
        Self::Items(DType { kind, item_bytes, is_big_endian: false })
    }

    /// Whether numbers of a found datatype are written as this one, which their annotation has.
    fn is_wider_than(self, found: Self) -> bool {
        match (self, found) {
            (Self::Items(wanted), Self::Items(found)) => match found.kind {
                Kind::Float => wanted.kind == Kind::Float,
                Kind::Int => matches!(wanted.kind, Kind::Int | Kind::UInt | Kind::Float),
                _ => false,
            },
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(tensor: Option<Tensor>, bytes: &'static [u8]) -> ResultPart {
        ResultPart { tensor, bytes: Bytes::from_static(bytes) }
    }

    fn array(kind: Kind, bytes: &'static [u8]) -> ResultPart {
        let dtype = DType { kind, item_bytes: 1, is_big_endian: false };
        part(Some(Tensor { dtype, shape: vec![bytes.len()], is_fortran: false }), bytes)
    }

    fn names(result: &str, parts: &[ResultPart], known: &[&str], items: Items) -> Vec<String> {
        let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
        let outputs = of_result(result.as_bytes(), parts, &known, items);
        outputs
            .iter()
            .map(|it| format!("{}={}", it.name, String::from_utf8_lossy(it.value)))
            .collect()
    }

    #[test]
    fn outputs_have_names_of_the_result_or_of_the_model() {
        let parts = [array(Kind::Int, b"ab"), array(Kind::Int, b"c")];
        let named = names(r#"{"a":{"$part":0},"b\u0021":1}"#, &parts, &["x"], Items::Guessed);
        assert_eq!(named, [r#"a={"$part":0}"#, "b!=1"]);
        let several = names(r#"[{"$part":0},{"$part":1}]"#, &parts, &["x"], Items::Guessed);
        assert_eq!(several, [r#"x={"$part":0}"#, r#"output1={"$part":1}"#]);
        assert_eq!(names("[1,2]", &parts, &[], Items::Guessed), ["output0=[1,2]"]);
        assert_eq!(names("[1,2]", &parts, &[], Items::Each), ["output0=1", "output1=2"]);
        assert_eq!(names(r#"{"$part":1}"#, &parts, &["x"], Items::Guessed), [r#"x={"$part":1}"#]);
        assert_eq!(names(r#"{"$part":2}"#, &parts, &["x"], Items::Guessed), ["$part=2"]);
        assert!(names("null", &parts, &["x"], Items::Each).is_empty());
    }

    /// The datatype, the shape and the items.
    type Made = (Option<&'static str>, Vec<usize>, Vec<u8>);

    fn tensor(value: &str, declared: Option<Datatype>) -> Result<Made, String> {
        let parts = [array(Kind::Int, b"ab"), part(None, b"xyz"), array(Kind::Complex, b"ab")];
        OutputTensor::of_value(value.as_bytes(), &parts, declared)
            .map(|it| (it.datatype.name(), it.shape, it.items.to_vec()))
    }

    #[test]
    fn values_become_tensors_of_their_types() {
        let of = |value: &str| tensor(value, None).expect("a tensor");
        assert_eq!(of(r#"{"$part":0}"#), (Some("INT8"), vec![2], b"ab".to_vec()));
        assert_eq!(of(r#"{"$part":1}"#), (Some("BYTES"), vec![1], b"\x03\0\0\0xyz".to_vec()));
        assert_eq!(of("7"), (Some("INT64"), vec![1], 7_i64.to_le_bytes().to_vec()));
        assert_eq!(of("true"), (Some("BOOL"), vec![1], vec![1]));
        let (name, shape, items) = of("[[1,2.5],[3,4]]");
        assert_eq!((name, shape), (Some("FP64"), vec![2, 2]));
        assert_eq!(items, [1.0, 2.5, 3.0, 4.0].map(f64::to_le_bytes).concat());
        let (name, shape, items) = of(r#"["\u00e9",{"$part":1}]"#);
        assert_eq!((name, shape), (Some("BYTES"), vec![2]));
        assert_eq!(items, b"\x02\0\0\0\xc3\xa9\x03\0\0\0xyz");
        assert_eq!(of("[[],[]]").1, [2, 0]);
        assert_eq!(of("[]").1, [0]);
        let fp32 = Some(Datatype::of(Kind::Float, 4));
        assert_eq!(tensor("1", fp32), Ok((Some("FP32"), vec![1], 1_f32.to_le_bytes().to_vec())));
        assert_eq!(tensor("\"a\"", fp32).expect("a tensor").0, Some("BYTES"));
        assert_eq!(tensor("1.5", Some(Datatype::INT64)).expect("a tensor").0, Some("FP64"));
    }

    #[test]
    fn other_values_are_refused() {
        for value in [
            "null",
            "[1,true]",
            "[1,\"a\"]",
            "[[1],[2,3]]",
            "[1,[2]]",
            "[[1],2]",
            "[[],[[]]]",
            "[{}]",
            r#"{"a":1}"#,
            r#"[{"$part":0}]"#,
            r#"{"$part":2}"#,
            "18446744073709551616",
        ] {
            assert!(tensor(value, None).is_err(), "{value}");
        }
        let deep = "[".repeat(65) + &"]".repeat(65);
        assert!(tensor(&deep, None).is_err());
        assert_eq!(tensor(&deep[1..129], None).expect("a tensor").1.len(), 64);
    }
}
