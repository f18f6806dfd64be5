//! A run: turn after turn, until somebody stops it or its bounds are reached.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use ucall_server::{Drain, Message};

use crate::engine::Drive;
use crate::signals::{Taken, Wakeups};

/// When a run ends by itself.
pub(crate) struct Bounds {
    turns_left: Option<u64>,
    deadline: Option<Instant>,
}

impl Bounds {
    /// Negative numbers are no bounds.
    pub(crate) fn new(max_cycles: i64, max_seconds: f64) -> PyResult<Self> {
        if max_seconds.is_nan() {
            return Err(PyValueError::new_err("max_seconds: expected a number of seconds"));
        }
        // What is too long for a clock is no bound either.
        let time = Duration::try_from_secs_f64(max_seconds).ok();
        Ok(Self {
            turns_left: u64::try_from(max_cycles).ok(),
            deadline: time.and_then(|time| Instant::now().checked_add(time)),
        })
    }

    /// Counts a turn.
    fn count(&mut self) {
        self.turns_left = self.turns_left.map(|left| left.saturating_sub(1));
    }

    fn are_reached(&self) -> bool {
        self.turns_left == Some(0) || self.deadline.is_some_and(|it| Instant::now() >= it)
    }
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// It was stopped: by `stop()`, Ctrl-C or SIGTERM.
    Stopped,
    /// Its bounds were reached; it may be taken up again.
    Bounded,
    /// An async function was called for the first time: it has to go on within an event loop.
    NeedsLoop,
}

/// What one turn has come to.
pub(crate) struct Turned {
    /// The run is over.
    pub(crate) ended: Option<Ended>,
    /// The event loop's own descriptors are ready.
    pub(crate) ready: bool,
    /// Nothing happened.
    pub(crate) quiet: bool,
}

/// A worker on the thread that drives it, and what wakes it for signals.
pub(crate) struct Station {
    pub(crate) drive: Box<dyn Drive>,
    // Behind the worker, which is dropped first: it watches the descriptor until then.
    wakeups: Wakeups,
}

impl Station {
    pub(crate) fn new(mut drive: Box<dyn Drive>) -> io::Result<Self> {
        let wakeups = Wakeups::new()?;
        drive.watch_signals(wakeups.descriptor())?;
        let mailbox = drive.mailbox();
        drive.interpreter().calls.outcomes().lead_to(mailbox);
        Ok(Self { drive, wakeups })
    }

    /// Takes the process's signals in hand, on the main thread.
    pub(crate) fn take_signals<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Taken<'py>>> {
        let is_in_function = self.drive.interpreter().is_in_function();
        Taken::by(py, &self.wakeups, &self.drive.mailbox(), is_in_function)
    }

    /// Runs without an event loop, for as long as none is needed.
    pub(crate) fn run(&mut self, py: Python<'_>, bounds: &mut Bounds) -> PyResult<Ended> {
        loop {
            let deadline = bounds.deadline;
            if let Some(ended) = self.turn(py, bounds, deadline)?.ended {
                return Ok(ended);
            }
            if self.drive.interpreter().tasks.is_some() {
                return Ok(Ended::NeedsLoop);
            }
        }
    }

    /// One turn, unless the run has reached its bounds.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        py: Python<'_>,
        bounds: &mut Bounds,
        deadline: Option<Instant>,
    ) -> PyResult<Turned> {
        if bounds.are_reached() {
            return Ok(Turned { ended: Some(Ended::Bounded), ready: false, quiet: true });
        }
        let turn = self.drive.turn(py, deadline)?;
        let interpreter = self.drive.interpreter();
        interpreter.let_others_in(py);
        let interrupted = interpreter.take_interrupt();
        if interrupted || turn.signalled && self.signalled(py)? {
            self.drive.mailbox().send(Message::Drain(Drain::Refusing));
        }
        bounds.count();
        if turn.stopped {
            self.drive.end(py)?;
        }
        let ended = turn.stopped.then_some(Ended::Stopped);
        Ok(Turned { ended, ready: turn.ready, quiet: turn.quiet })
    }

    /// The deadline of this run or that one, whichever is sooner.
    pub(crate) fn sooner(bounds: &Bounds, deadline: Option<Instant>) -> Option<Instant> {
        [bounds.deadline, deadline].into_iter().flatten().min()
    }

    /// Watches the descriptor of an event loop, which stays open until [`Station::unwatch_loop`].
    pub(crate) fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.drive.watch_loop(descriptor)
    }

    pub(crate) fn unwatch_loop(&mut self) {
        self.drive.unwatch_loop();
    }

    /// Lets Python's signal handlers run. `true` for a Ctrl-C; other exceptions end the run.
    fn signalled(&self, py: Python<'_>) -> PyResult<bool> {
        self.wakeups.drain();
        match py.check_signals() {
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Ok(true),
            checked => checked.map(|()| false),
        }
    }
}
