//! Async functions: a task of asyncio's for the coroutine of each call.
//!
//! A task's first step runs at once, inside the task (`asyncio.timeout` and anyio ask for one), so
//! that a coroutine which never waits has its result within the turn of its call. From CPython 3.12
//! on asyncio does that by itself (`eager_start`). On 3.11 a new task asks its loop by `call_soon`
//! to be stepped; a loop of ours does that at once, any other loop in its next iteration.
//!
//! A loop that was given a task factory makes every task by `loop.create_task`, and the factory
//! decides when the task begins.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::context::run_in;
use crate::ffi;
use crate::loop_queues::LoopQueues;

/// Starts tasks on one event loop.
pub(crate) struct Tasks {
    event_loop: Py<PyAny>,
    owner: Owner,
    /// `asyncio.Task`
    task: Py<PyAny>,
    /// `True`, where asyncio can take the first step.
    eager_start: Option<Py<PyAny>>,
    /// The names of the keyword arguments that tasks are made with.
    names: Py<PyTuple>,
}

/// Who made the event loop.
enum Owner {
    Ours(Py<LoopQueues>),
    Program {
        /// Put around coroutines, whose `SystemExit` would end the loop.
        guarded: Py<PyAny>,
        /// `loop.get_task_factory`
        get_task_factory: Py<PyAny>,
    },
}

impl Tasks {
    /// Tasks on `event_loop`, which is a `LoopQueues` if it `is_core_loop`.
    pub(crate) fn new(event_loop: &Bound<'_, PyAny>, is_core_loop: bool) -> PyResult<Self> {
        let py = event_loop.py();
        let owner = match is_core_loop {
            true => Owner::Ours(event_loop.cast::<LoopQueues>()?.clone().unbind()),
            false => Owner::Program {
                guarded: py.import("ucall._embedded_loop")?.getattr("exit_guarded")?.unbind(),
                get_task_factory: event_loop.getattr("get_task_factory")?.unbind(),
            },
        };
        let is_eager = py.version_info() >= (3, 12);
        let names = match is_eager {
            true => PyTuple::new(py, ["loop", "context", "eager_start"])?,
            false => PyTuple::new(py, ["loop", "context"])?,
        };
        Ok(Self {
            event_loop: event_loop.clone().unbind(),
            owner,
            task: py.import("asyncio")?.getattr("Task")?.unbind(),
            eager_start: is_eager.then(|| PyBool::new(py, true).to_owned().into_any().unbind()),
            names: names.unbind(),
        })
    }

    pub(crate) fn event_loop<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.event_loop.bind(py)
    }

    /// A task for a coroutine, its first step taken if that is possible; `variables` are its
    /// `contextvars.Context`, which no other task has.
    pub(crate) fn start<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        match &self.owner {
            Owner::Ours(loop_queues) => {
                let loop_queues = loop_queues.get();
                if loop_queues.has_task_factory() {
                    return self.create(coroutine, variables);
                }
                let task = self.make(coroutine, variables)?;
                if self.eager_start.is_none() && loop_queues.is_running() {
                    loop_queues.run_first_step(&task)?;
                }
                Ok(task)
            }
            Owner::Program { guarded, get_task_factory } => {
                let coroutine = ffi::call(guarded.bind(py), [coroutine])?;
                match ffi::call(get_task_factory.bind(py), [])?.is_none() {
                    true => self.make(&coroutine, variables),
                    false => self.create(&coroutine, variables),
                }
            }
        }
    }

    #[inline]
    fn make<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        let (task, names) = (self.task.bind(py), self.names.bind(py));
        let event_loop = self.event_loop.bind(py);
        match &self.eager_start {
            Some(yes) => {
                ffi::call_with_names(task, &[coroutine, event_loop, variables, yes.bind(py)], names)
            }
            None => ffi::call_with_names(task, &[coroutine, event_loop, variables], names),
        }
    }

    /// Lets the loop's task factory make a task. Its variables are a copy of these: a factory is
    /// not told of variables unless it has to be, as many take a loop and a coroutine only.
    #[cold]
    fn create<'py>(
        &self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = coroutine.py();
        let event_loop = self.event_loop.bind(py);
        run_in(variables, || event_loop.call_method1(intern!(py, "create_task"), (coroutine,)))
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
