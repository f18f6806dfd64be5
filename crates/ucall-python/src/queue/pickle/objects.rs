//! The state of one reading of a pickle.

use pyo3::ffi as raw;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::error::Refused;

pub(super) type Built<'py> = Result<Bound<'py, PyAny>, Refused>;

/// An object that is made from its state.
pub(super) enum Pending<'py> {
    Uuid,
    /// A dtype, by its short name.
    Dtype(Bound<'py, PyString>),
    Array,
}

/// The builder of one pickle.
pub(super) struct Objects<'a, 'py> {
    pub(super) py: Python<'py>,
    find: &'a Bound<'py, PyAny>,
    pub(super) persistent_load: Option<&'a Bound<'py, PyAny>>,
    pub(super) buffers: Bound<'py, PyList>,
    pub(super) buffers_taken: usize,
    pub(super) has_decimal: bool,
    pub(super) has_long_number: bool,
}

impl<'a, 'py> Objects<'a, 'py> {
    pub(super) fn new(
        find: &'a Bound<'py, PyAny>,
        persistent_load: Option<&'a Bound<'py, PyAny>>,
        buffers: Bound<'py, PyList>,
    ) -> Self {
        Self {
            py: find.py(),
            find,
            persistent_load,
            buffers,
            buffers_taken: 0,
            has_decimal: false,
            has_long_number: false,
        }
    }

    /// Resolves a name by the program's rules.
    pub(super) fn find(&self, module: &str, name: &str) -> Built<'py> {
        Ok(self.find.call1((module, name))?)
    }

    pub(super) fn owned(&self, pointer: *mut raw::PyObject) -> Built<'py> {
        // SAFETY: every caller passes a new reference, or null with an exception set.
        Ok(unsafe { Bound::from_owned_ptr_or_err(self.py, pointer) }?)
    }
}
