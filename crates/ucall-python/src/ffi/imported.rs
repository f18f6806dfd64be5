//! What is imported from Python once.

use std::sync::OnceLock;

use pyo3::PyTypeCheck;
use pyo3::prelude::*;

/// A member of a Python module, which is imported when it is first needed.
///
/// A child that another thread forks while a lock is held would wait for it for ever. `PyOnceLock`
/// releases the interpreter while it holds its lock, so that others may fork. This lock is held for
/// a move alone.
pub(crate) struct Imported<T> {
    module: &'static str,
    name: &'static str,
    found: OnceLock<Py<T>>,
}

impl<T: PyTypeCheck> Imported<T> {
    pub(crate) const fn new(module: &'static str, name: &'static str) -> Self {
        Self { module, name, found: OnceLock::new() }
    }

    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, T>> {
        if let Some(found) = self.found.get() {
            return Ok(found.bind(py));
        }
        let found = py.import(self.module)?.getattr(self.name)?.cast_into::<T>()?.unbind();
        // Another thread may have been first.
        Ok(self.found.get_or_init(|| found).bind(py))
    }
}
