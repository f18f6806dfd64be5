//! Writes Python values as JSON, straight into the reply.

use std::borrow::Borrow;
use std::mem;

use bytes::Bytes;
use pyo3::exceptions::{PyException, PyTypeError, PyUnicodeEncodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyString, PyType};
use pyo3::{Borrowed, intern};
use ucall_proto::arrays::{Tensor, npy};
use ucall_proto::json::{write_f64, write_i64, write_string};
use ucall_proto::{ResultFormat, ResultPart};

use super::array_results::{self, ArrayLike, ArrayResults, contiguous, tensor_of};
use super::{ConversionFault, PartMemory, base64, lists};
use crate::errors::Unwritable;
use crate::ffi::{self, Array, Imported, Memory, NumPy, Value};

/// The nesting limit of lists and dicts, the same as for requests. It ends cycles too.
const NESTING_MAX: usize = 128;

/// Enough for most headers of `.npy` files.
const HEADER_ROOM: usize = 128;

/// Capacity to keep after a long string.
const TAIL_ROOM: usize = 64;

type Written = Result<(), ConversionFault>;

/// Appends `object` to `out`, which may grow to `len_max` bytes.
///
/// None, bool, int, float, str, list, tuple and dict are written as the `json` module does it, and
/// so are objects of classes derived from them; bytes, bytearray and memoryview as base64.
#[inline]
pub(crate) fn write(out: &mut Vec<u8>, len_max: usize, object: &Bound<'_, PyAny>) -> Written {
    write_results(out, len_max, object, None, &mut Results::default())
}

/// As `write`, but calls `default` with an object that JSON does not have, and writes what it
/// returns.
#[inline]
pub(crate) fn write_with<'py>(
    out: &mut Vec<u8>,
    len_max: usize,
    object: &Bound<'py, PyAny>,
    default: &Bound<'py, PyAny>,
) -> Written {
    write_results(out, len_max, object, Some(default), &mut Results::default())
}

/// As `write_with`, with arrays and bytes in the format of `results`, which takes the parts that
/// the text refers to.
#[inline]
pub(crate) fn write_results<'py>(
    out: &mut Vec<u8>,
    len_max: usize,
    object: &Bound<'_, PyAny>,
    default: Option<&Bound<'py, PyAny>>,
    results: &mut Results,
) -> Written {
    if let Ok(int) = object.cast_exact::<PyInt>()
        && let Some(value) = ffi::small_integer(int)
    {
        write_i64(out, value);
        return Ok(());
    }
    write_general(out, len_max, object, default, results)
}

#[inline(never)]
fn write_general<'py>(
    out: &mut Vec<u8>,
    len_max: usize,
    object: &Bound<'_, PyAny>,
    default: Option<&Bound<'py, PyAny>>,
    results: &mut Results,
) -> Written {
    let (start, parts) = (out.len(), results.parts.len());
    let mut writer = Writer { out, len_max, default, nesting_left: NESTING_MAX, results };
    let written = writer.general_value(object);
    // The caller could not tell such an object from a part. A client sees to that by itself.
    let has_mark = !results.borrows && mem::take(&mut results.has_mark);
    let is_ambiguous = has_mark && results.parts.len() > parts;
    if written.is_err() || is_ambiguous {
        results.parts.truncate(parts);
    }
    if is_ambiguous {
        out.truncate(start);
        return write_general(out, len_max, object, default, &mut Results::default());
    }
    written
}

/// How arrays and bytes are written, and the parts that were written beside a text.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) format: ResultFormat,
    pub(crate) parts: Vec<ResultPart>,
    /// Whether large arrays are sent from where they lie even if other code has references to them:
    /// the caller waits until they were sent.
    pub(crate) borrows: bool,
    /// Whether there were binary values, in any format.
    pub(crate) has_binary: bool,
    /// Whether an object of the program looks like one that stands for a part.
    pub(crate) has_mark: bool,
}

/// Bytes and arrays of this length are sent from where they lie, if they cannot change meanwhile.
const SHARED_BYTES_MIN: usize = 64 << 10;

struct Writer<'a, 'py> {
    out: &'a mut Vec<u8>,
    len_max: usize,
    /// Called with objects that JSON does not have.
    default: Option<&'a Bound<'py, PyAny>>,
    nesting_left: usize,
    results: &'a mut Results,
}

impl<'py> Writer<'_, 'py> {
    #[inline(always)]
    fn value(&mut self, object: &Bound<'_, PyAny>) -> Written {
        if let Ok(int) = object.cast_exact::<PyInt>()
            && let Some(value) = ffi::small_integer(int)
        {
            write_i64(self.out, value);
            return Ok(());
        }
        self.general_value(object)
    }

    #[inline(never)]
    fn general_value(&mut self, object: &Bound<'_, PyAny>) -> Written {
        match Value::of(object) {
            Value::Int(int) => self.integer(int),
            Value::Text(text) => self.string(text),
            Value::None => self.literal(b"null"),
            Value::Bool(true) => self.literal(b"true"),
            Value::Bool(false) => self.literal(b"false"),
            Value::Float(float) => self.float(float.value()),
            Value::List(list) => self.items(list.iter()),
            // Its items may have no other reference; others can change them by way of the tuple.
            Value::Tuple(tuple) if ffi::has_one_reference(tuple) => {
                self.items(tuple.as_slice().iter())
            }
            Value::Tuple(tuple) => self.items(tuple.iter()),
            Value::Dict(dict) => self.dict(dict),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::Buffer => self.buffer(object),
            Value::DerivedFloat(float) => match self.scalar(object)? {
                Some(array) => self.array_like(&array),
                None => self.float(float.value()),
            },
            Value::Other => self.other(object),
        }
    }

    /// The array of a NumPy scalar that is the result of a function of arrays.
    #[cold]
    fn scalar<'a>(&self, object: &Bound<'a, PyAny>) -> PyResult<Option<Bound<'a, PyAny>>> {
        static SCALAR: Imported<PyType> = Imported::new("numpy", "generic");
        static FUNCTION: Imported<PyAny> = Imported::new("numpy", "asarray");
        let py = object.py();
        let is_result = self.nesting_left == NESTING_MAX
            && self.default.is_some_and(|it| it.is_exact_instance_of::<ArrayResults>())
            && NumPy::imported(py)?.is_some()
            && object.is_instance(SCALAR.get(py)?)?;
        is_result.then(|| ffi::call(FUNCTION.get(py)?, [object])).transpose()
    }

    #[cold]
    fn other(&mut self, object: &Bound<'_, PyAny>) -> Written {
        let py = object.py();
        if !array_results::are_registered()
            && let Some(numpy) = NumPy::imported(py)?
            && let Some(array) = numpy.array(object)
        {
            return self.array(array);
        }
        if let Some(array) = self.scalar(object)? {
            return self.array_like(&array);
        }
        if let Ok(like) = object.cast::<ArrayLike>() {
            return self.array_like(like.get().object.bind(py));
        }
        let other = self.encode_default(object)?;
        // An object that is replaced without end stops at the nesting limit.
        self.enter_nesting()?;
        self.value(&other)?;
        self.nesting_left += 1;
        Ok(())
    }

    /// Calls `default` with an object that JSON does not have.
    fn encode_default(
        &self,
        object: &Bound<'_, PyAny>,
    ) -> Result<Bound<'py, PyAny>, ConversionFault> {
        let Some(default) = self.default else {
            let name = ffi::type_name(object);
            return Err(ConversionFault::value(format!("{name} cannot be written as JSON")));
        };
        let py = default.py();
        ffi::call(default, [object]).map_err(|error| match error.is_instance_of::<Unwritable>(py) {
            true => ConversionFault::value(error.value(py).to_string()),
            false => error.into(),
        })
    }

    fn literal(&mut self, text: &[u8]) -> Written {
        self.out.extend_from_slice(text);
        Ok(())
    }

    #[inline]
    fn integer(&mut self, int: &Bound<'_, PyInt>) -> Written {
        match ffi::small_integer(int) {
            Some(value) => write_i64(self.out, value),
            None => self.large_integer(int)?,
        }
        Ok(())
    }

    #[cold]
    fn large_integer(&mut self, int: &Bound<'_, PyInt>) -> Written {
        let digits = ffi::decimal(int).map_err(|error| {
            explain::<PyValueError>(int.py(), error, "an int of too many digits")
        })?;
        self.literal(digits.cast::<PyString>().map_err(PyErr::from)?.to_str()?.as_bytes())
    }

    fn float(&mut self, value: f64) -> Written {
        match write_f64(self.out, value) {
            true => Ok(()),
            false => Err(ConversionFault::value(format!("{value} cannot be written as JSON"))),
        }
    }

    #[inline]
    fn string(&mut self, text: &Bound<'_, PyString>) -> Written {
        let utf8 = text.to_str().map_err(|error| {
            explain::<PyUnicodeEncodeError>(text.py(), error, "a str with a lone surrogate")
        })?;
        self.fits(utf8.len())?;
        write_string(self.out, utf8);
        Ok(())
    }

    fn bytes(&mut self, bytes: &Bound<'_, PyBytes>) -> Written {
        let items = bytes.as_bytes();
        if self.results.format != ResultFormat::Parts {
            return self.base64(items);
        }
        self.part(None, items.len(), || match items.len() < SHARED_BYTES_MIN {
            true => Bytes::copy_from_slice(items),
            // Bytes never change.
            false => ffi::shared_bytes(bytes.as_any(), items),
        })
    }

    fn base64(&mut self, bytes: &[u8]) -> Written {
        self.open_base64(bytes.len())?;
        base64::encode(self.out, bytes);
        self.out.push(b'"');
        Ok(())
    }

    /// Writes an array, a tensor of another library, or a buffer.
    fn array_like(&mut self, object: &Bound<'_, PyAny>) -> Written {
        let py = object.py();
        if let Some(array) = NumPy::imported(py)?.and_then(|numpy| numpy.array(object)) {
            return self.array(array);
        }
        let written = match ffi::is_tensor(object)? {
            true => ffi::with_dlpack(object, |tensor, items, owner| {
                self.tensor(tensor, items, || owner.map(|owner| ffi::shared_bytes(owner, items)))
            }),
            false => ffi::with_memory(object, |memory, items| match memory {
                Memory::Array(tensor) => self.tensor(tensor, items, || {
                    ffi::shared_buffer(object, SHARED_BYTES_MIN).ok().flatten()
                }),
                Memory::Bytes => self.buffer(object),
            }),
        };
        written.map_err(|error| match error.is_instance_of::<PyException>(py) {
            true => ConversionFault::value(error.value(py).to_string()),
            false => error.into(),
        })?
    }

    /// Writes items that may change once this call has returned. `shared` are the items where they
    /// lie, if they lie one after another.
    fn tensor(
        &mut self,
        tensor: Tensor,
        items: &[u8],
        shared: impl FnOnce() -> Option<Bytes>,
    ) -> Written {
        match self.results.format {
            ResultFormat::Json => self.file(&tensor, items),
            ResultFormat::Parts => {
                let is_shared = self.results.borrows && items.len() >= SHARED_BYTES_MIN;
                self.part(Some(tensor), items.len(), || match is_shared.then(shared).flatten() {
                    Some(items) => items,
                    None => Bytes::copy_from_slice(items),
                })
            }
            ResultFormat::Lists if lists::can_write(tensor.dtype) => {
                lists::write(self.out, self.len_max, &tensor, items)
            }
            ResultFormat::Lists => {
                let name = tensor.dtype.name();
                let problem = format!("a tensor of {name} cannot be written as lists");
                Err(ConversionFault::value(problem))
            }
        }
    }

    /// Writes a `.npy` file in base64.
    fn file(&mut self, tensor: &Tensor, items: &[u8]) -> Written {
        let mut header = Vec::with_capacity(HEADER_ROOM);
        npy::write_header(&mut header, tensor);
        self.open_base64(header.len() + items.len())?;
        base64::encode_both(self.out, &header, items);
        self.out.push(b'"');
        Ok(())
    }

    fn array(&mut self, array: Array<'_, '_>) -> Written {
        let object = array.object();
        let Some(tensor) = tensor_of(array)? else {
            let copy = contiguous(object)?;
            return self.array_like(&copy);
        };
        let items = array.bytes(&tensor);
        match self.results.format {
            ResultFormat::Json => self.file(&tensor, items),
            ResultFormat::Parts => {
                let is_shared = items.len() >= SHARED_BYTES_MIN
                    && (self.results.borrows || is_exclusive(array));
                self.part(Some(tensor), items.len(), || match is_shared {
                    true => ffi::shared_bytes(object, items),
                    false => Bytes::copy_from_slice(items),
                })
            }
            ResultFormat::Lists => self.nested_lists(array, &tensor, items),
        }
    }

    /// Writes what stands for a part, and adds the part.
    fn part(
        &mut self,
        tensor: Option<Tensor>,
        len: usize,
        bytes: impl FnOnce() -> Bytes,
    ) -> Written {
        self.results.has_binary = true;
        self.fits(len)?;
        // The limit is that of the text and all parts together.
        self.len_max -= len;
        self.out.extend_from_slice(br#"{"$part":"#);
        write_i64(self.out, self.results.parts.len() as i64);
        self.out.push(b'}');
        self.results.parts.push(ResultPart { tensor, bytes: bytes() });
        Ok(())
    }

    fn nested_lists(&mut self, array: Array<'_, '_>, tensor: &Tensor, items: &[u8]) -> Written {
        if tensor.is_fortran || !lists::can_write(tensor.dtype) {
            let copy = lists::plain_copy(array.object(), tensor.dtype)?;
            let kept = NumPy::get(copy.py())?.array(&copy);
            let Some((array, tensor)) = kept.and_then(|it| Some((it, tensor_of(it).ok()??))) else {
                return Err(ConversionFault::value("the array cannot be written as lists"));
            };
            return lists::write(self.out, self.len_max, &tensor, array.bytes(&tensor));
        }
        lists::write(self.out, self.len_max, tensor, items)
    }

    /// Starts a base64 string of that many bytes, and reserves capacity for it and the end of the
    /// reply, so that a long output does not move for its last byte.
    fn open_base64(&mut self, bytes: usize) -> Written {
        let len = base64::encoded_len(bytes);
        self.results.has_binary = true;
        self.fits(len)?;
        self.out.reserve(len.saturating_add(TAIL_ROOM));
        self.out.push(b'"');
        Ok(())
    }

    fn buffer(&mut self, object: &Bound<'_, PyAny>) -> Written {
        let is_part = self.results.format == ResultFormat::Parts;
        if is_part
            && self.results.borrows
            && let Ok(Some(bytes)) = ffi::shared_buffer(object, SHARED_BYTES_MIN)
        {
            return self.part(None, bytes.len(), || bytes);
        }
        let written = ffi::with_items(object, |bytes| match is_part {
            true => self.part(None, bytes.len(), || Bytes::copy_from_slice(bytes)),
            false => self.base64(bytes),
        });
        match written {
            Ok(written) => written,
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                Err(ConversionFault::value(error.value(object.py()).to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn items<'a>(&mut self, items: impl Iterator<Item: Borrow<Bound<'a, PyAny>>>) -> Written {
        self.open(b'[')?;
        for (index, item) in items.enumerate() {
            self.separate(index)?;
            let item = item.borrow();
            // Long lists are mostly of floats.
            if let Ok(float) = item.cast_exact::<PyFloat>()
                && write_f64(self.out, float.value())
            {
                continue;
            }
            self.value(item).map_err(|fault| fault.at_index(index))?;
        }
        self.close(b']')
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>) -> Written {
        self.open(b'{')?;
        if self.results.format == ResultFormat::Parts && dict.len() == 1 {
            let value = dict.get_item(intern!(dict.py(), "$part"))?;
            self.results.has_mark |= value.is_some_and(|it| {
                it.extract::<i64>().map_or(!it.is_instance_of::<PyString>(), |index| index >= 0)
            });
        }
        if dict.is_exact_instance_of::<PyDict>() {
            for (index, (key, value)) in ffi::members(dict).enumerate() {
                self.member(index, &key, &value)?;
            }
        } else {
            // A subclass may have an order of its own, as OrderedDict has.
            for (index, item) in dict.as_mapping().items()?.iter().enumerate() {
                let (key, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
                self.member(index, &key, &value)?;
            }
        }
        self.close(b'}')
    }

    fn member(
        &mut self,
        index: usize,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> Written {
        self.separate(index)?;
        let start = self.out.len();
        self.key(key, true)?;
        let end = self.out.len();
        self.out.push(b':');
        self.value(value).map_err(|fault| {
            let name = self.out.get(start + 1..end.saturating_sub(1)).unwrap_or_default();
            fault.at_key(name)
        })
    }

    /// Keys that are numbers or bools become strings, as in the `json` module.
    #[inline]
    fn key(&mut self, key: &Bound<'_, PyAny>, may_be_replaced: bool) -> Written {
        match Value::of(key) {
            Value::Text(text) => self.string(text),
            Value::Int(int) => {
                self.out.push(b'"');
                self.integer(int)?;
                self.literal(b"\"")
            }
            Value::Bool(true) => self.literal(b"\"true\""),
            Value::Bool(false) => self.literal(b"\"false\""),
            Value::Other if may_be_replaced && self.default.is_some() => {
                let other = self.encode_default(key)?;
                self.key(&other, false)
            }
            _ => {
                let name = ffi::type_name(key);
                Err(ConversionFault::value(format!(
                    "a key of type {name} cannot be written as JSON"
                )))
            }
        }
    }

    #[inline]
    fn open(&mut self, bracket: u8) -> Written {
        self.enter_nesting()?;
        self.out.push(bracket);
        Ok(())
    }

    #[inline]
    fn enter_nesting(&mut self) -> Written {
        let Some(left) = self.nesting_left.checked_sub(1) else {
            return Err(ConversionFault::value(format!("nests deeper than {NESTING_MAX} levels")));
        };
        self.nesting_left = left;
        Ok(())
    }

    #[inline]
    fn close(&mut self, bracket: u8) -> Written {
        self.nesting_left += 1;
        self.out.push(bracket);
        Ok(())
    }

    #[inline]
    fn separate(&mut self, index: usize) -> Written {
        if index > 0 {
            self.fits(1)?;
            self.out.push(b',');
        }
        Ok(())
    }

    /// Checks the limit before `more` bytes are written.
    #[inline]
    fn fits(&self, more: usize) -> Written {
        match self.out.len().saturating_add(more) > self.len_max {
            true => Err(ConversionFault::TooLarge),
            false => Ok(()),
        }
    }
}

/// Whether nothing but the caller refers to an array and to its memory, which is its own, or that
/// of a param.
fn is_exclusive(array: Array<'_, '_>) -> bool {
    let is_of_param = |base: Borrowed<'_, '_, PyAny>| {
        base.cast_exact::<PartMemory>().is_ok_and(|memory| memory.get().has_one_view())
            && ffi::has_one_reference(&base)
    };
    array.is_unshared() && (array.owns_memory() || array.base().is_some_and(is_of_param))
}

/// An exception of that type means that a value cannot be written; others propagate.
#[cold]
fn explain<T: pyo3::PyTypeInfo>(py: Python<'_>, error: PyErr, message: &str) -> ConversionFault {
    match error.is_instance_of::<T>(py) {
        true => ConversionFault::value(format!("{message} cannot be written as JSON")),
        false => error.into(),
    }
}
