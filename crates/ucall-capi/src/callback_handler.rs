//! The handler of one worker: the state that its callbacks share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::{Call as Request, RpcError};
use ucall_server::{CallId, Deadline};

use crate::deferred::Calls;
use crate::log::Log;
use crate::params::ParamBuffers;

/// Runs the callbacks of one worker.
pub(crate) struct CallbackHandler {
    pub(crate) calls: Calls,
    pub(crate) log: Arc<Log>,
    /// Used by one live call after another.
    pub(crate) buffers: ParamBuffers,
    call_timeout: Option<Duration>,
    /// All calls of this turn had arrived by then.
    pub(crate) turn_began: Instant,
}

impl CallbackHandler {
    pub(crate) fn new(
        log: Arc<Log>,
        call_timeout: Option<Duration>,
        deferred_calls_max: usize,
    ) -> Self {
        Self {
            calls: Calls::new(deferred_calls_max, "max_deferred_calls"),
            log,
            buffers: ParamBuffers::default(),
            call_timeout,
            turn_began: Instant::now(),
        }
    }

    #[inline]
    pub(crate) fn deadline_of(&self, request: &Request<'_>) -> Option<Deadline> {
        Deadline::of(request, self.call_timeout, self.turn_began)
    }

    /// Answers the calls whose deadline has passed, and cancels them.
    #[cold]
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            self.calls.find(token).map(cancel);
            self.calls.outcomes().send(token, Err(deadline.error()));
        }
    }

    /// Cancels the calls of a connection that has closed.
    pub(crate) fn cancel_connection(&mut self, connection: Id) {
        for token in self.calls.of_connection(connection) {
            self.calls.remove(token).as_mut().map(cancel);
        }
    }

    /// The next reply to a call that waits for one.
    pub(crate) fn next_reply(
        &mut self,
        text: &mut Vec<u8>,
    ) -> Option<(CallId, Result<(), RpcError>)> {
        loop {
            let (token, outcome) = self.calls.next_outcome()?;
            if let Some((Some(id), _)) = self.calls.finish(token, self.turn_began) {
                return Some((id, outcome.map(|result| *text = result)));
            }
        }
    }
}

impl Drop for CallbackHandler {
    fn drop(&mut self) {
        for token in self.calls.all() {
            self.calls.find(token).map(cancel);
        }
    }
}

fn cancel(cancelled: &mut Arc<AtomicBool>) {
    cancelled.store(true, Ordering::Release);
}
