//! `PickleLoader`, the loader of `PickleSerializer`.

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use ucall_pickle::{Limits, Reader, nests_deeper};

use super::error::Refused;
use super::objects::Objects;
use crate::ffi;
use crate::queue::pinned_buffers;

/// CPython overflows the stack of some threads when it hashes more deeply nested tuples.
const DEPTH_MAX: u16 = 10_000;

/// Reads pickles as data; see `ucall.queue.PickleSerializer`.
#[pyclass(frozen, module = "ucall._core", name = "PickleLoader")]
pub(crate) struct PickleLoader {
    /// Resolves a module and a name that are not on the default list, or raises.
    find: Py<PyAny>,
    /// Resolves a persistent id. `None` refuses them.
    persistent_load: Option<Py<PyAny>>,
    limits: Limits,
}

#[pymethods]
impl PickleLoader {
    #[new]
    #[pyo3(signature = (find, persistent_load, max_depth, max_expansion, max_collisions))]
    fn new(
        find: Py<PyAny>,
        persistent_load: Option<Py<PyAny>>,
        max_depth: u16,
        max_expansion: u32,
        max_collisions: u32,
    ) -> PyResult<Self> {
        if !(1..=DEPTH_MAX).contains(&max_depth) {
            return Err(PyValueError::new_err("max_depth must be from 1 to 10,000"));
        }
        if max_collisions == 0 {
            return Err(PyValueError::new_err("max_collisions must be at least 1"));
        }
        let limits = Limits {
            depth_max: max_depth,
            expansion_max: max_expansion,
            collisions_max: max_collisions,
        };
        Ok(Self { find, persistent_load, limits })
    }

    /// Reads a pickle with its out-of-band buffers.
    fn __call__<'py>(
        &self,
        data: &Bound<'py, PyAny>,
        buffers: Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = data.py();
        // Other threads may run during the read, so the pickle must be immutable bytes.
        match data.cast::<PyBytes>() {
            Ok(bytes) => self.load(py, bytes.as_bytes(), buffers),
            Err(_) => {
                let copied = ffi::with_buffer(data, <[u8]>::to_vec)?;
                self.load(py, &copied, buffers)
            }
        }
    }

    /// Whether this loader refuses a pickle in chunks because its values nest too deep.
    fn nests_too_deep(&self, chunks: &Bound<'_, PyList>) -> PyResult<bool> {
        let pins = chunks.iter().map(|chunk| pinned_buffers::pin(&chunk));
        let pins = pins.collect::<PyResult<Vec<_>>>()?;
        let slices = pins.iter().map(|pin| &pin[..]).collect::<Vec<_>>();
        let nests = nests_deeper(&slices, self.limits.depth_max);
        drop(pins);
        pinned_buffers::release_pending(chunks.py());
        Ok(nests)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.find)?;
        visit.call(&self.persistent_load)
    }
}

impl PickleLoader {
    /// Reads a pickle and returns its object. Raises `pickle.UnpicklingError`.
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
