//! The object by which Python code drives a worker: without an event loop, as the wait of the
//! server's own loop, or as callbacks of a program's loop.
//!
//! [`LoopDriver::run`] serves while there is no async function. [`LoopDriver::turn`] is the wait of
//! the server's own loop: it takes turns until a turn has given the loop something to do.
//! [`LoopDriver::turn_embedded`] takes turns that wait for nothing.

use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ucall_engine::Listener;

use super::runner::{Bounds, RunEnd, TurnOutcome, WorkerRunner};
use crate::engine;
use crate::thread_bound::ThreadBound;

/// The loop runs its callbacks for this long before the engine is polled again.
const SLICE: Duration = Duration::from_micros(200);
/// The slice while streams send items, of which each connection then sends several at once.
const STREAM_SLICE: Duration = Duration::from_micros(500);
/// Turns in a row within a program's loop, before its other callbacks run.
const EMBEDDED_TURNS_MAX: usize = 16;

/// Drives a worker, on the thread that made it.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct LoopDriver {
    run: ThreadBound<BoundedRun>,
    /// Set when the server's own loop gets a callback or a timer during its wait.
    is_wait_over: AtomicBool,
}

/// A run of a worker, and what bounds it.
struct BoundedRun {
    runner: WorkerRunner,
    bounds: Bounds,
    /// Not yet served.
    sockets: Option<Sockets>,
    ended: Option<RunEnd>,
    /// `stop` of the server's own loop.
    stop_loop: Option<Py<PyAny>>,
}

/// What a worker serves.
pub(crate) enum Sockets {
    /// Bound sockets.
    Bound {
        listener: Listener,
        /// Of UDP, if the server has it.
        datagrams: Option<UdpSocket>,
    },
    /// None: connections come by [`Message::Adopt`](ucall_server::Message::Adopt).
    Unbound,
}

impl LoopDriver {
    pub(crate) fn new(runner: WorkerRunner, bounds: Bounds, sockets: Option<Sockets>) -> Self {
        let run = BoundedRun { runner, bounds, sockets, ended: None, stop_loop: None };
        Self { run: ThreadBound::new(run), is_wait_over: AtomicBool::new(false) }
    }

    /// Takes the worker out, and why its run ended.
    pub(crate) fn take(&self) -> Option<(WorkerRunner, Option<RunEnd>)> {
        self.run.take().map(|run| (run.runner, run.ended))
    }

    fn with<T>(&self, work: impl FnOnce(&mut BoundedRun) -> PyResult<T>) -> PyResult<T> {
        let in_use =
            || PyRuntimeError::new_err("the server is in a turn, or belongs to another thread");
        self.run.with(work).ok_or_else(in_use)?
    }
}

#[pymethods]
impl LoopDriver {
    /// Starts to accept connections, unless an earlier run has.
    fn listen(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|run| {
            let Some(sockets) = run.sockets.take() else { return Ok(()) };
            run.runner.worker.handler_mut().functions.contexts.take_variables(py)?;
            let (listener, datagrams) = match sockets {
                Sockets::Bound { listener, datagrams } => (listener, datagrams),
                Sockets::Unbound => return Ok(()),
            };
            run.runner.worker.listen(listener)?;
            if let Some(datagrams) = datagrams {
                let listening = run.runner.worker.listen_datagrams(datagrams);
                listening.map_err(|error| engine::failure(py, error))?;
            }
            Ok(())
        })
    }

    /// Whether it has not listened yet.
    #[getter]
    fn is_new(&self) -> PyResult<bool> {
        self.with(|run| Ok(run.sockets.is_some()))
    }

    /// The event loop that async functions run on, if there is one.
    #[getter]
    fn event_loop(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.with(|run| {
            let tasks = run.runner.worker.handler_mut().deferral.known_tasks();
            Ok(tasks.map(|tasks| tasks.event_loop(py).clone().unbind()))
        })
    }

    /// Whether the run is over.
    #[getter]
    fn has_ended(&self) -> PyResult<bool> {
        self.with(|run| Ok(run.ended.is_some()))
    }

    /// Whether the run was stopped, rather than bounded.
    #[getter]
    fn is_stopped(&self) -> PyResult<bool> {
        self.with(|run| Ok(run.ended == Some(RunEnd::Stopped)))
    }

    /// Runs without an event loop, until the run is over or a call needs a loop.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|run| {
            let needs_loop = |runner: &mut WorkerRunner, _: &_| {
                runner.worker.handler_mut().deferral.known_tasks().is_some()
            };
            run.turn_until(py, None, needs_loop).map(drop)
        })
    }

    /// Runs async functions on a loop of the server's own, whose wait is `turn`, and whose
    /// descriptors `descriptor` watches.
    fn attach(&self, event_loop: &Bound<'_, PyAny>, descriptor: RawFd) -> PyResult<()> {
        self.with(|run| {
            // SAFETY: the selector that owns it stays open until `detach`.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            run.runner.worker.watch_loop(descriptor)?;
            run.stop_loop = Some(event_loop.getattr("stop")?.unbind());
            run.runner.worker.handler_mut().deferral.use_own_loop(event_loop)
        })
    }

    /// Runs async functions on a program's loop. Returns the descriptor that is ready when a turn
    /// is due. `wake` is called on the loop's thread for turns that no descriptor reports.
    fn attach_embedded(&self, event_loop: &Bound<'_, PyAny>, wake: Py<PyAny>) -> PyResult<RawFd> {
        self.with(|run| {
            run.runner.worker.handler_mut().deferral.use_program_loop(event_loop, wake)?;
            Ok(run.runner.worker.descriptor())
        })
    }

    /// Runs without an event loop from now on.
    fn detach(&self) -> PyResult<()> {
        self.with(|run| {
            run.runner.worker.unwatch_loop();
            run.stop_loop = None;
            run.runner.worker.handler_mut().deferral.leave_loop();
            Ok(())
        })
    }

    /// Waits for the server's own loop, up to `timeout` seconds (`None`: no limit). Returns early
    /// when the loop has something to do; `True` when its own descriptors are ready.
    fn turn(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.is_wait_over.store(false, Ordering::Relaxed);
        self.with(|run| run.wait(py, timeout, &self.is_wait_over))
    }

    /// Ends `turn` after the worker's turn that runs now.
    fn end_wait(&self) {
        self.is_wait_over.store(true, Ordering::Relaxed);
    }

    /// Takes some turns that wait for nothing. Returns the seconds until the next turn is due,
    /// `None` when only the descriptor reports it.
    fn turn_embedded(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        self.with(|run| run.turn_embedded(py))
    }
}

impl BoundedRun {
    /// Takes turns until the run is over, or `is_done` after a turn. `is_done` must not use Python.
    fn turn_until(
        &mut self,
        _: Python<'_>,
        deadline: Option<Instant>,
        is_done: impl FnMut(&mut WorkerRunner, &TurnOutcome) -> bool,
    ) -> PyResult<TurnOutcome> {
        let deadline = [self.bounds.deadline, deadline].into_iter().flatten().min();
        // Python code goes on behind a panic, too.
        let taken = catch_unwind(AssertUnwindSafe(|| self.take_turns(deadline, is_done)));
        self.runner.worker.handler_mut().attach();
        taken.unwrap_or_else(|panic| resume_unwind(panic))
    }

    #[inline]
    fn take_turns(
        &mut self,
        deadline: Option<Instant>,
        mut is_done: impl FnMut(&mut WorkerRunner, &TurnOutcome) -> bool,
    ) -> PyResult<TurnOutcome> {
        loop {
            let outcome = self.runner.turn(&mut self.bounds, deadline)?;
            self.ended = outcome.ended;
            if outcome.ended.is_some() || is_done(&mut self.runner, &outcome) {
                return Ok(outcome);
            }
        }
    }

    fn wait(
        &mut self,
        py: Python<'_>,
        timeout: Option<f64>,
        is_over: &AtomicBool,
    ) -> PyResult<bool> {
        let timeout = timeout.map(|it| Duration::try_from_secs_f64(it).unwrap_or(Duration::MAX));
        if timeout == Some(Duration::ZERO) {
            let interpreter = self.runner.worker.handler_mut();
            let turn_began = interpreter.functions.timing.turn_began();
            let sends_items = interpreter.deferral.streams.sends_items(turn_began);
            if turn_began.elapsed() < if sends_items { STREAM_SLICE } else { SLICE } {
                return Ok(false);
            }
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let outcome = self.turn_until(py, until, |_, outcome| {
            let is_late = || until.is_some_and(|until| until <= Instant::now());
            outcome.ready || is_over.load(Ordering::Relaxed) || is_late()
        })?;
        if let (Some(_), Some(stop_loop)) = (outcome.ended, &self.stop_loop) {
            stop_loop.call0(py)?;
        }
        Ok(outcome.ready)
    }

    fn turn_embedded(&mut self, py: Python<'_>) -> PyResult<Option<f64>> {
        let (mut turns, mut may_wait) = (0, false);
        self.turn_until(py, Some(Instant::now()), |runner, outcome| {
            turns += 1;
            may_wait = outcome.is_idle && runner.worker.prepare_to_wait();
            may_wait || turns == EMBEDDED_TURNS_MAX
        })?;
        // Before callbacks of the program, which may take long.
        let is_due = self.runner.worker.submit()?;
        if is_due || !may_wait {
            return Ok(Some(0.0));
        }
        let due = [self.bounds.deadline, self.runner.worker.deadline()].into_iter().flatten().min();
        Ok(due.map(|due| due.saturating_duration_since(Instant::now()).as_secs_f64()))
    }
}
