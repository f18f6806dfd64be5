//! The worker as Python code sees it that conducts a run: a pump that turns it.
//!
//! Without async functions the run stays in [`LoopDriver::run`]. With them, asyncio's loop runs,
//! and its wait is [`LoopDriver::turn`]: one turn of the worker, which watches asyncio's own
//! descriptors by one of its own. A turn that leaves asyncio nothing to do is followed by the next
//! one right here.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ucall_engine::Listener;

use crate::loop_queues::LoopQueues;
use crate::run::{Bounds, RunEnd, WorkerRunner};
use crate::tasks::Tasks;
use crate::thread_bound::ThreadBound;

/// Turns of a guest in a row, before its host has its turn.
const EMBEDDED_TURNS_MAX: usize = 16;

/// Turns a worker, on the thread that made it.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct LoopDriver {
    inner: ThreadBound<Inner>,
}

pub(crate) struct Inner {
    pub(crate) runner: WorkerRunner,
    bounds: Bounds,
    /// Bound, and not yet served.
    listener: Option<Listener>,
    ended: Option<RunEnd>,
    host: Option<HostLoop>,
}

/// What is looked at of the event loop that runs.
struct HostLoop {
    stop: Py<PyAny>,
    loop_queues: Py<LoopQueues>,
}

impl LoopDriver {
    pub(crate) fn new(runner: WorkerRunner, bounds: Bounds, listener: Option<Listener>) -> Self {
        let inner = Inner { runner, bounds, listener, ended: None, host: None };
        Self { inner: ThreadBound::new(inner) }
    }

    /// Takes the worker out again, and why its run ended.
    pub(crate) fn take(&self) -> Option<(WorkerRunner, Option<RunEnd>)> {
        self.inner.take().map(|inner| (inner.runner, inner.ended))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> PyResult<T>) -> PyResult<T> {
        let run_tracked =
            || PyRuntimeError::new_err("the server's turn is not over, or not this thread's");
        self.inner.with(work).ok_or_else(run_tracked)?
    }
}

#[pymethods]
impl LoopDriver {
    /// Starts to accept connections, unless that was done by an earlier run.
    fn listen(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|inner| {
            let Some(listener) = inner.listener.take() else { return Ok(()) };
            inner.runner.worker.interpreter().take_variables(py)?;
            Ok(inner.runner.worker.listen(listener)?)
        })
    }

    /// Whether it has not listened yet.
    #[getter]
    fn is_new(&self) -> PyResult<bool> {
        self.with(|inner| Ok(inner.listener.is_some()))
    }

    /// The event loop that async functions run on, if there is one.
    #[getter]
    fn event_loop(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.with(|inner| {
            let tasks = inner.runner.worker.interpreter().tasks.as_ref();
            Ok(tasks.map(|tasks| tasks.event_loop(py).clone().unbind()))
        })
    }

    /// Runs without an event loop until stopped or bounded (`True`), or until one is needed.
    fn run(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(|inner| {
            inner.ended = None;
            let ended = inner.runner.run(py, &mut inner.bounds)?;
            inner.ended = Some(ended).filter(|&ended| ended != RunEnd::NeedsLoop);
            Ok(inner.ended.is_some())
        })
    }

    /// Whether the run was stopped, rather than bounded.
    #[getter]
    fn is_stopped(&self) -> PyResult<bool> {
        self.with(|inner| Ok(inner.ended == Some(RunEnd::Stopped)))
    }

    /// Lets async functions run on `event_loop`. One of ours calls `turn` as its wait, and waits
    /// itself on `descriptor`.
    fn attach(&self, event_loop: &Bound<'_, PyAny>, descriptor: RawFd) -> PyResult<()> {
        self.with(|inner| {
            // SAFETY: the selector that it belongs to is open until it is detached.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            inner.runner.watch_loop(descriptor)?;
            inner.host = Some(HostLoop::new(event_loop)?);
            let interpreter = inner.runner.worker.interpreter();
            if interpreter.tasks.is_none() {
                interpreter.tasks = Some(Tasks::new(event_loop, true)?);
            }
            Ok(())
        })
    }

    /// Lets async functions run on somebody else's loop. `wake` is called, on its thread, when a
    /// turn is due that no descriptor tells of.
    fn attach_embedded(&self, event_loop: &Bound<'_, PyAny>, wake: Py<PyAny>) -> PyResult<RawFd> {
        self.with(|inner| {
            let interpreter = inner.runner.worker.interpreter();
            interpreter.tasks = Some(Tasks::new(event_loop, false)?);
            interpreter.outcomes.set_waker(Some(wake));
            Ok(inner.runner.worker.descriptor())
        })
    }

    /// Has no event loop any more.
    fn detach(&self) -> PyResult<()> {
        self.with(|inner| {
            inner.runner.unwatch_loop();
            inner.host = None;
            let interpreter = inner.runner.worker.interpreter();
            interpreter.tasks = None;
            interpreter.outcomes.set_waker(None);
            Ok(())
        })
    }

    /// The wait of an event loop of ours: returns after so many seconds (`None`: no bound), or when
    /// the loop has something to do. `True` when its own descriptors are ready.
    fn turn(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.with(|inner| inner.turns(py, timeout))
    }

    /// Some turns that wait for nothing. Seconds until the next is due, whatever happens; `None`
    /// when only the descriptor tells; `-1` when the run is over.
    fn turn_embedded(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.with(|inner| inner.embedded_turns(py))
    }
}

impl Inner {
    fn turns(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = timeout.map(|it| Duration::try_from_secs_f64(it).unwrap_or(Duration::MAX));
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let timer = self.host.as_ref().and_then(|host| host.loop_queues.get().deadline());
            let deadline =
                WorkerRunner::earlier(&self.bounds, [until, timer].into_iter().flatten().min());
            let outcome = self.runner.turn(py, &mut self.bounds, deadline)?;
            if outcome.ended.is_some() {
                self.ended = outcome.ended;
                if let Some(host) = &self.host {
                    host.stop.call0(py)?;
                }
                return Ok(outcome.ready);
            }
            let is_over = deadline.is_some_and(|deadline| deadline <= Instant::now());
            let has_work = self.host.as_ref().is_none_or(|host| host.loop_queues.get().has_work());
            if outcome.ready || is_over || has_work {
                return Ok(outcome.ready);
            }
        }
    }

    fn embedded_turns(&mut self, py: Python<'_>) -> PyResult<Option<f64>> {
        for _ in 0..EMBEDDED_TURNS_MAX {
            let outcome = self.runner.turn(py, &mut self.bounds, Some(Instant::now()))?;
            if outcome.ended.is_some() {
                self.ended = outcome.ended;
                return Ok(Some(-1.0));
            }
            if outcome.quiet && self.runner.worker.prepare_to_wait() {
                let until = WorkerRunner::earlier(&self.bounds, self.runner.worker.deadline());
                let left = |until: Instant| until.saturating_duration_since(Instant::now());
                return Ok(until.map(|until| left(until).as_secs_f64()));
            }
        }
        Ok(Some(0.0))
    }
}

impl HostLoop {
    fn new(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            stop: event_loop.getattr("stop")?.unbind(),
            loop_queues: event_loop.cast::<LoopQueues>()?.clone().unbind(),
        })
    }
}
