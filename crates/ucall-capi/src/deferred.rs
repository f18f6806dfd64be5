//! The program's side of a deferred call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::{ResultPart, RpcError};
use ucall_server::{CallId, Deadline, DeferredCalls, OutcomeQueue, RunPermit, RunningCall, Token};

use crate::log::Log;
use crate::stream::{ItemState, Stream};

/// What the program sends of a deferred call.
pub(crate) enum Outcome {
    /// The JSON text of its result, or an error.
    Reply(Result<Vec<u8>, RpcError>),
    /// The JSON text of its result, and the parts that it refers to.
    Parts(Vec<u8>, Vec<ResultPart>),
    /// The JSON text of an item of a stream.
    Item(Vec<u8>),
}

/// The deferred calls of one worker.
pub(crate) type Calls = DeferredCalls<Arc<CallState>, Outcome>;

/// What the worker and the program share of a deferred call.
pub(crate) struct CallState {
    /// Set by the worker.
    is_cancelled: AtomicBool,
    pub(crate) stream: Option<Stream>,
    /// What measures the call, if the server has metrics.
    running: OnceLock<RunningCall>,
}

impl CallState {
    /// Has the call measured until its end.
    pub(crate) fn set_running(&self, running: RunningCall) {
        let _ = self.running.set(running);
    }

    /// Records the end of the call, on the worker's thread.
    pub(crate) fn record(&self, error: Option<i64>, now: Instant) {
        if let Some(running) = self.running.get() {
            running.record(error, now);
        }
    }

    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.end();
    }

    /// No item can follow.
    pub(crate) fn end(&self) {
        if let Some(stream) = &self.stream {
            stream.end();
        }
    }
}

/// An entry of [`Calls`], on whichever thread the program uses the call. It outlives the worker,
/// whose end cancels it.
pub(crate) struct DeferredHandle {
    token: Token,
    outcomes: Arc<OutcomeQueue<Outcome>>,
    state: Arc<CallState>,
    pub(crate) log: Arc<Log>,
    /// The call counts as running until the program releases it.
    _permit: RunPermit,
}

impl DeferredHandle {
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Inserts a call, of a connection unless others call over it as well.
    ///
    /// # Errors
    /// The reply to a call past the limit.
    pub(crate) fn insert(
        calls: &mut Calls,
        id: CallId,
        caller: Option<Id>,
        deadline: Option<Deadline>,
        arrived: Instant,
        log: &Arc<Log>,
        stream: Option<Stream>,
    ) -> Result<Self, RpcError> {
        let permit = calls.admit(caller)?;
        let (is_cancelled, running) = (AtomicBool::new(false), OnceLock::new());
        let state = Arc::new(CallState { is_cancelled, stream, running });
        let token = calls.insert(Some(id), deadline, arrived, state.clone());
        let (outcomes, log) = (calls.outcomes().clone(), log.clone());
        Ok(Self { token, outcomes, state, log, _permit: permit })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.is_cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.state.stream.is_some()
    }

    /// Replies, unless the call is cancelled.
    pub(crate) fn complete(&self, outcome: Outcome) {
        if !self.is_cancelled() {
            self.outcomes.send(self.token, outcome);
        }
    }

    /// Sends an item of a stream, if there is room.
    pub(crate) fn send_item(&self, json: &[u8]) -> ItemState {
        let Some(stream) = &self.state.stream else { return ItemState::Ended };
        let state = stream.reserve(json.len());
        if state == ItemState::Accepted {
            // A newline would end the item over raw TCP; strings have none.
            let is_newline = |byte: &u8| matches!(byte, b'\n' | b'\r');
            let line = json.iter().map(|byte| if is_newline(byte) { b' ' } else { *byte });
            self.outcomes.send(self.token, Outcome::Item(line.collect()));
        }
        state
    }
}
