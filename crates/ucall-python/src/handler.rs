//! Runs Python functions for a worker: the `Handler` of this language.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use ucall_proto::{Call, Outcome, Reply, RpcError};
use ucall_server::{CallId, Handler};

use crate::arguments::{self, Failure};
use crate::convert::{self, Fault};
use crate::detach::detached;
use crate::errors::{self, Errors};
use crate::log::{Interrupted, Log};
use crate::procedure::Procedure;

/// Other Python threads get their turn after so long at the latest.
const HOLD_MAX: Duration = Duration::from_millis(1);

/// The interpreter as one worker uses it, on a thread that stays attached through a whole turn.
///
/// It works on objects of the interpreter without a token at hand: whoever lets it call must be
/// attached, as `Drive::turn` asks.
pub(crate) struct Interpreter {
    errors: Errors,
    log: Log,
    /// Whether errors carry tracebacks.
    debug: bool,
    /// Holds strings while their escapes are undone.
    scratch: Vec<u8>,
    /// When other threads had their turn.
    released: Instant,
    /// Whether a Ctrl-C came while Python code ran.
    interrupted: bool,
}

impl Interpreter {
    pub(crate) fn new(py: Python<'_>, debug: bool) -> PyResult<Self> {
        Ok(Self {
            errors: Errors::import(py)?,
            log: Log::import(py)?,
            debug,
            scratch: Vec::new(),
            released: Instant::now(),
            interrupted: false,
        })
    }

    /// Whether a Ctrl-C came since this was last asked.
    pub(crate) fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.interrupted)
    }

    /// To be called once a turn: under load there is no wait that lets other threads in.
    #[inline]
    pub(crate) fn let_others_in(&mut self, py: Python<'_>) {
        if self.released.elapsed() >= HOLD_MAX {
            py.detach(std::thread::yield_now);
            self.released = Instant::now();
        }
    }

    #[inline]
    fn run(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        params: Option<&[u8]>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let result = arguments::call(py, procedure, params, &mut self.scratch)?;
        if reply.is_notification() {
            return Ok(());
        }
        let len_max = reply.len_max();
        convert::write(reply.result(), len_max, &result).map_err(Failure::Result)
    }

    /// The error to reply with. What is the function's own fault goes to the log.
    #[cold]
    fn fail(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        failure: Failure,
        len_max: usize,
    ) -> RpcError {
        match failure {
            Failure::Params(Fault::Value(misfit)) => {
                RpcError::new(RpcError::INVALID_PARAMS, "Invalid params")
                    .expected(&misfit.describe("params"))
            }
            Failure::Params(Fault::TooLarge) => errors::internal(),
            Failure::Params(Fault::Raised(error)) => self.raised(py, procedure, *error, len_max),
            Failure::Result(fault) => self.unwritable(py, procedure, "result", fault, len_max),
            Failure::Raised(error) => self.raised(py, procedure, error, len_max),
        }
    }

    fn unwritable(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        what: &str,
        fault: Fault,
        len_max: usize,
    ) -> RpcError {
        let problem = match fault {
            Fault::Value(misfit) => misfit.describe(what),
            Fault::TooLarge => format!("{what}: larger than a reply may be"),
            Fault::Raised(error) => return self.raised(py, procedure, *error, len_max),
        };
        let line = format!("{}: {problem}", procedure.name);
        let logged = self.log.error(py, &line, None);
        self.note(logged);
        errors::internal().expected(&problem)
    }

    fn raised(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        error: PyErr,
        len_max: usize,
    ) -> RpcError {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            self.interrupted = true;
            return RpcError::new(RpcError::CANCELLED, "Cancelled")
                .expected("the server was interrupted");
        }
        if self.errors.is_for_caller(py, &error) {
            return match errors::for_caller(py, &error, len_max) {
                Ok(reply) => reply,
                Err(Fault::Raised(second)) => self.internal(py, procedure, &second),
                Err(fault) => self.unwritable(py, procedure, "data", fault, len_max),
            };
        }
        self.internal(py, procedure, &error)
    }

    fn internal(&mut self, py: Python<'_>, procedure: &Procedure, error: &PyErr) -> RpcError {
        let logged = self.log.error(py, &format!("{} raised", procedure.name), Some(error));
        self.note(logged);
        match self.debug.then(|| errors::traceback(py, error)) {
            Some(Ok(traceback)) => errors::internal().expected(&traceback),
            _ => errors::internal(),
        }
    }

    fn note(&mut self, logged: Result<(), Interrupted>) {
        self.interrupted |= logged.is_err();
    }
}

impl Handler for Interpreter {
    type Procedure = Procedure;

    #[inline]
    fn call(
        &mut self,
        procedure: &Procedure,
        call: Call<'_>,
        _id: CallId,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let py = attached();
        if let Err(failure) = self.run(py, procedure, call.params, reply) {
            let error = self.fail(py, procedure, failure, reply.len_max());
            reply.error(&error);
        }
        Outcome::Done
    }

    fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        // SAFETY: a worker waits for its engine, which touches nothing of Python.
        let value = unsafe { detached(attached(), wait) };
        self.released = Instant::now();
        value
    }

    fn warn(&mut self, line: &str) {
        let logged = self.log.warning(attached(), line);
        self.note(logged);
    }
}

/// The token of this thread, as long as the worker's turn lasts.
#[inline]
fn attached() -> Python<'static> {
    // SAFETY: a handler is only called by the turn of its worker, and `Drive::turn` is the only
    // way to one: it asks for a token.
    unsafe { Python::assume_attached() }
}
