//! The log `ucall` of Python's `logging`.

use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// `logging.getLogger("ucall")`.
pub(crate) struct Log {
    logger: Py<PyAny>,
}

impl Log {
    pub(crate) fn import(py: Python<'_>) -> PyResult<Self> {
        let logger = py.import("logging")?.call_method1("getLogger", ("ucall",))?;
        Ok(Self { logger: logger.unbind() })
    }

    /// Logs a warning for the administrator.
    pub(crate) fn warning(&self, py: Python<'_>, line: &str) -> Result<(), Interrupted> {
        logged(py, self.logger.bind(py).call_method1("warning", (line,)))
    }

    /// Logs an event that an administrator may expect.
    pub(crate) fn info(&self, py: Python<'_>, line: &str) -> Result<(), Interrupted> {
        logged(py, self.logger.bind(py).call_method1("info", (line,)))
    }

    /// Logs a failure of calls, which are described in text and in JSON, with the traceback of its
    /// exception if there is one.
    pub(crate) fn failure(
        &self,
        py: Python<'_>,
        line: &str,
        calls: Option<(String, String)>,
        raised: Option<&PyErr>,
    ) -> Result<(), Interrupted> {
        let Some((text, json)) = calls else { return self.error(py, line, raised) };
        let call = || {
            let (options, extra) = (PyDict::new(py), PyDict::new(py));
            // The formatter of JSON takes the line without the call, which it has as members.
            extra.set_item("ucall_call", json)?;
            options.set_item("extra", extra)?;
            options.set_item("exc_info", raised.map(|raised| cut(py, raised)).transpose()?)?;
            self.logger.bind(py).call_method("error", ("%s (%s)", line, text), Some(&options))
        };
        logged(py, call())
    }

    /// Logs a failure, with the traceback of its exception if there is one.
    pub(crate) fn error(
        &self,
        py: Python<'_>,
        line: &str,
        raised: Option<&PyErr>,
    ) -> Result<(), Interrupted> {
        let call = || {
            let options = PyDict::new(py);
            options.set_item("exc_info", raised.map(|raised| cut(py, raised)).transpose()?)?;
            self.logger.bind(py).call_method("error", (line,), Some(&options))
        };
        logged(py, call())
    }
}

/// An exception, from whose traceback it removes the frames of the package.
#[cold]
pub(crate) fn cut<'py>(py: Python<'py>, raised: &PyErr) -> PyResult<Bound<'py, PyBaseException>> {
    let raised = raised.clone_ref(py).into_value(py).into_bound(py);
    py.import("ucall._tracebacks")?.call_method1("cut", (&raised,))?;
    Ok(raised)
}

/// A failing log must not end the server.
fn logged(py: Python<'_>, result: PyResult<Bound<'_, PyAny>>) -> Result<(), Interrupted> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Err(Interrupted),
        Err(error) => {
            error.write_unraisable(py, None);
            Ok(())
        }
    }
}

/// A Ctrl-C arrived while Python code ran.
pub(crate) struct Interrupted;
