//! `ctx.progress`: what a function that is no generator sends before its reply.
//!
//! Reports take the way of items. Unlike a generator, a function does not wait while they are not
//! taken: of those beyond the limit only the newest is kept. Messages of MCP take the same way, but
//! each says something else, so that only memory limits them.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString};
use ucall_engine::OwningProcess;
use ucall_proto::json::{write_f64, write_string};
use ucall_server::Token;

use super::call::Items;
use super::context::StreamContext;
use crate::ffi;
use crate::outcomes::DeferredOutcome;

/// Where a function's reports go.
#[derive(Default)]
pub(crate) enum ProgressTarget {
    /// The caller does not ask for them.
    #[default]
    Nobody,
    /// The function is a generator, whose items they would be.
    Items,
    Caller(Box<Reports>),
    /// The caller takes notifications, and asks for no progress.
    Notifications(Box<Reports>),
}

/// The reports of one call, on any thread.
pub(crate) struct Reports {
    context: StreamContext,
    process: OwningProcess,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Reports and messages that the worker has not taken.
    waiting: Items,
    /// Whether the last of them is a report.
    is_last_report: bool,
}

enum Phase {
    /// The call has no token yet.
    Begins,
    Runs(Token),
    Ended,
}

impl Reports {
    pub(crate) fn new(context: StreamContext) -> Self {
        let state =
            State { phase: Phase::Begins, waiting: Items::default(), is_last_report: false };
        Self { context, process: OwningProcess::current(), state: Mutex::new(state) }
    }

    /// Sends the text of a report, unless the call has ended.
    ///
    /// # Errors
    /// It is longer than a reply may be.
    pub(crate) fn add(&self, text: Vec<u8>) -> PyResult<()> {
        self.push(text, true)
    }

    /// Sends the text of a message, unless the call has ended.
    ///
    /// # Errors
    /// It is longer than a reply may be.
    pub(crate) fn add_message(&self, text: Vec<u8>) -> PyResult<()> {
        self.push(text, false)
    }

    fn push(&self, mut text: Vec<u8>, is_report: bool) -> PyResult<()> {
        let len_max = self.context.reply_bytes_max;
        if text.len() > len_max {
            let expected = format!("message: expected at most {len_max} bytes (max_reply_bytes)");
            return Err(PyValueError::new_err(expected));
        }
        // A forked child has no way to the caller.
        if !self.process.is_current() {
            return Ok(());
        }
        let mut state = self.state();
        if let Phase::Ended = state.phase {
            return Ok(());
        }
        let is_full = match is_report {
            true => state.waiting.is_full() && state.is_last_report,
            false => state.waiting.bytes() + text.len() > len_max,
        };
        state.is_last_report = is_report;
        let is_first = match is_full {
            true => {
                state.waiting.replace_last(&mut text);
                false
            }
            false => state.waiting.push(&mut text),
        };
        if let Phase::Runs(token) = state.phase
            && is_first
        {
            drop(state);
            self.context.outcomes.send(token, DeferredOutcome::Items);
        }
        Ok(())
    }

    /// The call has a token from now on.
    pub(crate) fn begin(&self, token: Token) {
        let mut state = self.state();
        state.phase = Phase::Runs(token);
        if !state.waiting.is_empty() {
            drop(state);
            self.context.outcomes.send(token, DeferredOutcome::Items);
        }
    }

    /// Whether reports wait for the worker.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// Moves the reports that wait to `items`, which is empty.
    pub(super) fn take(&self, items: &mut Items) {
        mem::swap(&mut self.state().waiting, items);
    }

    /// Drops what waits, and all that may come.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        (state.phase, state.waiting) = (Phase::Ended, Items::default());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The text of a report, which is the value of its item.
///
/// # Errors
/// An argument has another type, or is a number that JSON does not have.
pub(crate) fn report_text(
    done: &Bound<'_, PyAny>,
    total: Option<&Bound<'_, PyAny>>,
    message: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<u8>> {
    let mut text = b"{\"progress\":".to_vec();
    write_number(&mut text, "done", done)?;
    if let Some(total) = total {
        text.extend_from_slice(b",\"total\":");
        write_number(&mut text, "total", total)?;
    }
    if let Some(message) = message {
        text.extend_from_slice(b",\"message\":");
        let message = message.cast::<PyString>().map_err(|_| {
            let found = ffi::type_name(message);
            PyTypeError::new_err(format!("message: expected a str, got {found}"))
        })?;
        write_string(&mut text, message.to_str()?);
    }
    text.push(b'}');
    Ok(text)
}

/// [`report_text`], for a function in another process.
#[pyfunction]
#[pyo3(signature = (done, total = None, message = None))]
pub(crate) fn progress_text<'py>(
    py: Python<'py>,
    done: &Bound<'py, PyAny>,
    total: Option<&Bound<'py, PyAny>>,
    message: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &report_text(done, total, message)?))
}

fn write_number(text: &mut Vec<u8>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if value.is_exact_instance_of::<PyInt>() {
        text.extend_from_slice(value.str()?.to_str()?.as_bytes());
        return Ok(());
    }
    // Those of NumPy are converted.
    let number = match value.cast::<PyFloat>() {
        Ok(float) => float.value(),
        Err(_) => value.extract::<f64>().map_err(|_| {
            let found = ffi::type_name(value);
            PyTypeError::new_err(format!("{name}: expected a number, got {found}"))
        })?,
    };
    match write_f64(text, number) {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!("{name}: expected a finite number"))),
    }
}
