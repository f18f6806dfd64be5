//! Makes the Python objects of a pickle.

use std::os::raw::c_char;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi as raw;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFrozenSet, PyInt, PyList, PyMemoryView, PySet,
    PyString, PyTuple,
};
use ucall_pickle::{Budget, Builder, Error, Hash, Made};

use super::error::{Refused, because};
use super::names::{Global, Known, Placeholder};
use super::numpy::is_memory;
use super::objects::{Built, Objects, Pending};
use super::{instances, names, numpy, values};
use crate::ffi;

/// Integers of more bytes and Decimals of more characters count as long.
const LONG_INTEGER_BYTES: usize = 128;
const LONG_DECIMAL_CHARACTERS: usize = 512;

impl<'py> Builder for Objects<'_, 'py> {
    type Object = Bound<'py, PyAny>;
    type Global = Global<'py>;
    type Pending = Pending<'py>;
    type Error = Refused;

    #[inline]
    fn none(&mut self) -> Self::Object {
        self.py.None().into_bound(self.py)
    }

    fn boolean(&mut self, value: bool) -> Self::Object {
        PyBool::new(self.py, value).to_owned().into_any()
    }

    #[inline]
    fn integer(&mut self, value: i64) -> Built<'py> {
        Ok(ffi::integer(self.py, value)?)
    }

    fn long(&mut self, bytes: &[u8]) -> Built<'py> {
        if bytes.len() <= size_of::<i64>() {
            let sign = if bytes.last().is_some_and(|&last| last >= 0x80) { 0xff } else { 0 };
            let mut whole = [sign; size_of::<i64>()];
            if let Some(low) = whole.get_mut(..bytes.len()) {
                low.copy_from_slice(bytes);
            }
            return self.integer(i64::from_le_bytes(whole));
        }
        self.has_long_number |= bytes.len() > LONG_INTEGER_BYTES;
        let keywords = PyDict::new(self.py);
        keywords.set_item("signed", true)?;
        let from_bytes = self.py.get_type::<PyInt>().getattr("from_bytes")?;
        Ok(from_bytes.call((PyBytes::new(self.py, bytes), "little"), Some(&keywords))?)
    }

    fn float(&mut self, value: f64) -> Built<'py> {
        Ok(ffi::float(self.py, value)?)
    }

    #[inline]
    fn text(&mut self, utf8: &[u8]) -> Built<'py> {
        let (start, length) = (utf8.as_ptr().cast::<c_char>(), utf8.len() as raw::Py_ssize_t);
        // SAFETY: `utf8` is valid for `length` bytes, and the error handler's name ends with NUL.
        self.owned(unsafe { raw::PyUnicode_DecodeUTF8(start, length, c"surrogatepass".as_ptr()) })
    }

    fn bytes(&mut self, bytes: &[u8]) -> Built<'py> {
        let (start, length) = (bytes.as_ptr().cast::<c_char>(), bytes.len() as raw::Py_ssize_t);
        // SAFETY: `bytes` is valid for `length` bytes.
        self.owned(unsafe { raw::PyBytes_FromStringAndSize(start, length) })
    }

    fn byte_array(&mut self, bytes: &[u8]) -> Built<'py> {
        Ok(PyByteArray::new(self.py, bytes).into_any())
    }

    fn next_buffer(&mut self) -> Built<'py> {
        let buffer = self.buffers.get_item(self.buffers_taken);
        self.buffers_taken += 1;
        let buffer =
            buffer.map_err(|_| because("the message has fewer buffers than its pickle reads"))?;
        if is_memory(&buffer) { Ok(buffer) } else { Ok(PyMemoryView::from(&buffer)?.into_any()) }
    }

    fn read_only(&mut self, buffer: Self::Object) -> Built<'py> {
        if !is_memory(&buffer) {
            return Err(because("a buffer is expected, but the object has no buffer"));
        }
        let view = PyMemoryView::from(&buffer)?;
        Ok(view.call_method0("toreadonly")?)
    }

    fn tuple(&mut self, items: impl ExactSizeIterator<Item = Self::Object>) -> Built<'py> {
        Ok(PyTuple::new(self.py, items)?.into_any())
    }

    fn frozen_set(&mut self, members: impl ExactSizeIterator<Item = Self::Object>) -> Built<'py> {
        Ok(PyFrozenSet::new(self.py, members)?.into_any())
    }

    fn list(&mut self) -> Built<'py> {
        Ok(PyList::empty(self.py).into_any())
    }

    fn dict(&mut self) -> Built<'py> {
        Ok(PyDict::new(self.py).into_any())
    }

    fn set(&mut self) -> Built<'py> {
        Ok(PySet::empty(self.py)?.into_any())
    }

    fn append(
        &mut self,
        to: &Self::Object,
        items: impl ExactSizeIterator<Item = Self::Object>,
    ) -> Result<(), Refused> {
        match to.cast_exact::<PyList>() {
            Ok(list) => items.into_iter().try_for_each(|item| Ok(list.append(item)?)),
            Err(_) => instances::append(to, items),
        }
    }

    #[inline(always)]
    fn set_item(
        &mut self,
        of: &Self::Object,
        key: Self::Object,
        value: Self::Object,
    ) -> Result<(), Refused> {
        match of.cast_exact::<PyDict>() {
            Ok(dict) => {
                let (dict, key, value) = (dict.as_ptr(), key.as_ptr(), value.as_ptr());
                // SAFETY: all three objects are alive, and the call takes its own references.
                match unsafe { raw::PyDict_SetItem(dict, key, value) } {
                    0 => Ok(()),
                    _ => Err(PyErr::fetch(self.py).into()),
                }
            }
            Err(_) => Ok(of.set_item(key, value)?),
        }
    }

    fn add(&mut self, to: &Self::Object, member: Self::Object) -> Result<(), Refused> {
        Ok(to.cast::<PySet>().map_err(PyErr::from)?.add(member)?)
    }

    fn set_state(
        &mut self,
        of: &Self::Object,
        state: &Self::Object,
        _budget: &mut Budget,
    ) -> Result<(), Refused> {
        instances::set_state(of, state)
    }

    fn global(
        &mut self,
        module: &Self::Object,
        name: &Self::Object,
    ) -> Result<Global<'py>, Refused> {
        let text = |object: &Self::Object| match object.cast_exact::<PyString>() {
            Ok(text) => Ok(text.clone()),
            Err(_) => Err(because("a module or name is not a str")),
        };
        names::resolve(self, &text(module)?, &text(name)?)
    }

    fn value_of(&mut self, global: &Global<'py>) -> Result<Option<Self::Object>, Refused> {
        Ok(match global {
            Global::Class(found) | Global::Function(found) | Global::Value(found) => {
                Some(found.clone())
            }
            // The table defines the call; only the program can allow the name as a value.
            Global::Known(_, (module, name)) | Global::Exception(_, (module, name)) => {
                match self.find(&module.to_cow()?, &name.to_cow()?) {
                    Ok(found) => Some(found),
                    Err(refused) if refused.ends_the_program(self.py) => return Err(refused),
                    Err(_) => None,
                }
            }
            Global::ZoneInfoByKey => None,
        })
    }

    fn argument_of(&mut self, global: &Global<'py>) -> Built<'py> {
        match global {
            Global::Known(known @ (Known::NumpyArrayClass | Known::ZoneInfo), _) => {
                Ok(Bound::new(self.py, Placeholder(*known))?.into_any())
            }
            _ => Err(Error::NotValue.into()),
        }
    }

    fn takes_globals(&self, global: &Global<'py>) -> bool {
        matches!(global, Global::Known(Known::NumpyReconstruct | Known::GetAttr, _))
    }

    fn call(
        &mut self,
        global: &Global<'py>,
        arguments: &Self::Object,
        values: u32,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Refused> {
        let arguments = arguments.cast_exact::<PyTuple>().map_err(PyErr::from)?;
        match global {
            Global::Known(known, _) if known.is_of_numpy() => {
                numpy::call(self, *known, arguments, values, budget)
            }
            Global::Known(known, _) => {
                if *known == Known::Decimal {
                    let text = arguments.get_item(0).ok();
                    let characters = text.map_or(Ok(0), |text| text.len())?;
                    self.has_decimal = true;
                    self.has_long_number |= characters > LONG_DECIMAL_CHARACTERS;
                }
                values::call(self, *known, arguments, budget)
            }
            Global::ZoneInfoByKey => values::zone_info(self, arguments, budget),
            Global::Exception(class, _) => values::exception(class, arguments, budget),
            Global::Class(callable) | Global::Function(callable) => {
                instances::call(callable, arguments)
            }
            Global::Value(_) => Err(Error::NotCallable.into()),
        }
    }

    fn instance(
        &mut self,
        global: &Global<'py>,
        arguments: &Self::Object,
        keywords: Option<&Self::Object>,
        _budget: &mut Budget,
    ) -> Result<Made<Self>, Refused> {
        let arguments = arguments.cast_exact::<PyTuple>().map_err(PyErr::from)?;
        let keywords = match keywords {
            Some(keywords) => Some(keywords.cast_exact::<PyDict>().map_err(PyErr::from)?),
            None => None,
        };
        match global {
            Global::Known(Known::Uuid, _) if arguments.is_empty() && keywords.is_none() => {
                Ok(values::made(ucall_pickle::Product::Pending(Pending::Uuid)))
            }
            Global::Class(class) => instances::new(class, arguments, keywords),
            _ => Err(Error::NotCallable.into()),
        }
    }

    fn complete(
        &mut self,
        pending: Pending<'py>,
        state: &Self::Object,
        values: u32,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Refused> {
        match pending {
            Pending::Uuid => values::uuid(self, state),
            Pending::Dtype(name) => numpy::dtype_of_state(self, &name, state, values, budget),
            Pending::Array => numpy::array_of_state(self, state, values, budget),
        }
    }

    fn persistent(&mut self, id: &Self::Object) -> Built<'py> {
        match self.persistent_load {
            Some(load) => Ok(ffi::call(load, [id])?),
            None => Err(because("a persistent id is refused without PickleSerializer(load=...)")),
        }
    }

    #[inline(always)]
    fn hash(&mut self, key: &Self::Object) -> Result<Hash, Refused> {
        if key.is_exact_instance_of::<PyString>() {
            return Ok(Hash::Distinct);
        }
        hash_of(key)
    }

    fn before_comparing(&mut self) -> Result<(), Refused> {
        // CPython converts an integer to compare it with a Decimal, in quadratic time.
        match self.has_decimal && self.has_long_number {
            true => Err(because("long numbers and Decimals are refused as keys of one hash")),
            false => Ok(()),
        }
    }

    fn pause(&mut self) -> Result<(), Refused> {
        self.py.detach(|| ());
        Ok(self.py.check_signals()?)
    }
}

/// CPython hashes an integer to its remainder modulo this number.
const HASH_MODULUS: i64 = (1 << 61) - 1;

#[inline(never)]
fn hash_of(key: &Bound<'_, PyAny>) -> Result<Hash, Refused> {
    if let Ok(int) = key.cast_exact::<PyInt>() {
        let value = ffi::small_integer(int);
        // Below the modulus only -1 and -2 share a hash.
        if value.is_some_and(|value| -HASH_MODULUS < value && value < HASH_MODULUS) {
            return Ok(Hash::Distinct);
        }
    }
    // Hashed with a secret key, or too few values to collide.
    if key.is_exact_instance_of::<PyBytes>()
        || key.is_none()
        || key.is_exact_instance_of::<PyBool>()
    {
        return Ok(Hash::Distinct);
    }
    if key.is_instance_of::<PyList>() || key.is_instance_of::<PyDict>() {
        return Err(PyTypeError::new_err("a key or member is not hashable").into());
    }
    Ok(Hash::Shared(key.hash()? as i64))
}
