//! The reports of a worker's own thread, where a Ctrl-C may interrupt Python code.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use ucall_proto::RpcError;

use crate::arguments::Failure;
use crate::log::Interrupted;
use crate::origin::FailedCalls;
use crate::procedure::Procedure;
use crate::report::Report;

/// Logs and builds errors for a worker, and keeps whether a Ctrl-C arrived.
pub(crate) struct WorkerReport {
    report: Arc<Report>,
    /// Whether a Ctrl-C arrived while Python code ran.
    is_interrupted: bool,
    /// Whether a plain function runs, which a Ctrl-C interrupts.
    is_in_function: Arc<AtomicBool>,
}

impl WorkerReport {
    pub(crate) fn new(report: Arc<Report>) -> Self {
        Self { report, is_interrupted: false, is_in_function: Arc::default() }
    }

    /// What other threads report by.
    pub(crate) fn shared(&self) -> &Report {
        &self.report
    }

    /// Logs by `log`.
    pub(crate) fn log(&mut self, log: impl FnOnce(&Report) -> Result<(), Interrupted>) {
        let logged = log(&self.report);
        self.note(logged);
    }

    /// Notes whether a Ctrl-C arrived meanwhile.
    pub(crate) fn note(&mut self, logged: Result<(), Interrupted>) {
        self.is_interrupted |= logged.is_err();
    }

    /// Logs a warning for the administrator.
    pub(crate) fn warning(&mut self, py: Python<'_>, line: &str) {
        self.log(|report| report.warning(py, line));
    }

    /// The error to reply with. Errors of the function itself are logged.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        calls: FailedCalls<'_>,
        failure: Failure,
        len_max: usize,
    ) -> RpcError {
        let (error, logged) = self.report.fail(py, procedure, calls, failure, len_max);
        self.note(logged);
        error
    }

    /// Whether a Ctrl-C has interrupted Python code.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Takes the flag of a Ctrl-C.
    #[inline]
    pub(crate) fn take_interrupt(&mut self) -> bool {
        mem::take(&mut self.is_interrupted)
    }

    /// A flag, readable from any thread, that is set while a plain function runs.
    pub(crate) fn is_in_function(&self) -> Arc<AtomicBool> {
        self.is_in_function.clone()
    }

    /// Sets whether a plain function runs, which a Ctrl-C interrupts.
    #[inline]
    pub(crate) fn set_in_function(&self, is_in_function: bool) {
        self.is_in_function.store(is_in_function, Ordering::Relaxed);
    }
}
