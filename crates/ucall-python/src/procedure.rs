//! What is kept of a registered function: how its params are named, converted and passed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::convert::Convert;

/// A registered function.
#[derive(Debug)]
pub(crate) struct Procedure {
    /// As it is called, for the log.
    pub(crate) name: String,
    pub(crate) callable: Py<PyAny>,
    /// `None` when the callable does not tell (some builtins): it is called as the params are.
    pub(crate) signature: Option<Signature>,
    /// Called with an object that JSON has no word for; returns what to write in its place.
    pub(crate) encode: Py<PyAny>,
    pub(crate) mode: CallMode,
    /// How long a call may take, from when it has come.
    pub(crate) timeout: Option<Duration>,
    /// Whether it was told in the log that it holds up the others.
    pub(crate) is_logged_as_slow: AtomicBool,
}

/// How the calls of a function run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallMode {
    /// On the worker's thread, one after another.
    Inline,
    /// It returns a coroutine, which becomes a task of the worker's event loop.
    Task,
    /// In a thread of the pool.
    Thread,
    /// It returns at once, with a `concurrent.futures.Future`.
    Future,
    /// Many calls at once: it takes lists, and returns one.
    Batch(BatchRules),
}

/// When calls become a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRules {
    pub(crate) size_max: usize,
    /// How long the first of a batch waits for others, beyond its turn.
    pub(crate) wait_max: Duration,
    /// How many batches may run at once.
    pub(crate) running_max: usize,
    pub(crate) mode: BatchMode,
}

/// Where a batch runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchMode {
    Inline,
    Task,
    Thread,
}

impl CallMode {
    /// Reads what `python/ucall/_registration.py` describes: a name, and for a batch its rules.
    pub(crate) fn from_description(
        name: &str,
        batch: Option<(usize, f64, usize)>,
    ) -> PyResult<Self> {
        let unknown = || PyValueError::new_err(format!("no way to run is named {name:?}"));
        let Some((size_max, wait_max_ms, running_max)) = batch else {
            return match name {
                "inline" => Ok(Self::Inline),
                "task" => Ok(Self::Task),
                "thread" => Ok(Self::Thread),
                "future" => Ok(Self::Future),
                _ => Err(unknown()),
            };
        };
        let mode = match name {
            "inline" => BatchMode::Inline,
            "task" => BatchMode::Task,
            "thread" => BatchMode::Thread,
            _ => return Err(unknown()),
        };
        let wait_max = Duration::try_from_secs_f64(wait_max_ms / 1e3)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self::Batch(BatchRules { size_max, wait_max, running_max, mode }))
    }
}

impl Procedure {
    /// Whether a call of it wants to know of itself.
    pub(crate) fn takes_context(&self) -> bool {
        self.signature.as_ref().is_some_and(|signature| signature.context.is_some())
    }

    /// Whether the log knows that it is slow; from now on it does.
    pub(crate) fn is_logged_as_slow(&self) -> bool {
        self.is_logged_as_slow.swap(true, Ordering::Relaxed)
    }
}

/// How a function takes its arguments.
///
/// Positional parameters come first, keyword-only ones behind them: that is the order of the
/// slots, and so of the arguments. Missing ones are filled from the defaults, so that all the
/// positional ones go by position, and the names of the others never change.
#[derive(Debug, Default)]
pub(crate) struct Signature {
    pub(crate) params: Vec<Param>,
    /// How many of them go by position.
    pub(crate) positional: usize,
    /// What `*args` takes.
    pub(crate) rest: Option<Convert>,
    /// What `**kwargs` takes.
    pub(crate) extra: Option<Convert>,
    /// The names of the keyword-only ones, in order; `None` when there are none.
    pub(crate) names: Option<Py<PyTuple>>,
    /// Which of them is no param, but the call's `ucall.Context`.
    pub(crate) context: Option<usize>,
}

/// One named parameter.
#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: String,
    /// Whether it may be given by name.
    pub(crate) by_name: bool,
    pub(crate) convert: Convert,
    pub(crate) default: Option<Py<PyAny>>,
}

/// A parameter as `python/ucall/_signature.py` describes it: name, kind, what it takes, whether it
/// has a default, and that.
type Description<'py> = (String, u8, Bound<'py, PyAny>, bool, Py<PyAny>);

/// What a parameter is described to take that takes no param.
const CONTEXT: &str = "context";

/// The values of `inspect.Parameter.kind`.
mod kind {
    pub(super) const POSITIONAL_ONLY: u8 = 0;
    pub(super) const POSITIONAL_OR_KEYWORD: u8 = 1;
    pub(super) const VAR_POSITIONAL: u8 = 2;
    pub(super) const KEYWORD_ONLY: u8 = 3;
    pub(super) const VAR_KEYWORD: u8 = 4;
}

impl Signature {
    /// Reads a description of all parameters, in the order of the signature.
    pub(crate) fn from_description(description: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut signature = Self::default();
        for param in description {
            signature.add(param.extract::<Description<'_>>()?)?;
        }
        signature.names = signature.keyword_names(description.py())?;
        Ok(signature)
    }

    fn add(&mut self, (name, kind, takes, optional, default): Description<'_>) -> PyResult<()> {
        let is_context = takes.cast::<PyString>().is_ok_and(|takes| takes == CONTEXT);
        let convert = match is_context {
            true => Convert::Any,
            false => Convert::from_description(&takes)?,
        };
        match kind {
            kind::VAR_POSITIONAL => self.rest = Some(convert),
            kind::VAR_KEYWORD => self.extra = Some(convert),
            kind::POSITIONAL_ONLY | kind::POSITIONAL_OR_KEYWORD | kind::KEYWORD_ONLY => {
                self.positional += usize::from(kind != kind::KEYWORD_ONLY);
                let by_name = kind != kind::POSITIONAL_ONLY && !is_context;
                if is_context {
                    self.context = Some(self.params.len());
                }
                let default = optional.then_some(default);
                self.params.push(Param { name, by_name, convert, default });
            }
            _ => return Err(PyValueError::new_err(format!("{kind} is no kind of parameter"))),
        }
        Ok(())
    }

    fn keyword_names(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        let names = self.params.iter().skip(self.positional).map(|param| &param.name);
        if names.len() == 0 {
            return Ok(None);
        }
        Ok(Some(PyTuple::new(py, names)?.unbind()))
    }
}
