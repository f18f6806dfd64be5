//! A worker and the thread that drives it, turn by turn, until the run is stopped or bounded.

use std::io;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use ucall_server::{AnyWorker, Drain, Message};

use crate::handler::Interpreter;
use crate::signals::{SignalHandlers, WakeupPipe};

/// The limits after which a run ends by itself.
pub(crate) struct Bounds {
    turns_left: Option<u64>,
    pub(crate) deadline: Option<Instant>,
}

impl Bounds {
    /// Negative numbers are no bounds.
    pub(crate) fn new(max_cycles: i64, max_seconds: f64) -> PyResult<Self> {
        if max_seconds.is_nan() {
            return Err(PyValueError::new_err("max_seconds: expected a number of seconds"));
        }
        // A time that the clock cannot represent is no bound either.
        let time = Duration::try_from_secs_f64(max_seconds).ok();
        Ok(Self {
            turns_left: u64::try_from(max_cycles).ok(),
            deadline: time.and_then(|time| Instant::now().checked_add(time)),
        })
    }

    fn count_turn(&mut self) {
        self.turns_left = self.turns_left.map(|left| left.saturating_sub(1));
    }

    fn are_reached(&self) -> bool {
        self.turns_left == Some(0) || self.deadline.is_some_and(|it| Instant::now() >= it)
    }
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunEnd {
    /// By `stop()`, Ctrl-C or SIGTERM.
    Stopped,
    /// By its bounds. The next run resumes the worker.
    Bounded,
}

/// The outcome of one turn.
pub(crate) struct TurnOutcome {
    /// Set when the run is over.
    pub(crate) ended: Option<RunEnd>,
    /// The event loop's own descriptors are ready.
    pub(crate) ready: bool,
    /// Nothing happened.
    pub(crate) is_idle: bool,
}

/// A worker on the thread that drives it, and the pipe that wakes it for signals.
pub(crate) struct WorkerRunner {
    /// Only [`WorkerRunner::turn`] takes its turns.
    pub(crate) worker: Box<dyn AnyWorker<Interpreter>>,
    // After the worker, which watches the pipe until it is dropped.
    wakeup_pipe: WakeupPipe,
}

impl WorkerRunner {
    pub(crate) fn new(mut worker: Box<dyn AnyWorker<Interpreter>>) -> io::Result<Self> {
        let wakeup_pipe = WakeupPipe::new()?;
        worker.watch_signals(wakeup_pipe.descriptor())?;
        Ok(Self { worker, wakeup_pipe })
    }

    /// Handles the signals of the process, if this is the main thread.
    pub(crate) fn install_signal_handlers<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<Option<SignalHandlers<'py>>> {
        let is_in_function = self.worker.handler_mut().functions.report.is_in_function();
        SignalHandlers::install(py, &self.wakeup_pipe, &self.worker.mailbox(), is_in_function)
    }

    /// Takes one turn, or many while no event loop waits for a turn and the run has no bounds; none
    /// if it has reached these. The thread may be detached then.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        bounds: &mut Bounds,
        deadline: Option<Instant>,
    ) -> PyResult<TurnOutcome> {
        if bounds.are_reached() {
            return Ok(TurnOutcome { ended: Some(RunEnd::Bounded), ready: false, is_idle: true });
        }
        let is_unbounded = deadline.is_none() && bounds.turns_left.is_none();
        let has_tasks = self.worker.handler_mut().deferral.known_tasks().is_some();
        let turn = match is_unbounded && !has_tasks {
            true => self.worker.turns()?,
            false => self.worker.turn(deadline)?,
        };
        let interrupted = self.worker.handler_mut().functions.report.take_interrupt();
        if interrupted || turn.signalled && self.handle_signals()? {
            self.worker.mailbox().send(Message::drain(Drain::Refusing));
        }
        bounds.count_turn();
        if turn.stopped {
            self.worker.shut_down()?;
        }
        let ended = turn.stopped.then_some(RunEnd::Stopped);
        Ok(TurnOutcome { ended, ready: turn.ready, is_idle: turn.idle })
    }

    /// Runs Python's signal handlers. Returns `true` for a Ctrl-C; other exceptions end the run.
    fn handle_signals(&mut self) -> PyResult<bool> {
        self.wakeup_pipe.drain();
        let py = self.worker.handler_mut().attach();
        match py.check_signals() {
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Ok(true),
            checked => checked.map(|()| false),
        }
    }
}
