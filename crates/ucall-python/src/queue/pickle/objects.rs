//! The state of one reading of a pickle.

use std::collections::HashMap;

use pyo3::ffi as raw;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList, PyMemoryView, PyString};

use super::error::Refused;
use crate::ffi;

pub(super) type Built<'py> = Result<Bound<'py, PyAny>, Refused>;

/// The largest number of a tensor has 16 bytes.
const ALIGNMENT: usize = 16;

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
    /// The memories that were copied, by address and length, and their copies.
    copies: HashMap<(usize, usize), (Bound<'py, PyAny>, Bound<'py, PyAny>)>,
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
            copies: HashMap::new(),
            has_decimal: false,
            has_long_number: false,
        }
    }

    /// Resolves a name by the program's rules.
    pub(super) fn find(&self, module: &str, name: &str) -> Built<'py> {
        Ok(self.find.call1((module, name))?)
    }

    /// The memory of a buffer if it can be written and is aligned for any number; otherwise a copy.
    /// A pickle that repeats a buffer gets the same copy, so that it cannot fill the memory.
    pub(super) fn writable(&mut self, buffer: &Bound<'py, PyAny>) -> Built<'py> {
        let place = ffi::with_buffer(buffer, |it| (it.as_ptr() as usize, it.len()))?;
        let view = PyMemoryView::from(buffer)?;
        let is_writable = !view.getattr(intern!(self.py, "readonly"))?.is_truthy()?;
        if is_writable && place.0.is_multiple_of(ALIGNMENT) {
            return Ok(buffer.clone());
        }
        if let Some((_, copy)) = self.copies.get(&place) {
            return Ok(copy.clone());
        }
        let copy = PyByteArray::from(buffer)?.into_any();
        // The buffer stays alive, so that no other one has its address.
        self.copies.insert(place, (buffer.clone(), copy.clone()));
        Ok(copy)
    }

    pub(super) fn owned(&self, pointer: *mut raw::PyObject) -> Built<'py> {
        // SAFETY: every caller passes a new reference, or null with an exception set.
        Ok(unsafe { Bound::from_owned_ptr_or_err(self.py, pointer) }?)
    }
}
