//! What is imported from Python once.

use pyo3::PyTypeCheck;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A member of a Python module, which is imported when it is first needed.
///
/// `PyOnceLock::import` holds its lock while Python runs the import. A child that another thread
/// forks meanwhile would wait for the end of that import for ever. This holds nothing.
pub(crate) struct Imported<T> {
    module: &'static str,
    name: &'static str,
    found: PyOnceLock<Py<T>>,
}

impl<T: PyTypeCheck> Imported<T> {
    pub(crate) const fn new(module: &'static str, name: &'static str) -> Self {
        Self { module, name, found: PyOnceLock::new() }
    }

    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, T>> {
        if let Some(found) = self.found.get(py) {
            return Ok(found.bind(py));
        }
        let found = py.import(self.module)?.getattr(self.name)?.cast_into::<T>()?.unbind();
        // Another thread may have been first.
        Ok(self.found.get_or_init(py, || found).bind(py))
    }
}
