//! `PickleLoader`: what a `PickleSerializer` reads with.

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use ucall_pickle::{Limits, Reader};

use super::error::Refused;
use super::objects::Objects;
use crate::ffi;

/// Tuples nested deeper overflow the stack of some threads when CPython hashes them.
const DEPTH_MAX: u16 = 10_000;

/// Reads pickles as data; see `ucall.queue.PickleSerializer`.
#[pyclass(frozen, module = "ucall._core", name = "PickleLoader")]
pub(crate) struct PickleLoader {
    /// Called with a module and a name that are not on the default list; returns what they stand
    /// for, or raises.
    find: Py<PyAny>,
    /// Called with a persistent id; `None`: they are refused.
    persistent_load: Option<Py<PyAny>>,
    limits: Limits,
}

#[pymethods]
impl PickleLoader {
    #[new]
    #[pyo3(signature = (find, persistent_load, max_depth, max_expansion, max_alike))]
    fn new(
        find: Py<PyAny>,
        persistent_load: Option<Py<PyAny>>,
        max_depth: u16,
        max_expansion: u32,
        max_alike: u32,
    ) -> PyResult<Self> {
        if !(1..=DEPTH_MAX).contains(&max_depth) {
            return Err(PyValueError::new_err("max_depth must be from 1 to 10,000"));
        }
        if max_alike == 0 {
            return Err(PyValueError::new_err("max_alike must be at least 1"));
        }
        let limits =
            Limits { depth_max: max_depth, expansion_max: max_expansion, alike_max: max_alike };
        Ok(Self { find, persistent_load, limits })
    }

    /// The object of a pickle and the buffers that travel beside it.
    fn __call__<'py>(
        &self,
        data: &Bound<'py, PyAny>,
        buffers: Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = data.py();
        // Other threads run now and then while it is read, so it must be bytes that cannot change.
        match data.cast::<PyBytes>() {
            Ok(bytes) => self.load(py, bytes.as_bytes(), buffers),
            Err(_) => {
                let copied = ffi::with_buffer(data, <[u8]>::to_vec)?;
                self.load(py, &copied, buffers)
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.find)?;
        visit.call(&self.persistent_load)
    }
}

impl PickleLoader {
    /// The object of a pickle. Raises `pickle.UnpicklingError`.
    pub(crate) fn load<'py>(
        &self,
        py: Python<'py>,
        pickle: &[u8],
        buffers: Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let persistent_load = self.persistent_load.as_ref().map(|load| load.bind(py));
        let mut objects = Objects::new(self.find.bind(py), persistent_load, buffers);
        Reader::read(pickle, self.limits, &mut objects)
            .map_err(|refused: Refused| refused.into_error(py))
    }
}
