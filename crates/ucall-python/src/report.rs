//! What becomes of a call that failed: an error for the caller, a line for the log.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use ucall_proto::RpcError;

use crate::arguments::Failure;
use crate::convert::Fault;
use crate::errors::{self, Errors};
use crate::log::{Interrupted, Log};
use crate::procedure::Procedure;

/// Tells callers and the log of failures, from any thread.
pub(crate) struct Report {
    errors: Errors,
    log: Log,
    /// Whether errors carry tracebacks.
    debug: bool,
}

/// The error to reply with, and whether a Ctrl-C came while Python code ran.
type Told = (RpcError, Result<(), Interrupted>);

impl Report {
    pub(crate) fn import(py: Python<'_>, debug: bool) -> PyResult<Self> {
        Ok(Self { errors: Errors::import(py)?, log: Log::import(py)?, debug })
    }

    pub(crate) fn warning(&self, py: Python<'_>, line: &str) -> Result<(), Interrupted> {
        self.log.warning(py, line)
    }

    /// The error to reply with. What is the function's own fault goes to the log.
    #[cold]
    pub(crate) fn fail(
        &self,
        py: Python<'_>,
        procedure: &Procedure,
        failure: Failure,
        len_max: usize,
    ) -> Told {
        match failure {
            Failure::Params(Fault::Value(misfit)) => {
                let error = RpcError::new(RpcError::INVALID_PARAMS, "Invalid params");
                (error.expected(&misfit.describe("params")), Ok(()))
            }
            Failure::Params(Fault::TooLarge) => (errors::internal(), Ok(())),
            Failure::Params(Fault::Raised(error)) => self.raised(py, procedure, *error, len_max),
            Failure::Result(fault) => self.unwritable(py, procedure, "result", fault, len_max),
            Failure::Raised(error) => self.raised(py, procedure, error, len_max),
        }
    }

    /// Logs what nobody can be told any more.
    pub(crate) fn lost(&self, py: Python<'_>, error: &PyErr) -> Result<(), Interrupted> {
        self.log.error(py, "a function raised after its call had been given up", Some(error))
    }

    /// Logs why nobody can be told who may call.
    pub(crate) fn failed_guard(&self, py: Python<'_>, error: &PyErr) -> Result<(), Interrupted> {
        self.log.error(py, "the function for auth failed: nobody is let in", Some(error))
    }

    fn unwritable(
        &self,
        py: Python<'_>,
        procedure: &Procedure,
        what: &str,
        fault: Fault,
        len_max: usize,
    ) -> Told {
        let problem = match fault {
            Fault::Value(misfit) => misfit.describe(what),
            Fault::TooLarge => format!("{what}: larger than a reply may be (max_reply_bytes)"),
            Fault::Raised(error) => return self.raised(py, procedure, *error, len_max),
        };
        let line = format!("{}: {problem}", procedure.name);
        let logged = self.log.error(py, &line, None);
        (errors::internal().expected(&problem), logged)
    }

    fn raised(&self, py: Python<'_>, procedure: &Procedure, error: PyErr, len_max: usize) -> Told {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return (errors::cancelled("the server was interrupted"), Err(Interrupted));
        }
        if errors::is_cancelled(py, &error) {
            return (errors::cancelled("the call was cancelled"), Ok(()));
        }
        if self.errors.is_for_caller(py, &error) {
            return match errors::for_caller(py, &error, len_max, procedure.encode.bind(py)) {
                Ok(reply) => (reply, Ok(())),
                Err(Fault::Raised(second)) => self.internal(py, procedure, &second),
                Err(fault) => self.unwritable(py, procedure, "data", fault, len_max),
            };
        }
        self.internal(py, procedure, &error)
    }

    fn internal(&self, py: Python<'_>, procedure: &Procedure, error: &PyErr) -> Told {
        let logged = self.log.error(py, &format!("{} raised", procedure.name), Some(error));
        match self.debug.then(|| errors::traceback(py, error)) {
            Some(Ok(traceback)) => (errors::internal().expected(&traceback), logged),
            _ => (errors::internal(), logged),
        }
    }
}
