//! A run: turn after turn, until somebody stops it or its bounds are reached.

use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;

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
}

/// A worker on the thread that drives it, and what wakes it for signals.
pub(crate) struct Station {
    pub(crate) drive: Box<dyn Drive>,
    // Behind the worker, which is dropped first: it watches the descriptor until then.
    wakeups: Wakeups,
}

impl Station {
    pub(crate) fn new(mut drive: Box<dyn Drive>, listener: TcpListener) -> io::Result<Self> {
        let wakeups = Wakeups::new()?;
        drive.listen(listener)?;
        drive.watch_signals(wakeups.descriptor())?;
        Ok(Self { drive, wakeups })
    }

    /// Runs on the calling thread; on the main one, with the process's signals in hand.
    pub(crate) fn run(&mut self, py: Python<'_>, bounds: Bounds) -> PyResult<Ended> {
        let taken = Taken::by(py, &self.wakeups, self.drive.mailbox())?;
        let ended = self.turns(py, bounds);
        let given_back = taken.map_or(Ok(()), Taken::give_back);
        let ended = ended?;
        given_back.map(|()| ended)
    }

    fn turns(&mut self, py: Python<'_>, mut bounds: Bounds) -> PyResult<Ended> {
        while !bounds.are_reached() {
            let turn = self.drive.turn(py, bounds.deadline)?;
            let interpreter = self.drive.interpreter();
            interpreter.let_others_in(py);
            let interrupted = interpreter.take_interrupt();
            if turn.stopped || interrupted || turn.signalled && self.signalled(py)? {
                // What was written last goes out with the next wait.
                self.drive.turn(py, Some(Instant::now()))?;
                return Ok(Ended::Stopped);
            }
            bounds.count();
        }
        Ok(Ended::Bounded)
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
