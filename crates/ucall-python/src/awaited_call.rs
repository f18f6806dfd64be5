//! Calls that async hooks await: of functions that run in threads, in batches or in slots.
//!
//! The hook runs in a task on the worker's thread, in the middle of a call, so it cannot start
//! another one there. It pushes an [`AwaitedStart`] into the queue of outcomes. The worker takes it
//! in its next poll, and starts the call as one without a caller (`deferral/awaited.rs`). Its
//! outcome is that of a future, which the hook awaits. The items of a generator wait here: the hook
//! gets them by further futures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_proto::RpcError;
use ucall_server::{CallId, Token};

use crate::convert::{Convert, Input, Scratch};
use crate::errors;
use crate::ffi::DropAttached;

/// A call that an async hook awaits, as those share it that run it. Any thread may drop it.
pub(crate) struct AwaitedCall(DropAttached<Shared>);

/// Items of a call that wait for its hook before its generator waits, too. They may be large.
const ITEMS_MAX: usize = 16;

struct Shared {
    state: Mutex<State>,
    is_cancelled: AtomicBool,
}

#[derive(Default)]
struct State {
    /// A future of asyncio, while the hook awaits the outcome or items.
    future: Option<Py<PyAny>>,
    /// Since the worker has started it.
    token: Option<Token>,
    /// Set if it is that of a native procedure.
    native: Option<CallId>,
    /// What the function has returned or raised, if that is known as an object.
    outcome: Option<PyResult<Py<PyAny>>>,
    /// What its generator has yielded.
    items: Vec<Py<PyAny>>,
}

/// A call that an async hook has the worker start.
pub(crate) struct AwaitedStart {
    /// The `ucall.Call` of the hook.
    pub(crate) call: Py<PyAny>,
    pub(crate) work: AwaitedWork,
    pub(crate) awaited: Arc<AwaitedCall>,
}

/// What runs elsewhere.
pub(crate) enum AwaitedWork {
    /// The function, where that runs.
    Function,
    /// A callable, in a thread: the function, or a step of its generator, which has been admitted.
    Thread { work: Py<PyAny>, is_step: bool },
}

impl AwaitedCall {
    pub(crate) fn new(future: Py<PyAny>) -> Self {
        let state = Mutex::new(State { future: Some(future), ..State::default() });
        Self(DropAttached::new(Shared { state, is_cancelled: AtomicBool::new(false) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_token(&self, token: Token) {
        self.state().token = Some(token);
    }

    /// The token of a call that has been started.
    pub(crate) fn token(&self) -> Option<Token> {
        self.state().token
    }

    /// The worker runs it as a call of a native procedure.
    pub(crate) fn set_native(&self, call: CallId) {
        self.state().native = Some(call);
    }

    pub(crate) fn native(&self) -> Option<CallId> {
        self.state().native
    }

    pub(crate) fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// The hook awaits the next items.
    pub(crate) fn set_future(&self, future: Py<PyAny>) {
        self.state().future = Some(future);
    }

    /// What the hook awaits: nothing resolves it any more.
    pub(crate) fn take_future(&self) -> Option<Py<PyAny>> {
        self.state().future.take()
    }

    /// Whether the hook awaits something.
    pub(crate) fn is_awaited(&self) -> bool {
        self.state().future.is_some()
    }

    /// Adds an item; `true` for the first one that waits.
    pub(crate) fn push_item(&self, item: Py<PyAny>) -> bool {
        let mut state = self.state();
        state.items.push(item);
        state.items.len() == 1
    }

    /// Whether the generator waits, because the hook has not taken [`ITEMS_MAX`] items.
    pub(crate) fn is_full(&self) -> bool {
        self.state().items.len() >= ITEMS_MAX
    }

    /// Takes the items that wait, for [`AwaitedCall::pass`].
    pub(crate) fn take_items(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut self.state().items)
    }

    /// Keeps what the function has returned or raised, for [`AwaitedCall::finish`].
    pub(crate) fn keep(&self, outcome: PyResult<Py<PyAny>>) {
        self.state().outcome = Some(outcome);
    }

    /// Passes the outcome to the hook, or keeps it for after the items: the object that was kept,
    /// or else the reply to the call.
    pub(crate) fn finish(&self, py: Python<'_>, reply: Result<&[u8], RpcError>) {
        let kept = self.state().outcome.take();
        let outcome = kept.unwrap_or_else(|| match reply {
            Ok(text) => value_of(py, text),
            Err(error) => Err(errors::rpc_exception(py, &error)),
        });
        self.keep(outcome);
        if self.is_awaited() {
            self.pass(py, self.take_items());
        }
    }

    /// Resolves the future, which there is, by a list of items, or without any by the outcome, if
    /// that is known.
    pub(crate) fn pass(&self, py: Python<'_>, items: Vec<Py<PyAny>>) {
        let (future, outcome) = {
            let mut state = self.state();
            let outcome = if items.is_empty() { state.outcome.take() } else { None };
            let has_any = outcome.is_some() || !items.is_empty();
            (state.future.take_if(|_| has_any), outcome)
        };
        let Some(future) = future else { return };
        let outcome = outcome.unwrap_or_else(|| Ok(PyList::new(py, items)?.into_any().unbind()));
        if let Err(error) = resolve(future.bind(py), outcome) {
            error.write_unraisable(py, None);
        }
    }
}

fn resolve(future: &Bound<'_, PyAny>, outcome: PyResult<Py<PyAny>>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    match outcome {
        Ok(value) => future.call_method1(intern!(py, "set_result"), (value,)),
        Err(error) => future.call_method1(intern!(py, "set_exception"), (raised_in(py, error),)),
    }
    .map(drop)
}

/// What a coroutine raises in place of a `StopIteration` (PEP 479), which a future refuses.
fn raised_in(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyStopIteration>(py) {
        return error;
    }
    let raised = PyRuntimeError::new_err("the function raised StopIteration");
    raised.set_cause(py, Some(error));
    raised
}

/// The value of a result that was written.
fn value_of(py: Python<'_>, text: &[u8]) -> PyResult<Py<PyAny>> {
    let mut scratch = Scratch::default();
    let read = Input::new(py, text, &mut scratch).read(&Convert::Any);
    read.map(Bound::unbind).map_err(|fault| errors::unwritable(fault, "result"))
}
