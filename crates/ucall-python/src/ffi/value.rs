//! Classifies objects by the JSON that they become.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// An object by the JSON that it becomes. Objects of subclasses count as their base.
pub(crate) enum Value<'a, 'py> {
    None,
    Bool(bool),
    Int(&'a Bound<'py, PyInt>),
    Float(&'a Bound<'py, PyFloat>),
    /// A float of a derived class, as `numpy.float64`.
    DerivedFloat(&'a Bound<'py, PyFloat>),
    Text(&'a Bound<'py, PyString>),
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
    Dict(&'a Bound<'py, PyDict>),
    Bytes(&'a Bound<'py, PyBytes>),
    /// A `bytearray` or `memoryview`.
    Buffer,
    Other,
}

impl<'a, 'py> Value<'a, 'py> {
    /// Classifies an object by its address or its type's flags, without a call.
    #[inline]
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> Self {
        let pointer = object.as_ptr();
        // SAFETY: the object and its type are alive; the singletons are the interpreter's own. Each
        // cast is to the type that was just checked.
        unsafe {
            if ffi::PyLong_CheckExact(pointer) != 0 {
                Self::Int(object.cast_unchecked())
            } else if ffi::PyUnicode_Check(pointer) != 0 {
                Self::Text(object.cast_unchecked())
            } else if pointer == ffi::Py_None() {
                Self::None
            } else if pointer == ffi::Py_True() {
                Self::Bool(true)
            } else if pointer == ffi::Py_False() {
                Self::Bool(false)
            } else if ffi::PyFloat_CheckExact(pointer) != 0 {
                Self::Float(object.cast_unchecked())
            } else if ffi::PyDict_Check(pointer) != 0 {
                Self::Dict(object.cast_unchecked())
            } else if ffi::PyList_Check(pointer) != 0 {
                Self::List(object.cast_unchecked())
            } else if ffi::PyTuple_Check(pointer) != 0 {
                Self::Tuple(object.cast_unchecked())
            } else {
                Self::of_general(object)
            }
        }
    }

    #[cold]
    fn of_general(object: &'a Bound<'py, PyAny>) -> Self {
        let pointer = object.as_ptr();
        // SAFETY: as above.
        unsafe {
            if ffi::PyBytes_Check(pointer) != 0 {
                Self::Bytes(object.cast_unchecked())
            } else if ffi::PyByteArray_Check(pointer) != 0 || ffi::PyMemoryView_Check(pointer) != 0
            {
                Self::Buffer
            } else if ffi::PyLong_Check(pointer) != 0 {
                Self::Int(object.cast_unchecked())
            } else if ffi::PyFloat_Check(pointer) != 0 {
                Self::DerivedFloat(object.cast_unchecked())
            } else {
                Self::Other
            }
        }
    }
}

/// The name of an object's type, for messages.
#[cold]
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    match object.get_type().fully_qualified_name() {
        Ok(name) => name.to_string(),
        Err(_) => "object".to_owned(),
    }
}
