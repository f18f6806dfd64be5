//! A generator object, and the variables in which it runs.

use pyo3::intern;
use pyo3::prelude::*;

use crate::arguments::Failure;
use crate::convert::ConversionFault;
use crate::ffi;
use crate::ffi::variables::run_in;

/// A generator that has not ended, and its `contextvars.Context`.
pub(crate) struct Generator {
    iterator: Py<PyAny>,
    variables: Py<PyAny>,
}

impl Generator {
    /// The generator that a function has returned, and the variables in which it was called.
    pub(crate) fn new(
        iterator: &Bound<'_, PyAny>,
        variables: &Bound<'_, PyAny>,
    ) -> Result<Self, Failure> {
        if !ffi::is_iterator(iterator) {
            let problem = format!("expected a generator, got {}", ffi::type_name(iterator));
            return Err(Failure::Result(ConversionFault::value(problem)));
        }
        Ok(Self { iterator: iterator.clone().unbind(), variables: variables.clone().unbind() })
    }

    /// Calls `work` with the generator, in its variables.
    pub(crate) fn within<'py, T>(
        &self,
        py: Python<'py>,
        work: impl FnOnce(&Bound<'py, PyAny>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        run_in(self.variables.bind(py), || work(self.iterator.bind(py)))
    }

    /// Ends the generator: its `finally` blocks run.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let iterator = self.iterator.bind(py);
        let Some(close) = iterator.getattr_opt(intern!(py, "close"))? else { return Ok(()) };
        run_in(self.variables.bind(py), || ffi::call(&close, []).map(drop))
    }
}
