//! What Python keeps of each deferred call, and how outcomes reach the worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use ucall_engine::OwningProcess;
use ucall_proto::RpcError;
use ucall_server::{CallId, DeferredCalls, OutcomeQueue, Reservation, RunPermit, Token};

use crate::job_input::JobInput;
use crate::procedure::Procedure;
use crate::streams::{ItemTarget, StreamPosition, StreamRun};

/// The deferred calls and the running batches of one worker.
pub(crate) type Calls = DeferredCalls<Entry, DeferredOutcome>;

/// A call or a batch that runs.
pub(crate) struct Entry {
    pub(crate) procedure: Arc<Procedure>,
    pub(crate) kind: EntryKind,
}

pub(crate) enum EntryKind {
    Call(Deferred),
    /// A batch of these calls.
    Run(Vec<Token>),
    /// The task or thread of a generator.
    Stream(Arc<StreamRun>),
}

/// A call that will be answered later.
pub(crate) struct Deferred {
    /// A task or a future, which can be cancelled.
    pub(crate) future: Option<Py<PyAny>>,
    /// Read by `ctx.cancelled` on any thread.
    pub(crate) cancelled: Option<Arc<AtomicBool>>,
    pub(crate) retained: RetainedParams,
    pub(crate) items: CallItems,
    pub(crate) _permit: RunPermit,
}

/// The way of a call's items to its caller, if its function is a generator.
pub(crate) struct CallItems {
    pub(crate) caller: Option<CallId>,
    pub(crate) target: ItemTarget,
    /// Set when the generator exists.
    pub(crate) stream: Option<StreamPosition>,
}

/// What a call keeps of its request until it ends or is cancelled.
pub(crate) enum RetainedParams {
    /// The call runs, and its params stay reserved.
    Params { _reserved: Reservation },
    /// The arguments for a batch, until it starts.
    Arguments { arguments: Option<Vec<Py<PyAny>>>, _reserved: Reservation },
    /// The input for a thread.
    Input(Arc<JobInput>),
}

impl Entry {
    pub(crate) fn call(&mut self) -> Option<&mut Deferred> {
        match &mut self.kind {
            EntryKind::Call(call) => Some(call),
            EntryKind::Run(_) | EntryKind::Stream(_) => None,
        }
    }
}

impl Deferred {
    /// The arguments for a batch, once.
    pub(crate) fn take_arguments(&mut self) -> Option<Vec<Py<PyAny>>> {
        match &mut self.retained {
            RetainedParams::Arguments { arguments, .. } => arguments.take(),
            _ => None,
        }
    }

    /// Cancels the call: reports that to its code, and releases its params.
    pub(crate) fn cancel(&mut self) {
        if let Some(cancelled) = &self.cancelled {
            cancelled.store(true, Ordering::Relaxed);
        }
        if let RetainedParams::Input(input) = &self.retained {
            drop(input.take());
        }
        self.retained = RetainedParams::Params { _reserved: Reservation::default() };
    }
}

/// How a call or a batch ended.
pub(crate) enum DeferredOutcome {
    /// A task or a future that is done.
    Future(Py<PyAny>),
    /// The result of one call of a batch; an exception is raised for that call.
    BatchResult(Py<PyAny>),
    /// Items of a stream wait. The outcome follows.
    Items,
    /// The JSON text of the result, or an error.
    Text(Result<Vec<u8>, RpcError>),
}

/// Where tasks, futures and threads report outcomes.
///
/// A function may fork. Its child ends as soon as it reports an outcome: it would go on as a copy
/// of the worker's thread, or of a pool's, with its parent's connections.
pub(crate) struct Outcomes {
    queue: Arc<OutcomeQueue<DeferredOutcome>>,
    /// Schedules a turn of a worker that is embedded in another event loop.
    waker: Mutex<Option<Py<PyAny>>>,
    process: OwningProcess,
}

impl Outcomes {
    pub(crate) fn new(calls: &Calls) -> Self {
        let (queue, waker) = (calls.outcomes().clone(), Mutex::default());
        Self { queue, waker, process: OwningProcess::current() }
    }

    pub(crate) fn set_waker(&self, waker: Option<Py<PyAny>>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker;
    }

    /// Reports an outcome on the worker's own thread.
    pub(crate) fn push(&self, py: Python<'_>, token: Token, outcome: DeferredOutcome) {
        self.process.end_child();
        if !self.queue.push(token, outcome) {
            return;
        }
        let waker = {
            let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            waker.as_ref().map(|waker| waker.clone_ref(py))
        };
        if let Some(waker) = waker
            && let Err(error) = waker.call0(py)
        {
            error.write_unraisable(py, None);
        }
    }

    /// Reports an outcome on any thread, and wakes the worker.
    pub(crate) fn send(&self, token: Token, outcome: DeferredOutcome) {
        self.process.end_child();
        self.queue.send(token, outcome);
    }

    /// Reports the outcomes of a batch on any thread, and wakes the worker once.
    pub(crate) fn send_all(&self, outcomes: Vec<(Token, DeferredOutcome)>) {
        self.process.end_child();
        self.queue.send_all(outcomes);
    }
}

/// The callback of a task or a future, which reports it when it is done.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct DoneCallback {
    token: Token,
    outcomes: Arc<Outcomes>,
    /// Whether it is called on the worker's own thread.
    is_local: bool,
}

impl DoneCallback {
    pub(crate) fn new(token: Token, outcomes: Arc<Outcomes>, is_local: bool) -> Self {
        Self { token, outcomes, is_local }
    }
}

#[pymethods]
impl DoneCallback {
    #[pyo3(signature = (future, /))]
    pub(crate) fn __call__(&self, py: Python<'_>, future: Py<PyAny>) {
        match self.is_local {
            true => self.outcomes.push(py, self.token, DeferredOutcome::Future(future)),
            false => self.outcomes.send(self.token, DeferredOutcome::Future(future)),
        }
    }
}
