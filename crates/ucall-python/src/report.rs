//! The log lines of a worker, and the errors of calls that failed.

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use ucall_proto::RpcError;

use crate::arguments::Failure;
use crate::convert::ConversionFault;
use crate::errors::{self, Errors, Unwritable};
use crate::log::{Interrupted, Log};
use crate::origin::{CallOrigin, FailedCalls};
use crate::procedure::{CallMode, Executor, Procedure};

/// Builds errors and logs failures, from any thread.
pub(crate) struct Report {
    errors: Errors,
    log: Log,
    /// Whether errors carry tracebacks.
    debug: bool,
}

/// The error to reply with, and whether a Ctrl-C arrived while Python code ran.
type Reported = (RpcError, Result<(), Interrupted>);

impl Report {
    /// `find_error` is a program's: see [`Errors::import`].
    pub(crate) fn import(
        py: Python<'_>,
        debug: bool,
        find_error: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self { errors: Errors::import(py, find_error)?, log: Log::import(py)?, debug })
    }

    pub(crate) fn warning(&self, py: Python<'_>, line: &str) -> Result<(), Interrupted> {
        self.log.warning(py, line)
    }

    pub(crate) fn info(&self, py: Python<'_>, line: &str) -> Result<(), Interrupted> {
        self.log.info(py, line)
    }

    /// Builds the error to reply with. Errors of the function itself are logged.
    #[cold]
    pub(crate) fn fail(
        &self,
        py: Python<'_>,
        procedure: &Procedure,
        calls: FailedCalls<'_>,
        failure: Failure,
        len_max: usize,
    ) -> Reported {
        let failed = Failed { report: self, py, procedure, calls, len_max };
        match failure {
            Failure::Params(ConversionFault::Raised(error)) => failed.raised(*error),
            Failure::Params(fault) => (errors::invalid_params(fault), Ok(())),
            Failure::Result(fault) => failed.unwritable("result", fault),
            Failure::Item(fault) => failed.unwritable("item", fault),
            Failure::Raised(error) => failed.raised(error),
        }
    }

    /// Logs an error whose caller is gone.
    pub(crate) fn abandoned(&self, py: Python<'_>, error: &PyErr) -> Result<(), Interrupted> {
        self.log.error(py, "a function raised after its call was abandoned", Some(error))
    }

    /// Logs what a function has raised that ran after the reply to its call.
    pub(crate) fn background_failed(
        &self,
        py: Python<'_>,
        name: &str,
        error: &PyErr,
    ) -> Result<(), Interrupted> {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(Interrupted);
        }
        self.log.error(py, &format!("{name} raised"), Some(error))
    }

    /// Logs what a mounted application has raised after its response.
    pub(crate) fn mounted_failed(
        &self,
        py: Python<'_>,
        procedure: &Procedure,
        origin: &CallOrigin,
        error: &PyErr,
    ) -> Result<(), Interrupted> {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(Interrupted);
        }
        let line = format!("{}, after its response, raised", procedure.name);
        let calls = FailedCalls::one(Some(origin));
        self.log.failure(py, &line, calls.described(py), Some(error))
    }

    /// Logs why authentication failed.
    pub(crate) fn auth_failed(&self, py: Python<'_>, error: &PyErr) -> Result<(), Interrupted> {
        self.log.error(py, "auth failed, so the request was rejected", Some(error))
    }

    /// Logs what a function of `Connection.on_close` raised.
    pub(crate) fn on_close_failed(&self, py: Python<'_>, error: &PyErr) -> Result<(), Interrupted> {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(Interrupted);
        }
        self.log.error(py, "a function of on_close raised", Some(error))
    }
}

/// Calls that have failed together.
struct Failed<'a, 'py> {
    report: &'a Report,
    py: Python<'py>,
    procedure: &'a Procedure,
    calls: FailedCalls<'a>,
    /// Limits the data of an error.
    len_max: usize,
}

impl Failed<'_, '_> {
    fn log(&self, line: &str, raised: Option<&PyErr>) -> Result<(), Interrupted> {
        self.report.log.failure(self.py, line, self.calls.described(self.py), raised)
    }

    fn unwritable(&self, problem: &str, fault: ConversionFault) -> Reported {
        match fault.describe(problem) {
            Ok(problem) => self.invalid(&problem),
            Err(error) => self.raised(*error),
        }
    }

    /// Logs a result or an item that is invalid, and returns the error for the caller.
    fn invalid(&self, problem: &str) -> Reported {
        let logged = self.log(&format!("{}: {problem}", self.procedure.name), None);
        (errors::internal().expected(problem), logged)
    }

    fn raised(&self, error: PyErr) -> Reported {
        let py = self.py;
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return (errors::aborted("the server was interrupted"), Err(Interrupted));
        }
        if errors::is_cancelled(py, &error) {
            return (errors::aborted("the call was cancelled"), Ok(()));
        }
        if error.is_instance_of::<Unwritable>(py) {
            return self.invalid(&error.value(py).to_string());
        }
        let mut is_logged = false;
        let failed = match self.report.errors.for_caller(py, &error) {
            Ok(None) => return self.internal(&error),
            Ok(Some(found)) => {
                is_logged = self.report.errors.is_logged(&found);
                errors::reply_with(&found, self.len_max, self.procedure.encode.bind(py))
            }
            Err(second) => Err(second.into()),
        };
        match failed {
            Ok(reply) if is_logged => {
                let line = format!("{} raised", self.procedure.name);
                (reply, self.log(&line, Some(&error)))
            }
            Ok(reply) => (reply, Ok(())),
            Err(ConversionFault::Raised(second)) => self.internal(&second),
            Err(fault) => self.unwritable("data", fault),
        }
    }

    fn internal(&self, error: &PyErr) -> Reported {
        let (py, procedure) = (self.py, self.procedure);
        let mut line = format!("{} raised", procedure.name);
        if runs_on_the_loop(procedure.mode) && is_about_a_running_loop(py, error) {
            line += ": a plain function runs on the thread of the server's event loop; register it \
                     with threads=True, or make it an async function";
        }
        let logged = self.log(&line, Some(error));
        match self.report.debug.then(|| errors::traceback(py, error)) {
            Some(Ok(traceback)) => (errors::internal().expected(&traceback), logged),
            _ => (errors::internal(), logged),
        }
    }
}

/// Whether a plain function has the thread of the event loop, if the server has one.
fn runs_on_the_loop(mode: CallMode) -> bool {
    mode.executor() == Some(Executor::Inline)
}

/// Whether asyncio rejected a second event loop on a thread, as `asyncio.run` does.
fn is_about_a_running_loop(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyRuntimeError>(py)
        && ["running event loop", "another loop is running", "event loop is already running"]
            .iter()
            .any(|text| error.value(py).to_string().contains(text))
}
