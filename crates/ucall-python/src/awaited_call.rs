//! Calls that async hooks await: of functions that run in threads or in batches.
//!
//! The hook runs in a task on the worker's thread, in the middle of a call, so it cannot start
//! another one there. It pushes an [`AwaitedStart`] into the queue of outcomes. The worker takes it
//! in its next poll, and starts the call as one without a caller (`deferral/awaited.rs`). Its
//! outcome is that of a future, which the hook awaits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use ucall_proto::RpcError;
use ucall_server::Token;

use crate::convert::{Convert, Input, Scratch};
use crate::errors;
use crate::ffi::DropAttached;

/// A call that an async hook awaits, as those share it that run it. Any thread may drop it.
pub(crate) struct AwaitedCall(DropAttached<Shared>);

struct Shared {
    /// Of asyncio.
    future: Py<PyAny>,
    state: Mutex<State>,
    is_cancelled: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Since the worker has started it.
    token: Option<Token>,
    /// What the function has returned or raised, if that is known as an object.
    outcome: Option<PyResult<Py<PyAny>>>,
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
        let (state, is_cancelled) = (Mutex::default(), AtomicBool::new(false));
        Self(DropAttached::new(Shared { future, state, is_cancelled }))
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

    pub(crate) fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// Keeps what the function has returned or raised, for [`AwaitedCall::finish`].
    pub(crate) fn keep(&self, outcome: PyResult<Py<PyAny>>) {
        self.state().outcome = Some(outcome);
    }

    /// Resolves the future: by the object that was kept, or else by the reply to the call.
    pub(crate) fn finish(&self, py: Python<'_>, reply: Result<&[u8], RpcError>) {
        let kept = self.state().outcome.take();
        let outcome = kept.unwrap_or_else(|| match reply {
            Ok(text) => value_of(py, text),
            Err(error) => Err(errors::rpc_exception(py, &error)),
        });
        if let Err(error) = self.resolve(py, outcome) {
            error.write_unraisable(py, None);
        }
    }

    fn resolve(&self, py: Python<'_>, outcome: PyResult<Py<PyAny>>) -> PyResult<()> {
        let future = self.0.future.bind(py);
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        match outcome {
            Ok(value) => future.call_method1(intern!(py, "set_result"), (value,)),
            Err(error) => future.call_method1(intern!(py, "set_exception"), (error,)),
        }
        .map(drop)
    }
}

/// The value of a result that was written.
fn value_of(py: Python<'_>, text: &[u8]) -> PyResult<Py<PyAny>> {
    let mut scratch = Scratch::default();
    let read = Input::new(py, text, &mut scratch).read(&Convert::Any);
    read.map(Bound::unbind).map_err(|fault| errors::unwritable(fault, "result"))
}
