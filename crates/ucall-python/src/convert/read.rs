//! Builds Python values from validated JSON text.

use std::ffi::CStr;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMemoryView};
use ucall_proto::json::{Number, Reader, Text, ValueKind};
use ucall_proto::{MemoryBudget, POOLED_BYTES_MIN, Parts};

use super::{ConversionFault, Convert, base64};
use crate::ffi::{self, BytesType};

/// Lists of floats seldom have fewer.
const FLOATS_ROOM: usize = 64;

type Built<'py> = Result<Bound<'py, PyAny>, ConversionFault>;

/// The text to read values from, and memory for building them.
pub(crate) struct Input<'text, 'scratch, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) reader: Reader<'text>,
    pub(super) scratch: &'scratch mut Scratch,
}

/// What one reader of values has after another, beside their text.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Memory for strings while their escapes are decoded.
    unescaped: Vec<u8>,
    /// The binary parts of the document, which values may refer to.
    pub(crate) parts: Option<Arc<Parts>>,
    /// What has memory for large values; `None` where calls are few.
    budget: Option<MemoryBudget>,
}

impl Scratch {
    /// For the calls of a worker.
    pub(crate) fn new(budget: &MemoryBudget) -> Self {
        Self { budget: Some(budget.clone()), ..Self::default() }
    }

    /// For one text, which may refer to these parts.
    pub(crate) fn of_parts(parts: Option<Arc<Parts>>) -> Self {
        Self { parts, ..Self::default() }
    }

    /// What has memory for a value of this length, if that is large.
    #[inline]
    pub(super) fn budget_for(&self, bytes: usize) -> Option<MemoryBudget> {
        self.budget.as_ref().filter(|_| bytes >= POOLED_BYTES_MIN).cloned()
    }
}

impl<'text, 'scratch, 'py> Input<'text, 'scratch, 'py> {
    #[inline]
    pub(crate) fn new(py: Python<'py>, text: &'text [u8], scratch: &'scratch mut Scratch) -> Self {
        Self { py, reader: Reader::new(text), scratch }
    }

    /// The decoded bytes of a string, in UTF-8.
    #[inline]
    pub(crate) fn unescaped<'a>(&'a mut self, text: Text<'text>) -> &'a [u8]
    where
        'text: 'a,
    {
        if !text.is_escaped() {
            return text.raw();
        }
        let unescaped = &mut self.scratch.unescaped;
        unescaped.clear();
        text.unescape_into(unescaped);
        unescaped
    }

    /// Reads the next value by `convert`.
    #[inline(always)]
    pub(crate) fn read(&mut self, convert: &Convert) -> Built<'py> {
        if matches!(convert, Convert::Int)
            && let Some(value) = self.reader.short_integer()
        {
            return Ok(ffi::integer(self.py, value)?);
        }
        self.read_general(convert)
    }

    #[inline(never)]
    fn read_general(&mut self, convert: &Convert) -> Built<'py> {
        match (convert, self.reader.kind()) {
            (Convert::Int, ValueKind::Number) => self.integer(convert),
            (Convert::Any, kind) => self.any(kind),
            (Convert::Float, ValueKind::Number) => {
                let number = self.reader.number();
                self.float(number)
            }
            (Convert::Str, ValueKind::String) => self.string(),
            (Convert::Bool, ValueKind::Bool) => Ok(self.boolean()),
            (Convert::Bytes, ValueKind::String) => self.bytes(BytesType::Bytes),
            (Convert::List(item), ValueKind::Array) if matches!(**item, Convert::Float) => {
                self.floats(item)
            }
            (Convert::List(item), ValueKind::Array) => self.list(item),
            (Convert::Dict(value), ValueKind::Object) => self.dict(value),
            (Convert::Null | Convert::Optional(_), ValueKind::Null) => Ok(self.null()),
            (Convert::ByteArray, ValueKind::String) => self.bytes(BytesType::ByteArray),
            (Convert::MemoryView, ValueKind::String) => self.memory_view(),
            (Convert::Array(array), _) => array.get().read(self),
            (Convert::Custom(custom), _) => custom.read(self),
            (Convert::Optional(inner), _) => self.read(inner).map_err(|fault| fault.or_none(inner)),
            (Convert::Bytes | Convert::ByteArray | Convert::MemoryView, ValueKind::Object) => {
                match self.part_index() {
                    Some(index) => self.part(convert, index),
                    None => Err(wrong(convert, "dict")),
                }
            }
            (_, kind) => Err(wrong(convert, self.kind_name(kind))),
        }
    }

    fn any(&mut self, kind: ValueKind) -> Built<'py> {
        match kind {
            ValueKind::Null => Ok(self.null()),
            ValueKind::Bool => Ok(self.boolean()),
            ValueKind::Number => self.number(),
            ValueKind::String => self.string(),
            ValueKind::Array => self.list(&Convert::Any),
            ValueKind::Object => match self.part_index() {
                Some(index) => self.part(&Convert::Any, index),
                None => self.dict(&Convert::Any),
            },
        }
    }

    fn null(&mut self) -> Bound<'py, PyAny> {
        self.reader.null();
        self.py.None().into_bound(self.py)
    }

    fn boolean(&mut self) -> Bound<'py, PyAny> {
        let value = self.reader.boolean();
        pyo3::types::PyBool::new(self.py, value).to_owned().into_any()
    }

    fn number(&mut self) -> Built<'py> {
        let number = self.reader.number();
        match number.as_i64() {
            Some(value) => Ok(ffi::integer(self.py, value)?),
            None if number.is_integer => self.large_integer(number),
            None => self.float(number),
        }
    }

    #[cold]
    fn integer(&mut self, convert: &Convert) -> Built<'py> {
        let number = self.reader.number();
        match number.as_i64() {
            Some(value) => Ok(ffi::integer(self.py, value)?),
            None if number.is_integer => self.large_integer(number),
            None => Err(wrong(convert, "float")),
        }
    }

    #[cold]
    fn large_integer(&mut self, number: Number<'text>) -> Built<'py> {
        let digits = &mut self.scratch.unescaped;
        digits.clear();
        digits.extend_from_slice(number.text);
        digits.push(0);
        let digits = CStr::from_bytes_until_nul(digits).unwrap_or_default();
        ffi::integer_from_digits(self.py, digits).map_err(|error| {
            match error.is_instance_of::<PyValueError>(self.py) {
                true => ConversionFault::value(format!(
                    "expected int, got {}",
                    too_many_digits(self.py)
                )),
                false => error.into(),
            }
        })
    }

    fn float(&mut self, number: Number<'text>) -> Built<'py> {
        let value = number.as_f64();
        if !value.is_finite() {
            return Err(ConversionFault::value("expected float, got a number out of its range"));
        }
        Ok(ffi::float(self.py, value)?)
    }

    fn string(&mut self) -> Built<'py> {
        let (py, text) = (self.py, self.reader.string());
        Ok(ffi::text(py, self.unescaped(text))?)
    }

    fn bytes(&mut self, memory: BytesType) -> Built<'py> {
        let (py, text) = (self.py, self.reader.string());
        base64::decode(py, memory, self.unescaped(text))?
            .ok_or_else(|| wrong(&Convert::Bytes, "a str that is no base64"))
    }

    fn memory_view(&mut self) -> Built<'py> {
        let bytes = self.bytes(BytesType::Bytes)?;
        Ok(PyMemoryView::from(&bytes)?.into_any())
    }

    fn list(&mut self, item: &Convert) -> Built<'py> {
        let list = PyList::empty(self.py);
        self.reader.enter();
        while self.reader.next_item() {
            let value = self.read(item).map_err(|fault| fault.at_index(list.len()))?;
            list.append(value)?;
        }
        Ok(list.into_any())
    }

    fn floats(&mut self, item: &Convert) -> Built<'py> {
        let mut values = Vec::with_capacity(FLOATS_ROOM);
        self.reader.enter();
        while self.reader.next_item() {
            let value = match self.reader.short_double() {
                Some(value) => ffi::float(self.py, value)?,
                None => self.read(item).map_err(|fault| fault.at_index(values.len()))?,
            };
            values.push(value);
        }
        // A list of known length is made with less work than one that grows.
        Ok(PyList::new(self.py, values)?.into_any())
    }

    /// Of equal keys the last value counts.
    fn dict(&mut self, value: &Convert) -> Built<'py> {
        let dict = PyDict::new(self.py);
        self.reader.enter();
        while let Some(key) = self.reader.next_key() {
            let py = self.py;
            let name = ffi::text(py, self.unescaped(key))?;
            let value = self.read(value).map_err(|fault| fault.at_key(&key.unescaped()))?;
            dict.set_item(name, value)?;
        }
        Ok(dict.into_any())
    }

    /// The Python type that the next value would have.
    #[cold]
    pub(super) fn kind_name(&mut self, kind: ValueKind) -> &'static str {
        match kind {
            ValueKind::Null => "None",
            ValueKind::Bool => "bool",
            ValueKind::Number if self.reader.number().is_integer => "int",
            ValueKind::Number => "float",
            ValueKind::String => "str",
            ValueKind::Array => "list",
            ValueKind::Object => "dict",
        }
    }
}

#[cold]
fn wrong(expected: &Convert, got: &str) -> ConversionFault {
    ConversionFault::value(format!("expected {expected}, got {got}"))
}

#[cold]
fn too_many_digits(py: Python<'_>) -> String {
    let max = py
        .import("sys")
        .and_then(|sys| sys.call_method0("get_int_max_str_digits"))
        .and_then(|max| max.extract::<usize>());
    match max {
        Ok(max) => format!("one of more than {max} digits"),
        Err(_) => "one of too many digits".to_owned(),
    }
}
