//! Async functions: an `asyncio.Task` for the coroutine of each call.
//!
//! A task takes its first step when it is made, so a coroutine that never waits has its result
//! within the turn of its call. From CPython 3.12 on asyncio does that (`eager_start`), on 3.11 the
//! server's own loop; on 3.11 within a program's loop the first step is a callback of that loop. On
//! a loop with a task factory `loop.create_task` makes every task, and the factory decides when the
//! task begins.

use std::cell::OnceCell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::ffi;
use crate::ffi::variables::run_in;

const EVENT_LOOP: &str = "ucall._server.event_loop";
const STREAMS: &str = "ucall._server.streams";
/// The first version whose `asyncio.Task` takes `eager_start`.
const EAGER_START: (u8, u8) = (3, 12);

/// Starts tasks on one event loop.
pub(crate) struct Tasks {
    event_loop: Py<PyAny>,
    /// `loop.get_task_factory`
    get_task_factory: Py<PyAny>,
    /// The coroutine functions that run async generators, once there was one: without and with
    /// slots.
    streams: OnceCell<[Py<PyAny>; 2]>,
    /// Wraps coroutines on a program's loop, which their `SystemExit` would end.
    guard: Option<Py<PyAny>>,
    /// `asyncio.Task`, or the `new_task` of the server's own loop.
    new_task: Py<PyAny>,
    /// `True` where `asyncio.Task` takes `eager_start`.
    eager_start: Option<Py<PyAny>>,
    /// The names of the keyword arguments of `new_task`.
    names: Py<PyTuple>,
}

impl Tasks {
    /// Tasks on a new event loop of the server's own.
    pub(crate) fn on_new_loop(py: Python<'_>) -> PyResult<Self> {
        Self::on_own_loop(&py.import(EVENT_LOOP)?.getattr("Loop")?.call0()?)
    }

    /// Tasks on a loop of the server's own.
    pub(crate) fn on_own_loop(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = event_loop.py();
        let new_task = match py.version_info() >= EAGER_START {
            true => py.import("asyncio")?.getattr("Task")?,
            false => py.import(EVENT_LOOP)?.getattr("new_task")?,
        };
        Self::new(event_loop, new_task.unbind(), None)
    }

    /// Tasks on a loop that the program runs.
    pub(crate) fn on_program_loop(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = event_loop.py();
        let new_task = py.import("asyncio")?.getattr("Task")?.unbind();
        let guard = py.import("ucall._server.embedded")?.getattr("exit_guarded")?.unbind();
        Self::new(event_loop, new_task, Some(guard))
    }

    fn new(
        event_loop: &Bound<'_, PyAny>,
        new_task: Py<PyAny>,
        guard: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let py = event_loop.py();
        let is_eager = py.version_info() >= EAGER_START;
        let names = match is_eager {
            true => PyTuple::new(py, ["loop", "context", "eager_start"])?,
            false => PyTuple::new(py, ["loop", "context"])?,
        };
        Ok(Self {
            event_loop: event_loop.clone().unbind(),
            get_task_factory: event_loop.getattr("get_task_factory")?.unbind(),
            streams: OnceCell::new(),
            guard,
            new_task,
            eager_start: is_eager.then(|| PyBool::new(py, true).to_owned().into_any().unbind()),
            names: names.unbind(),
        })
    }

    pub(crate) fn event_loop<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.event_loop.bind(py)
    }

    /// Whether tasks that functions have made still run, on a loop of the server's own.
    pub(crate) fn has_made_tasks(&self, py: Python<'_>) -> bool {
        let asked = || {
            let made = self.event_loop(py).call_method0(intern!(py, "made_tasks"))?;
            made.is_truthy()
        };
        self.guard.is_none()
            && asked().unwrap_or_else(|error: PyErr| {
                error.write_unraisable(py, None);
                false
            })
    }

    /// Makes the coroutine that passes the items of an async generator to `sink`; `has_slots` if it
    /// takes calls between its steps.
    pub(crate) fn stream<'py>(
        &self,
        generator: &Bound<'py, PyAny>,
        sink: &Bound<'py, PyAny>,
        has_slots: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = generator.py();
        let [stream, slots] = match self.streams.get() {
            Some(streams) => streams,
            None => {
                let module = py.import(STREAMS)?;
                let (stream, slots) = (module.getattr("stream")?, module.getattr("slots")?);
                self.streams.get_or_init(|| [stream.unbind(), slots.unbind()])
            }
        };
        let run = if has_slots { slots } else { stream };
        ffi::call(run.bind(py), [generator, sink])
    }

    /// Starts a task for a coroutine, with a `contextvars.Context` that no other task has.
    pub(crate) fn start<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        let guarded = self.guard.as_ref().map(|guard| ffi::call(guard.bind(py), [coroutine]));
        let guarded = guarded.transpose()?;
        let coroutine = guarded.as_ref().unwrap_or(coroutine);
        match ffi::call(self.get_task_factory.bind(py), [])?.is_none() {
            true => self.new_task(coroutine, variables),
            false => self.create_task(coroutine, variables),
        }
    }

    #[inline]
    fn new_task<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        let (new_task, names) = (self.new_task.bind(py), self.names.bind(py));
        let event_loop = self.event_loop.bind(py);
        match &self.eager_start {
            Some(yes) => {
                let arguments = &[coroutine, event_loop, variables, yes.bind(py)];
                ffi::call_with_names(new_task, arguments, names)
            }
            None => ffi::call_with_names(new_task, &[coroutine, event_loop, variables], names),
        }
    }

    /// Creates a task by the loop's factory. The factory copies the variables of this thread:
    /// many factories take a loop and a coroutine only, so `context=` is not passed.
    #[cold]
    fn create_task<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        let event_loop = self.event_loop.bind(py);
        run_in(variables, || event_loop.call_method1(intern!(py, "create_task"), (coroutine,)))
    }
}

/// Cancels a task or a future.
pub(crate) fn cancel(py: Python<'_>, future: &Py<PyAny>) {
    if let Err(error) = future.call_method0(py, intern!(py, "cancel")) {
        error.write_unraisable(py, None);
    }
}

/// Whether a task or a future is done.
#[inline]
pub(crate) fn is_done(future: &Bound<'_, PyAny>) -> PyResult<bool> {
    future.call_method0(intern!(future.py(), "done"))?.is_truthy()
}

/// The result of a task or a future that is done; raises its exception.
#[inline]
pub(crate) fn result_of<'py>(future: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    future.call_method0(intern!(future.py(), "result"))
}

/// Completes a future, unless it is done: its task may have been cancelled.
pub(crate) fn set_done(future: &Bound<'_, PyAny>) -> PyResult<()> {
    if !is_done(future)? {
        future.call_method1(intern!(future.py(), "set_result"), (future.py().None(),))?;
    }
    Ok(())
}
