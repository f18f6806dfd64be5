//! Converts JSON to Python values and back, without a tree in between.
//!
//! Params are built straight from the text of the request, each by its annotation ([`Convert`]).
//! Results are written straight into the reply ([`write()`]). Errors are [`ConversionFault`]s, with
//! the position and the expected type.

mod array_results;
mod arrays;
mod base64;
mod check;
mod custom;
mod error;
mod lists;
mod parts;
mod read;
mod stacking;
mod unshared;
mod write;

pub(crate) use array_results::{ArrayLike, ArrayResults, encode_array};
pub(crate) use arrays::{ArrayType, array_in, decode_array, part_array, tensor_like};
pub(crate) use base64::encode_both;
pub(crate) use check::{Checked, Faults};
pub(crate) use error::ConversionFault;
pub(crate) use parts::PartMemory;
pub(crate) use read::{Input, Scratch};
pub(crate) use stacking::{stack, tensor_of};
pub(crate) use unshared::is_unshared;
pub(crate) use write::{Results, write, write_results, write_with};

use std::fmt;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use custom::Custom;

/// The conversion of a parameter, by its annotation as `python/ucall/types/annotations.py`
/// describes it.
#[derive(Debug)]
pub(crate) enum Convert {
    /// `Any`, `object`, or no annotation.
    Any,
    /// `None`
    Null,
    Bool,
    Int,
    /// Takes integers too.
    Float,
    Str,
    /// Base64 in a string (RFC 4648 §4, with padding).
    Bytes,
    /// As `Bytes`, but mutable.
    ByteArray,
    /// As `Bytes`, as a view.
    MemoryView,
    List(Box<Convert>),
    /// With keys of type `str`.
    Dict(Box<Convert>),
    /// Also takes `null`.
    Optional(Box<Convert>),
    /// A NumPy array.
    Array(Py<ArrayType>),
    /// Built by Python code.
    Custom(Box<Custom>),
}

impl Convert {
    /// Reads a description: a name, or a tuple of a name and its components.
    pub(crate) fn from_description(description: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(name) = description.cast::<PyString>() {
            return Self::of_name(name.to_str()?);
        }
        let description = description.cast::<PyTuple>()?;
        let (name, inner) = description.extract::<(String, Bound<'_, PyAny>)>()?;
        if name == "array" {
            return Ok(Self::Array(inner.cast_into::<ArrayType>()?.unbind()));
        }
        if name == "custom" {
            return Ok(Self::Custom(Box::new(Custom::from_description(&inner)?)));
        }
        let inner = Box::new(Self::from_description(&inner)?);
        match name.as_str() {
            "list" => Ok(Self::List(inner)),
            "dict" => Ok(Self::Dict(inner)),
            "optional" => Ok(Self::Optional(inner)),
            _ => Err(unknown(&name)),
        }
    }

    /// Whether it may build bytes, or an object of them.
    pub(crate) fn may_take_bytes(&self) -> bool {
        match self {
            Self::Any | Self::Bytes | Self::ByteArray | Self::MemoryView | Self::Custom(_) => true,
            Self::Null | Self::Bool | Self::Int | Self::Float | Self::Str | Self::Array(_) => false,
            Self::List(inner) | Self::Dict(inner) | Self::Optional(inner) => inner.may_take_bytes(),
        }
    }

    /// Whether Python code of a program builds the value, or a part of it.
    pub(crate) fn runs_code(&self) -> bool {
        match self {
            Self::Custom(_) => true,
            Self::List(inner) | Self::Dict(inner) | Self::Optional(inner) => inner.runs_code(),
            _ => false,
        }
    }

    fn of_name(name: &str) -> PyResult<Self> {
        Ok(match name {
            "any" => Self::Any,
            "none" => Self::Null,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "float" => Self::Float,
            "str" => Self::Str,
            "bytes" => Self::Bytes,
            "bytearray" => Self::ByteArray,
            "memoryview" => Self::MemoryView,
            _ => return Err(unknown(name)),
        })
    }
}

fn unknown(name: &str) -> PyErr {
    PyTypeError::new_err(format!("unknown conversion {name:?}"))
}

/// Writes the type as in an annotation.
impl fmt::Display for Convert {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => out.write_str("any value"),
            Self::Null => out.write_str("None"),
            Self::Bool => out.write_str("bool"),
            Self::Int => out.write_str("int"),
            Self::Float => out.write_str("float"),
            Self::Str => out.write_str("str"),
            Self::Bytes | Self::ByteArray | Self::MemoryView => out.write_str("bytes in base64"),
            Self::List(item) if matches!(**item, Self::Any) => out.write_str("list"),
            Self::List(item) => write!(out, "list[{item}]"),
            Self::Dict(value) if matches!(**value, Self::Any) => out.write_str("dict"),
            Self::Dict(value) => write!(out, "dict[str, {value}]"),
            Self::Optional(inner) => write!(out, "{inner} | None"),
            Self::Array(array) => out.write_str(array.get().type_name()),
            Self::Custom(custom) => out.write_str(&custom.type_name),
        }
    }
}
