//! Values that Python code builds: by `msgspec`, NumPy, Pillow, or a user's own decoder.
//!
//! The decoder is called with what it needs and no more: the text of the value, or the bytes that
//! the value is the base64 of. Only when it raises is `explain` asked what the caller should be
//! told, and where in the value.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::json::ValueKind;

use super::{ConversionFault, Convert, Input};
use crate::ffi;

/// How a type is built that this crate knows nothing of.
#[derive(Debug)]
pub(crate) struct Custom {
    form: Form,
    /// Called with the value in its form; returns the argument.
    decode: Py<PyAny>,
    /// Called with the exception that `decode` raised and with what it was given. Returns what to
    /// tell and the way to it, or None when the exception is no fault of the value.
    explain: Py<PyAny>,
    /// The type as messages name it.
    pub(super) type_name: String,
}

/// What a decoder is given.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// The JSON text of the value, as `bytes`.
    Text,
    /// The value, as JSON has it.
    Value,
    /// A `bytearray` of what a string is the base64 of; other values as JSON has them.
    Binary,
}

/// A step to a part of a value: a key or an index.
#[derive(FromPyObject)]
enum PathStep {
    Index(usize),
    Key(String),
}

impl Custom {
    /// Reads a description: form, decoder, explainer and the type as messages name it.
    pub(super) fn from_description(description: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (form, decode, explain, type_name) = description.extract::<(String, _, _, _)>()?;
        let form = match form.as_str() {
            "text" => Form::Text,
            "value" => Form::Value,
            "binary" => Form::Binary,
            _ => return Err(PyTypeError::new_err(format!("no decoder is given {form:?}"))),
        };
        Ok(Self { form, decode, explain, type_name })
    }

    /// Builds the next value.
    pub(super) fn read<'py>(
        &self,
        input: &mut Input<'_, '_, 'py>,
    ) -> Result<Bound<'py, PyAny>, ConversionFault> {
        let given = self.read_input(input)?;
        let decoded = ffi::call(self.decode.bind(input.py), [&given]);
        decoded.map_err(|error| self.fault(error, &given))
    }

    fn read_input<'py>(
        &self,
        input: &mut Input<'_, '_, 'py>,
    ) -> Result<Bound<'py, PyAny>, ConversionFault> {
        match (self.form, input.reader.kind()) {
            // A copy, because what is built may hold on to it (`msgspec.Raw`).
            (Form::Text, _) => Ok(PyBytes::new(input.py, input.reader.skip()).into_any()),
            (Form::Binary, ValueKind::String) => input.read(&Convert::ByteArray).map_err(|fault| {
                fault.with_message(|| {
                    format!("expected {}, got a str that is no base64", self.type_name)
                })
            }),
            _ => input.read(&Convert::Any),
        }
    }

    #[cold]
    fn fault(&self, error: PyErr, given: &Bound<'_, PyAny>) -> ConversionFault {
        let py = given.py();
        let explained = match ffi::call(self.explain.bind(py), [error.value(py), given]) {
            Ok(explained) => explained,
            Err(error) => return error.into(),
        };
        match explained.extract::<Option<(String, Vec<PathStep>)>>() {
            Ok(Some((message, steps))) => ConversionFault::value(message).at(steps),
            Ok(None) => error.into(),
            Err(error) => error.into(),
        }
    }
}

impl ConversionFault {
    /// The same, seen from the outermost of `steps`.
    fn at(self, steps: Vec<PathStep>) -> Self {
        steps.into_iter().rev().fold(self, |fault, step| match step {
            PathStep::Index(index) => fault.at_index(index),
            PathStep::Key(key) => fault.at_key(key.as_bytes()),
        })
    }
}
