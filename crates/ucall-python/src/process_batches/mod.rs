//! Batches that run in other processes, which `python/ucall/_functions/batch_processes.py` starts.
//!
//! The worker passes the inputs of a batch's calls on as they are (`batch.rs`), so neither it nor
//! the threads that serve the processes attach to the interpreter for a batch. `runner.rs` is what
//! a process does: it reads the params, calls the function and writes the results.

mod batch;
mod runner;

pub(crate) use batch::SentBatch;
pub(crate) use runner::run_batches;

use std::mem;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use ucall_server::process_batches::{
    self, Peer, ProcessEnd, ProcessQueue, QueuedBatch, serve_process,
};

use crate::errors;

/// Why a batch fails when the server closes its processes.
const STOPS: &str = "the server stops";

/// The processes of a pool, and the batches that wait for them.
#[derive(Debug)]
struct Processes {
    state: Mutex<State>,
    count: usize,
    parallel: usize,
}

type Queue = ProcessQueue<QueuedBatch>;

#[derive(Debug)]
struct State {
    queue: Arc<Queue>,
    /// The batches that each process may have begun when it ended.
    begun: Vec<Vec<QueuedBatch>>,
}

impl Processes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> Arc<Queue> {
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
        let state = Mutex::new(State { queue, begun: (0..count).map(|_| Vec::new()).collect() });
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

    /// Takes batches, after `close`: for its processes, or for the host that has them, which counts
    /// as the first one.
    fn open(&self, has_host: bool) {
        let Processes { count, parallel, .. } = *self.0;
        let (count, parallel) = if has_host { (1, usize::MAX) } else { (count, parallel) };
        self.0.state().queue = Arc::new(ProcessQueue::new(count, parallel));
    }

    /// Serves a process, or the host, over a socket, which it closes, until that has ended or is to
    /// be killed. `exit` can be read when it has ended; -1 if there is no such descriptor.
    /// `on_ready` is called when it takes batches.
    ///
    /// Returns how it has ended, and whether it was ready.
    fn serve(
        &self,
        py: Python<'_>,
        process: usize,
        is_host: bool,
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
        let peer = if is_host { Peer::Host } else { Peer::Process };
        let left = py.detach(|| serve_process(&queue, process, peer, socket, exit, tell));
        if let Some(begun) = self.0.state().begun.get_mut(process) {
            *begun = left.begun;
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

    /// Passes on the batches of a worker, over a socket, which it closes, until the worker closes
    /// its own.
    fn serve_worker(&self, py: Python<'_>, socket: RawFd) -> PyResult<()> {
        // SAFETY: the caller gives the descriptor away.
        let socket = unsafe { UnixStream::from_raw_fd(socket) };
        let (queue, closed) = (self.0.queue(), errors::aborted(STOPS));
        let served = py.detach(|| process_batches::serve_worker(&queue, socket, &closed));
        served.map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Ends the batches that a process had begun when it ended: their calls fail, or run in another
    /// process if that `may_repeat` and they may run twice. Returns how many fail.
    fn settle(&self, process: usize, why: &str, may_repeat: bool) -> usize {
        let mut state = self.0.state();
        let begun = state.begun.get_mut(process).map(mem::take).unwrap_or_default();
        let (repeated, failed): (Vec<_>, Vec<_>) = begun
            .into_iter()
            .map(|mut batch| (may_repeat && batch.take_repetition(), batch))
            .partition(|(is_repeated, _)| *is_repeated);
        if !repeated.is_empty() {
            state.queue.set_lost(process, repeated.into_iter().map(|(_, batch)| batch).collect());
        }
        drop(state);
        let error = errors::aborted(why);
        failed.into_iter().map(|(_, batch)| process_batches::fail(batch, &error)).sum()
    }

    /// Fails the batches that wait, if no process is ready. Returns how many calls fail.
    fn fail_unserved(&self) -> usize {
        let batches = self.0.queue().take_unserved().into_iter();
        batches.map(|batch| process_batches::fail(batch, &errors::internal())).sum()
    }

    /// Takes no batches from now on. Those that wait fail.
    fn close(&self) {
        for batch in self.0.queue().close() {
            process_batches::fail(batch, &errors::aborted(STOPS));
        }
    }
}

/// Tells a worker, over a socket, which it closes, why it cannot have the processes of the host.
#[pyfunction]
pub(crate) fn refuse_worker(py: Python<'_>, socket: RawFd, reason: &str) {
    // SAFETY: the caller gives the descriptor away.
    let socket = unsafe { UnixStream::from_raw_fd(socket) };
    // A worker that has ended needs no reason.
    let _ = py.detach(|| process_batches::refuse_worker(socket, reason));
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
        if let Err(batch) = self.processes.queue().push(Box::new(batch)) {
            process_batches::fail(batch, &errors::aborted(STOPS));
        }
    }
}
