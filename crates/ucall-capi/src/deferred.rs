//! The program's side of a deferred call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ucall_proto::RpcError;
use ucall_server::{CallId, Deadline, DeferredCalls, OutcomeQueue, RunPermit, Token};

use crate::log::Log;

/// The reply to a deferred call: the JSON text of its result, or an error.
pub(crate) type Outcome = Result<Vec<u8>, RpcError>;
/// The deferred calls of one worker, each with its [`DeferredHandle::cancelled`].
pub(crate) type Calls = DeferredCalls<Arc<AtomicBool>, Outcome>;

/// An entry of [`Calls`], on whichever thread the program uses the call. It outlives the worker,
/// whose end cancels it.
#[derive(Debug)]
pub(crate) struct DeferredHandle {
    token: Token,
    outcomes: Arc<OutcomeQueue<Outcome>>,
    /// Set by the worker.
    cancelled: Arc<AtomicBool>,
    pub(crate) log: Arc<Log>,
    /// The call counts as running until the program releases it.
    _permit: RunPermit,
}

impl DeferredHandle {
    /// Inserts a call.
    ///
    /// # Errors
    /// The reply to a call past the limit.
    pub(crate) fn insert(
        calls: &mut Calls,
        id: CallId,
        deadline: Option<Deadline>,
        arrived: Instant,
        log: &Arc<Log>,
    ) -> Result<Self, RpcError> {
        let permit = calls.admit()?;
        let cancelled = Arc::<AtomicBool>::default();
        let token = calls.insert(Some(id), deadline, arrived, cancelled.clone());
        let (outcomes, log) = (calls.outcomes().clone(), log.clone());
        Ok(Self { token, outcomes, cancelled, log, _permit: permit })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Replies, unless the call is cancelled.
    pub(crate) fn complete(&self, outcome: Outcome) {
        if !self.is_cancelled() {
            self.outcomes.send(self.token, outcome);
        }
    }
}
