//! How outcomes of deferred calls reach the worker.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use ucall_engine::OwningProcess;
use ucall_proto::{ResultFormat, ResultPart, RpcError};
use ucall_server::{OutcomeQueue, Token};

use crate::awaited_call::{AwaitedCall, AwaitedStart};
use crate::batch_texts::OutcomeText;
use crate::convert::{self, ConversionFault, Results};
use crate::procedure::Procedure;

/// How a call or a batch ended.
pub(crate) enum DeferredOutcome {
    /// A task or a future that is done.
    Future(Py<PyAny>),
    /// Items of a stream wait. The outcome follows.
    Items,
    /// There is room for more of the request's body. The outcome follows.
    TakesBody,
    /// The JSON text of the result, or an error.
    Text(Result<OutcomeText, RpcError>),
    /// The JSON text of the result, and the parts that it refers to.
    Parts(Box<ResultText>),
    /// No outcome: an async hook has the worker start a call.
    Begin(Box<AwaitedStart>),
    /// Likewise cancel it.
    Cancel(Arc<AwaitedCall>),
    /// Likewise pass on the next of its items.
    Take(Arc<AwaitedCall>),
}

impl DeferredOutcome {
    /// What ends without a result.
    pub(crate) const fn ended() -> Self {
        Self::Text(Ok(OutcomeText::Own(Vec::new())))
    }
}

/// A result that is written.
pub(crate) struct ResultText {
    pub(crate) text: OutcomeText,
    /// What the text refers to, beside it.
    pub(crate) parts: Vec<ResultPart>,
}

impl Procedure {
    /// The text and the parts of a result that is answered later, in this format.
    pub(crate) fn written(
        &self,
        result: &Bound<'_, PyAny>,
        len_max: usize,
        format: ResultFormat,
    ) -> Result<ResultText, ConversionFault> {
        let mut text = Vec::new();
        let parts = self.write_formatted(&mut text, len_max, result, format)?;
        Ok(ResultText { text: text.into(), parts })
    }

    /// Appends the text of a result in this format, of at most `len_max` bytes. Returns its parts.
    pub(crate) fn write_formatted(
        &self,
        text: &mut Vec<u8>,
        len_max: usize,
        result: &Bound<'_, PyAny>,
        format: ResultFormat,
    ) -> Result<Vec<ResultPart>, ConversionFault> {
        let len_max = text.len().saturating_add(len_max);
        let mut results = Results { format, ..Results::default() };
        let encode = self.encode.bind(result.py());
        convert::write_results(text, len_max, result, Some(encode), &mut results)?;
        Ok(results.parts)
    }
}

impl From<Result<ResultText, RpcError>> for DeferredOutcome {
    fn from(written: Result<ResultText, RpcError>) -> Self {
        match written {
            Ok(result) if !result.parts.is_empty() => Self::Parts(Box::new(result)),
            written => Self::Text(written.map(|result| result.text)),
        }
    }
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
    pub(crate) fn new(queue: Arc<OutcomeQueue<DeferredOutcome>>) -> Self {
        Self { queue, waker: Mutex::default(), process: OwningProcess::current() }
    }

    pub(crate) fn set_waker(&self, waker: Option<Py<PyAny>>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker;
    }

    /// Ends this process if a function has forked it.
    pub(crate) fn end_child(&self) {
        self.process.end_child();
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

    /// Has the worker cancel what an async hook awaits, on any thread. The collector does so in a
    /// child, too, which goes on.
    pub(crate) fn cancel(&self, awaited: Arc<AwaitedCall>) {
        self.queue.send(Token::NONE, DeferredOutcome::Cancel(awaited));
    }

    /// Reports the outcomes of a batch on any thread, and wakes the worker once.
    pub(crate) fn send_all(&self, outcomes: impl IntoIterator<Item = (Token, DeferredOutcome)>) {
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
