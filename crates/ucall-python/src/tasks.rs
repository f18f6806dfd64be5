//! Async functions: coroutines into asyncio's tasks, as cheaply as each version of Python can.
//!
//! A task's first step runs at once, inside the task (`asyncio.timeout` and anyio ask for one), so
//! that a coroutine which never waits has its result within the turn of its call. From 3.12 on
//! asyncio does that by itself (`eager_start`). On 3.11 a new task asks its loop by `call_soon` to
//! be stepped; on a loop of ours that request is caught and done at once. On somebody else's loop
//! under 3.11 the task waits for the loop's next round.

use std::sync::{Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::context::run_in;
use crate::ffi;

/// Starts tasks on one event loop.
pub(crate) struct Tasks {
    event_loop: Py<PyAny>,
    /// `asyncio.Task`
    task: Py<PyAny>,
    start: Start,
    /// The names of the keyword arguments that tasks are made with, without and with variables.
    names: (Py<PyTuple>, Py<PyTuple>),
}

enum Start {
    /// asyncio takes the first step.
    Eager { yes: Py<PyAny> },
    /// We take it: the attributes of the loop, and what catches the request.
    ByHand { attributes: Py<PyDict>, catcher: Py<Catcher>, catch: Py<PyAny> },
    /// The loop takes it, later.
    Later,
}

impl Tasks {
    /// Tasks on `event_loop`; `is_ours` when it was made here, and may be changed.
    pub(crate) fn new(event_loop: &Bound<'_, PyAny>, is_ours: bool) -> PyResult<Self> {
        let py = event_loop.py();
        let is_eager = py.version_info() >= (3, 12);
        let start = match is_ours {
            _ if is_eager => Start::Eager { yes: true.into_pyobject(py)?.to_owned().into() },
            true => Start::by_hand(event_loop)?,
            false => Start::Later,
        };
        let names = match is_eager {
            true => (
                PyTuple::new(py, ["loop", "eager_start"])?,
                PyTuple::new(py, ["loop", "eager_start", "context"])?,
            ),
            false => (PyTuple::new(py, ["loop"])?, PyTuple::new(py, ["loop", "context"])?),
        };
        Ok(Self {
            event_loop: event_loop.clone().unbind(),
            task: py.import("asyncio")?.getattr("Task")?.unbind(),
            start,
            names: (names.0.unbind(), names.1.unbind()),
        })
    }

    pub(crate) fn event_loop<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.event_loop.bind(py)
    }

    /// A task for a coroutine, its first step taken if the loop runs; `variables` are its
    /// `contextvars.Context`, a copy of the present one if there are none.
    #[inline]
    pub(crate) fn start<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        let event_loop = self.event_loop.bind(py);
        let names = match variables {
            None => self.names.0.bind(py),
            Some(_) => self.names.1.bind(py),
        };
        match &self.start {
            Start::Eager { yes } => match variables {
                None => self.make(&[coroutine, event_loop, yes.bind(py)], names),
                Some(it) => self.make(&[coroutine, event_loop, yes.bind(py), it], names),
            },
            Start::ByHand { attributes, catcher, catch } if is_running(event_loop)? => {
                let attributes = attributes.bind(py);
                attributes.set_item(intern!(py, "call_soon"), catch)?;
                let task = self.make_later(coroutine, variables, names);
                attributes.del_item(intern!(py, "call_soon"))?;
                let task = task?;
                catcher.get().step(py)?;
                Ok(task)
            }
            Start::ByHand { .. } | Start::Later => self.make_later(coroutine, variables, names),
        }
    }

    #[inline]
    fn make_later<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: Option<&Bound<'py, PyAny>>,
        names: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = self.event_loop.bind(coroutine.py());
        match variables {
            None => self.make(&[coroutine, event_loop], names),
            Some(variables) => self.make(&[coroutine, event_loop, variables], names),
        }
    }

    #[inline]
    fn make<'py, const COUNT: usize>(
        &self,
        arguments: &[&Bound<'py, PyAny>; COUNT],
        names: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        ffi::call_with_names(self.task.bind(names.py()), arguments, names)
    }
}

impl Start {
    fn by_hand(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = event_loop.py();
        let attributes = event_loop.getattr("__dict__")?.cast_into::<PyDict>()?.unbind();
        let catcher = Bound::new(py, Catcher::default())?;
        let catch = catcher.getattr("catch")?.unbind();
        Ok(Self::ByHand { attributes, catcher: catcher.unbind(), catch })
    }
}

fn is_running(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    event_loop.call_method0(intern!(event_loop.py(), "is_running"))?.is_truthy()
}

/// Whether a task or a future is done.
#[inline]
pub(crate) fn is_done(future: &Bound<'_, PyAny>) -> PyResult<bool> {
    future.call_method0(intern!(future.py(), "done"))?.is_truthy()
}

/// The result of one that is done; raises what it raised.
#[inline]
pub(crate) fn result_of<'py>(future: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    future.call_method0(intern!(future.py(), "result"))
}

/// Stands in for `loop.call_soon` while a task is made, and keeps the request for its first step.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Default)]
pub(crate) struct Catcher {
    caught: Mutex<Option<(Py<PyAny>, Py<PyAny>)>>,
}

#[pymethods]
impl Catcher {
    #[pyo3(signature = (step, /, *, context))]
    fn catch(&self, step: Py<PyAny>, context: Py<PyAny>) {
        *self.caught.lock().unwrap_or_else(PoisonError::into_inner) = Some((step, context));
    }
}

impl Catcher {
    /// Takes the step that was asked for.
    fn step(&self, py: Python<'_>) -> PyResult<()> {
        let caught = self.caught.lock().unwrap_or_else(PoisonError::into_inner).take();
        match caught {
            Some((step, variables)) => {
                run_in(variables.bind(py), || step.bind(py).call0().map(drop))
            }
            None => Ok(()),
        }
    }
}
