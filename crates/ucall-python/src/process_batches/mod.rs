//! Batches that run in other processes, which `python/ucall/_functions/batch_processes.py` starts.
//!
//! The worker passes the inputs of a batch's calls on as they are (`batch.rs`), so neither it nor
//! the threads that serve the processes attach to the interpreter for a batch. `runner.rs` is what
//! a process does: it reads the params, calls the function and writes the results.

mod batch;
mod runner;

pub(crate) use batch::SentBatch;
pub(crate) use runner::run_batches;

use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ucall_server::process_batches::{ProcessEnd, ProcessQueue, serve_process};

use crate::errors;

/// The processes of a pool, and the batches that wait for them.
#[derive(Debug)]
struct Processes {
    state: Mutex<State>,
    count: usize,
    parallel: usize,
}

#[derive(Debug)]
struct State {
    queue: Arc<ProcessQueue<SentBatch>>,
    /// The batch that each process may have begun when it ended.
    begun: Vec<Option<SentBatch>>,
}

impl Processes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> Arc<ProcessQueue<SentBatch>> {
        self.state().queue.clone()
    }
}

/// Processes that run batches.
///
/// A thread of Python starts each process, and serves it by `serve` until it has ended. That
/// attaches to the interpreter once, when the process is ready.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct BatchProcesses(Arc<Processes>);

#[pymethods]
impl BatchProcesses {
    /// This many processes, each with at most `parallel` batches at once.
    #[new]
    fn new(count: usize, parallel: usize) -> Self {
        let queue = Arc::new(ProcessQueue::new(count, parallel));
        let state = Mutex::new(State { queue, begun: (0..count).map(|_| None).collect() });
        Self(Arc::new(Processes { state, count, parallel }))
    }

    /// What the core calls in place of the function of this index.
    fn function(&self, index: usize) -> ProcessFunction {
        ProcessFunction { processes: self.0.clone(), index }
    }

    /// How many processes are ready.
    #[getter]
    fn ready(&self) -> usize {
        self.0.queue().ready()
    }

    /// Takes batches, after `close`.
    fn open(&self) {
        let processes = &self.0;
        processes.state().queue = Arc::new(ProcessQueue::new(processes.count, processes.parallel));
    }

    /// Serves a process over a socket, which it closes, until the process has ended or is to be
    /// killed. `exit` can be read when the process has ended; -1 if there is no such descriptor.
    /// `on_ready` is called when the process takes batches.
    ///
    /// Returns how it has ended, and whether it was ready.
    fn serve(
        &self,
        py: Python<'_>,
        process: usize,
        socket: RawFd,
        exit: RawFd,
        on_ready: Py<PyAny>,
    ) -> (&'static str, String, bool) {
        // SAFETY: the caller gives the descriptor away.
        let socket = unsafe { UnixStream::from_raw_fd(socket) };
        // SAFETY: the caller keeps this one open.
        let exit = (exit >= 0).then(|| unsafe { BorrowedFd::borrow_raw(exit) });
        let queue = self.0.queue();
        let tell = || Python::attach(|py| drop(on_ready.call0(py)));
        let left = py.detach(|| serve_process(&queue, process, socket, exit, tell));
        if let Some(slot) = self.0.state().begun.get_mut(process) {
            *slot = left.begun;
        }
        let (end, reason) = match left.end {
            ProcessEnd::Closed => ("closed", String::new()),
            ProcessEnd::Died => ("died", String::new()),
            ProcessEnd::DeadlinePassed => ("deadline", String::new()),
            ProcessEnd::Invalid => ("invalid", String::new()),
            ProcessEnd::Failed(reason) => ("failed", reason),
        };
        (end, reason, left.was_ready)
    }

    /// Ends the batch that a process had begun when it ended: its calls fail, or run in another
    /// process if that `may_repeat` and they may run twice. Returns how many fail.
    fn settle(&self, process: usize, why: &str, may_repeat: bool) -> usize {
        let mut state = self.0.state();
        let Some(mut batch) = state.begun.get_mut(process).and_then(Option::take) else { return 0 };
        if may_repeat && batch.take_repetition() {
            state.queue.set_lost(process, vec![batch]);
            return 0;
        }
        drop(state);
        batch.fail(&errors::aborted(why))
    }

    /// Fails the batches that wait, if no process is ready. Returns how many calls fail.
    fn fail_unserved(&self) -> usize {
        let batches = self.0.queue().take_unserved();
        batches.into_iter().map(|batch| batch.fail(&errors::internal())).sum()
    }

    /// Takes no batches from now on. Those that wait fail.
    fn close(&self) {
        for batch in self.0.queue().close() {
            batch.fail(&errors::aborted("the server stops"));
        }
    }
}

/// A function that runs in other processes.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Clone, Debug)]
pub(crate) struct ProcessFunction {
    processes: Arc<Processes>,
    /// Its index in its process.
    index: usize,
}

impl ProcessFunction {
    /// That which an object is.
    pub(crate) fn of(object: &Py<PyAny>) -> Option<Self> {
        Python::attach(|py| Some(object.bind(py).cast::<Self>().ok()?.get().clone()))
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Has a process run a batch.
    pub(crate) fn submit(&self, batch: SentBatch) {
        if let Err(batch) = self.processes.queue().push(batch) {
            batch.fail(&errors::aborted("the server stops"));
        }
    }
}
