//! Values that Python code builds: `msgspec`, NumPy, Pillow, or a user's own decoder.
//!
//! The decoder gets the text of the value, or the bytes that the value is the base64 of. If it
//! raises, `explain` turns its exception into the message and the position in the value.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::json::ValueKind;

use super::check::{Checked, Faults};
use super::error::FAULTS_MAX;
use super::{ConversionFault, Convert, Input, Scratch};
use crate::ffi;

/// The decoder of a type that this crate does not know.
#[derive(Debug)]
pub(crate) struct Custom {
    form: Form,
    /// Called with the value in its form; returns the argument.
    decode: Py<PyAny>,
    /// Called with the exception of `decode`, the value, and the number of faults to find at most.
    /// Returns the message and the path in the value of each; none if the value is not at fault.
    explain: Py<PyAny>,
    /// The name of the type in messages.
    pub(super) type_name: String,
}

/// The form in which a decoder gets the value.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// The JSON text of the value, as `bytes`.
    Text,
    /// The value as built from JSON.
    Value,
    /// A `bytearray` decoded from base64, for a string; other values as built from JSON.
    Binary,
}

/// A step of the path into a value: a key or an index.
#[derive(FromPyObject)]
enum PathStep {
    Index(usize),
    Key(String),
}

impl Custom {
    /// Reads a description: form, decoder, explainer and the type's name in messages.
    pub(super) fn from_description(description: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (form, decode, explain, type_name) = description.extract::<(String, _, _, _)>()?;
        let form = match form.as_str() {
            "text" => Form::Text,
            "value" => Form::Value,
            "binary" => Form::Binary,
            _ => return Err(PyTypeError::new_err(format!("unknown form of a decoder: {form:?}"))),
        };
        Ok(Self { form, decode, explain, type_name })
    }

    /// Builds the next value.
    pub(super) fn read<'py>(
        &self,
        input: &mut Input<'_, '_, 'py>,
    ) -> Result<Bound<'py, PyAny>, ConversionFault> {
        self.read_with(input, 1)
    }

    /// Builds the next value, only to find its faults.
    pub(super) fn check(&self, input: &mut Input<'_, '_, '_>) -> Checked {
        self.read_with(input, FAULTS_MAX + 1).map(drop)
    }

    fn read_with<'py>(
        &self,
        input: &mut Input<'_, '_, 'py>,
        faults_max: usize,
    ) -> Result<Bound<'py, PyAny>, ConversionFault> {
        let given = self.read_input(input)?;
        let decoded = ffi::call(self.decode.bind(input.py), [&given]);
        decoded.map_err(|error| self.fault(error, &given, faults_max))
    }

    fn read_input<'py>(
        &self,
        input: &mut Input<'_, '_, 'py>,
    ) -> Result<Bound<'py, PyAny>, ConversionFault> {
        match (self.form, input.reader.kind()) {
            // A copy, because the result may keep it (`msgspec.Raw`).
            (Form::Text, _) => {
                let py = input.py;
                Ok(PyBytes::new(py, &input.inlined()?).into_any())
            }
            (Form::Binary, ValueKind::String) => input.read(&Convert::ByteArray).map_err(|fault| {
                fault.with_message(|| {
                    format!("expected {}, got a str that is no base64", self.type_name)
                })
            }),
            (Form::Binary, ValueKind::Object) => match input.part_index() {
                Some(index) => input.part(&Convert::ByteArray, index),
                None => input.read(&Convert::Any),
            },
            (Form::Value, ValueKind::Object | ValueKind::Array)
                if input.scratch.parts.is_some() =>
            {
                let (py, text) = (input.py, input.inlined()?.into_owned());
                Input::new(py, &text, &mut Scratch::default()).read(&Convert::Any)
            }
            _ => input.read(&Convert::Any),
        }
    }

    #[cold]
    fn fault(&self, error: PyErr, given: &Bound<'_, PyAny>, faults_max: usize) -> ConversionFault {
        match self.explained(&error, given, faults_max) {
            Ok(Some(fault)) => fault,
            Ok(None) => error.into(),
            Err(second) => second.into(),
        }
    }

    fn explained(
        &self,
        error: &PyErr,
        given: &Bound<'_, PyAny>,
        faults_max: usize,
    ) -> PyResult<Option<ConversionFault>> {
        let py = given.py();
        let explained = self.explain.bind(py).call1((error.value(py), given, faults_max))?;
        let mut faults = Faults::default();
        for (message, steps) in explained.extract::<Vec<(String, Vec<PathStep>)>>()? {
            faults.add(Err(ConversionFault::value(message).at(steps)));
        }
        Ok(faults.result().err())
    }
}

impl ConversionFault {
    /// Puts the fault at the end of a path, of which `steps` starts at the outermost value.
    fn at(self, steps: Vec<PathStep>) -> Self {
        steps.into_iter().rev().fold(self, |fault, step| match step {
            PathStep::Index(index) => fault.at_index(index),
            PathStep::Key(key) => fault.at_key(key.as_bytes()),
        })
    }
}
