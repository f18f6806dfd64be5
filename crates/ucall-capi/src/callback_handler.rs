//! The handler of one worker: the state that its callbacks share.

use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_proto::{ResultPart, RpcError};
use ucall_server::{CallMetrics, Publisher, Token};

use crate::auth::{Auth, User};
use crate::boundary::Error;
use crate::call_handle::LiveSlot;
use crate::deferred::{CallState, Calls, Outcome};
use crate::log::Log;
use crate::params::ParamBuffers;
use crate::parted_params::PartedParams;
use crate::turn_control::TurnControl;

/// Runs the callbacks of one worker.
pub(crate) struct CallbackHandler {
    /// For the call whose callback runs.
    pub(crate) slot: LiveSlot,
    pub(crate) calls: Calls,
    pub(crate) control: Arc<TurnControl>,
    /// Set when the worker is made.
    pub(crate) publisher: Option<Arc<Publisher>>,
    pub(crate) log: Arc<Log>,
    /// Used by one live call after another.
    pub(crate) buffers: ParamBuffers,
    pub(crate) auth: Option<Auth>,
    /// The caller of the next calls; NULL without authentication.
    pub(crate) user: User,
    pub(crate) call_timeout: Option<Duration>,
    /// The limit on items of one stream that wait.
    pub(crate) stream_bytes_max: usize,
    /// The bytes of items that were taken in this turn.
    pub(crate) taken_items: Vec<(Arc<CallState>, usize)>,
    /// All calls of this turn had arrived by then.
    pub(crate) turn_began: Instant,
    /// The number of the thread that serves.
    pub(crate) thread: u16,
    /// What records calls, if the server has metrics.
    pub(crate) metrics: Option<Arc<CallMetrics>>,
    /// The call that was deferred last.
    pub(crate) last_deferred: Option<Token>,
    /// Of the document that runs, if it has parts.
    pub(crate) parted: Option<Box<PartedParams>>,
    /// Whether the caller of that document takes parts in results.
    pub(crate) takes_parts: bool,
    /// Those of the last call.
    pub(crate) result_parts: Vec<ResultPart>,
}

impl CallbackHandler {
    /// # Errors
    /// Too many threads of the process serve.
    pub(crate) fn new(
        control: Arc<TurnControl>,
        auth: Option<Auth>,
        call_timeout: Option<Duration>,
        deferred_calls_max: usize,
        stream_bytes_max: usize,
    ) -> Result<Self, Error> {
        let log = control.log.clone();
        Ok(Self {
            slot: LiveSlot::acquire(log.clone())?,
            calls: Calls::new(deferred_calls_max, "max_running_calls"),
            control,
            publisher: None,
            log,
            buffers: ParamBuffers::default(),
            auth,
            user: User(ptr::null_mut()),
            call_timeout,
            stream_bytes_max,
            taken_items: Vec::new(),
            turn_began: Instant::now(),
            thread: 0,
            metrics: None,
            last_deferred: None,
            parted: None,
            takes_parts: false,
            result_parts: Vec::new(),
        })
    }

    /// Answers the calls whose deadline has passed, and cancels them.
    #[cold]
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            self.end_call(token, deadline.error());
        }
    }

    /// Answers all deferred calls, and cancels them.
    #[cold]
    pub(crate) fn abandon_all(&mut self) {
        for token in self.calls.all() {
            let error = RpcError::new(RpcError::ABORTED, "Aborted").expected("the server stops");
            self.end_call(token, error);
        }
    }

    fn end_call(&mut self, token: Token, error: RpcError) {
        if let Some(state) = self.calls.find(token) {
            state.cancel();
        }
        self.calls.outcomes().send(token, Outcome::Reply(Err(error)));
    }

    /// Lets streams send as much as was taken of them.
    #[cold]
    pub(crate) fn release_items(&mut self) {
        for (state, len) in self.taken_items.drain(..) {
            if let Some(stream) = &state.stream {
                stream.release(len);
            }
        }
    }
}

impl Drop for CallbackHandler {
    fn drop(&mut self) {
        for token in self.calls.all() {
            if let Some(state) = self.calls.find(token) {
                state.cancel();
            }
        }
    }
}
