//! Batches that run in other processes, which `python/ucall/_functions/batch_processes.py` starts.
//!
//! The worker passes the inputs of a batch's calls on as they are (`batch.rs`), so neither it nor
//! the threads that serve the processes attach to the interpreter for a batch. `runner.rs` is what
//! a process does: it reads the params, calls the function and writes the results.

mod batch;
mod origin;
mod runner;

pub(crate) use batch::SentBatch;
pub(crate) use runner::run_batches;

use std::mem;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use ucall_server::process_batches::{
    self, BatchSemaphore, FunctionTimes, Peer, ProcessEnd, ProcessQueue, QueuedBatch, serve_process,
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
    /// What the process that was ready first has measured.
    times: FunctionTimes,
}

impl State {
    fn keep_times(&mut self, times: FunctionTimes) {
        if self.times.is_empty() {
            self.times = times;
        }
    }
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
    /// This many processes, each with at most `parallel` batches at once, and one ahead.
    #[new]
    fn new(count: usize, parallel: usize) -> Self {
        let parallel = parallel.saturating_add(1);
        let queue = Arc::new(ProcessQueue::new(count, parallel));
        let begun = (0..count).map(|_| Vec::new()).collect();
        let state = Mutex::new(State { queue, begun, times: FunctionTimes::new() });
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

    /// Whether any function of it may still be called, or has calls that have not ended.
    #[getter]
    fn is_used(&self) -> bool {
        // Functions, and what calls them, share the processes.
        Arc::strong_count(&self.0) > 1
    }

    /// Takes batches, after `close`: for its processes, or for the host that has them, which counts
    /// as the first one.
    fn open(&self, has_host: bool) {
        let Processes { count, parallel, .. } = *self.0;
        let (count, parallel) = if has_host { (1, usize::MAX) } else { (count, parallel) };
        self.0.state().queue = Arc::new(ProcessQueue::new(count, parallel));
    }

    /// Serves a process, or the host, over a socket, which it closes, until that has ended or is to
    /// be killed. `semaphore` is the pair of sockets of a process by which its batches are counted,
    /// which are closed likewise; `None` for the host. `exit` can be read when it has ended; -1 if
    /// there is no such descriptor. `on_ready` is called when it takes batches.
    ///
    /// Returns how it has ended, and whether it was ready.
    fn serve(
        &self,
        py: Python<'_>,
        process: usize,
        semaphore: Option<(RawFd, RawFd)>,
        socket: RawFd,
        exit: RawFd,
        on_ready: Py<PyAny>,
    ) -> PyResult<(&'static str, String, bool)> {
        // SAFETY: the caller gives the descriptors away.
        let owned = |descriptor| unsafe { UnixStream::from_raw_fd(descriptor) };
        let (socket, semaphore) = (owned(socket), semaphore.map(|(a, b)| (owned(a), owned(b))));
        // SAFETY: the caller keeps this one open.
        let exit = (exit >= 0).then(|| unsafe { BorrowedFd::borrow_raw(exit) });
        let queue = self.0.queue();
        let tell = |times: FunctionTimes| {
            self.0.state().keep_times(times);
            Python::attach(|py| drop(on_ready.call0(py)));
        };
        let peer = match semaphore {
            Some((poster, acquirer)) => Peer::Process(BatchSemaphore::new(poster, acquirer)?),
            None => Peer::Host,
        };
        let left = py.detach(|| serve_process(&queue, process, peer, socket, exit, tell));
        if let Some(begun) = self.0.state().begun.get_mut(process) {
            *begun = left.begun;
        }
        fail_all(left.unbegun, STOPS);
        let (end, reason) = match left.end {
            ProcessEnd::Closed => ("closed", String::new()),
            ProcessEnd::Died => ("died", String::new()),
            ProcessEnd::DeadlinePassed => ("deadline", String::new()),
            ProcessEnd::Invalid => ("invalid", String::new()),
            ProcessEnd::Failed(reason) => ("failed", reason),
        };
        Ok((end, reason, left.was_ready))
    }

    /// Passes on the batches of a worker, over a socket, which it closes, until the worker closes
    /// its own.
    fn serve_worker(&self, py: Python<'_>, socket: RawFd) -> PyResult<()> {
        // SAFETY: the caller gives the descriptor away.
        let socket = unsafe { UnixStream::from_raw_fd(socket) };
        let (queue, closed) = (self.0.queue(), errors::aborted(STOPS));
        let times = process_batches::encode_times(&self.0.state().times);
        let served = py.detach(|| process_batches::serve_worker(&queue, socket, &times, &closed));
        served.map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Ends the batches that a process had begun when it ended: their calls fail, or run in another
    /// process if that `may_repeat` and they may run twice. Returns how many fail, and what the log
    /// says of them, in text and as JSON objects: nothing of those of another worker.
    fn end_batches(
        &self,
        process: usize,
        why: &str,
        may_repeat: bool,
    ) -> (usize, Vec<(String, String)>) {
        let mut state = self.0.state();
        let begun = state.begun.get_mut(process).map(mem::take).unwrap_or_default();
        let (repeated, failed): (Vec<_>, Vec<_>) = begun
            .into_iter()
            .map(|mut batch| (may_repeat && batch.take_repetition(), batch))
            .partition(|(is_repeated, _)| *is_repeated);
        let repeated = repeated.into_iter().map(|(_, batch)| batch).collect();
        let unserved = state.queue.set_lost(process, repeated);
        drop(state);
        let failed: Vec<_> = failed.into_iter().map(|(_, batch)| batch).collect();
        let sources = failed.iter().flat_map(|batch| batch.sources());
        let sources = sources.map(|source| (source.text(), source.json())).collect();
        (fail_all(failed, why) + fail_all(unserved, STOPS), sources)
    }

    /// Fails the batches that wait, if no process is ready. Returns how many calls fail.
    fn fail_unserved(&self) -> usize {
        let batches = self.0.queue().take_unserved().into_iter();
        batches.map(|batch| batch.fail(&errors::internal())).sum()
    }

    /// Takes no batches from now on. Those that wait fail.
    fn close(&self) {
        fail_all(self.0.queue().close(), STOPS);
    }
}

/// Ends batches. Returns how many calls fail.
fn fail_all(batches: Vec<QueuedBatch>, why: &str) -> usize {
    let error = errors::aborted(why);
    batches.into_iter().map(|batch| batch.fail(&error)).sum()
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

    /// The times of batches by their weights, as a process has measured them.
    pub(crate) fn times(&self) -> Vec<(u64, Duration)> {
        self.processes.state().times.get(self.index).cloned().unwrap_or_default()
    }

    /// Has a process run a batch.
    pub(crate) fn submit(&self, batch: SentBatch) {
        if let Err(batch) = self.processes.queue().push(Box::new(batch)) {
            batch.fail(&errors::aborted(STOPS));
        }
    }

    /// Takes back the batches that should not begin as they are.
    pub(crate) fn recall(&self) {
        process_batches::recall(&self.processes.queue());
    }
}
