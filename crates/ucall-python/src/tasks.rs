//! Async functions: coroutines into asyncio's tasks, as cheaply as each version of Python can.
//!
//! A task's first step runs at once, inside the task (`asyncio.timeout` and anyio ask for one), so
//! that a coroutine which never waits has its result within the turn of its call. From 3.12 on
//! asyncio does that by itself (`eager_start`). On 3.11 a new task asks its loop by `call_soon` to
//! be stepped; on a loop of ours that request is caught and done at once. On somebody else's loop
//! under 3.11 the task waits for the loop's next round. Functions that do not wait, as their calls
//! before have shown, need no task of their own on a loop of ours: see `spare`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::context::own_variables;
use crate::ffi;
use crate::schedule::Schedule;
use crate::spare::{First, Spares};

/// Starts tasks on one event loop.
pub(crate) struct Tasks {
    event_loop: Py<PyAny>,
    /// `asyncio.Task`
    task: Py<PyAny>,
    start: Start,
    /// Put around coroutines on somebody else's loop, which `SystemExit` would end.
    contain: Option<Py<PyAny>>,
    /// The names of the keyword arguments that tasks are made with, without and with variables.
    names: (Py<PyTuple>, Py<PyTuple>),
    /// For functions that do not wait; `None` on somebody else's loop, and where asyncio is not as
    /// this was written for.
    spares: Option<Spares>,
}

enum Start {
    /// asyncio takes the first step.
    Eager { yes: Py<PyAny> },
    /// We take it, by catching the request for it.
    ByHand { schedule: Py<Schedule> },
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
            true => Start::ByHand { schedule: event_loop.cast::<Schedule>()?.clone().unbind() },
            false => Start::Later,
        };
        let names = match is_eager {
            true => (
                PyTuple::new(py, ["loop", "eager_start"])?,
                PyTuple::new(py, ["loop", "eager_start", "context"])?,
            ),
            false => (PyTuple::new(py, ["loop"])?, PyTuple::new(py, ["loop", "context"])?),
        };
        let contain = match is_ours {
            true => None,
            false => Some(py.import("ucall._guest")?.getattr("contained")?.unbind()),
        };
        Ok(Self {
            spares: is_ours.then(|| Spares::new(event_loop)).flatten(),
            contain,
            event_loop: event_loop.clone().unbind(),
            task: py.import("asyncio")?.getattr("Task")?.unbind(),
            start,
            names: (names.0.unbind(), names.1.unbind()),
        })
    }

    pub(crate) fn event_loop<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.event_loop.bind(py)
    }

    /// The first step of a coroutine whose function did not wait lately, if it can be taken without
    /// a task of its own.
    #[inline]
    pub(crate) fn step<'py>(
        &mut self,
        coroutine: &Bound<'py, PyAny>,
        variables: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<First<'py>>> {
        let Some(spares) = self.spares.as_mut().filter(|spares| spares.take(coroutine)) else {
            return Ok(None);
        };
        match variables {
            Some(variables) => spares.step(coroutine, variables),
            None => spares.step(coroutine, &own_variables(coroutine.py())?),
        }
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
        if let Some(contain) = &self.contain {
            let contained = contain.bind(py).call1((coroutine,))?;
            return self.start_one(&contained, variables);
        }
        self.start_one(coroutine, variables)
    }

    #[inline]
    fn start_one<'py>(
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
            Start::ByHand { schedule } if schedule.get().is_running() => {
                schedule.get().catch(py, || self.make_later(coroutine, variables, names))
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
