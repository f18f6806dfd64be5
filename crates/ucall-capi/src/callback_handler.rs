//! The handler of one worker: the state that its callbacks share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ucall_server::Publisher;

use crate::deferred::Calls;
use crate::log::Log;
use crate::params::ParamBuffers;

/// Runs the callbacks of one worker.
pub(crate) struct CallbackHandler {
    pub(crate) calls: Calls,
    /// Set when the worker is made.
    pub(crate) publisher: Option<Arc<Publisher>>,
    pub(crate) log: Arc<Log>,
    /// Used by one live call after another.
    pub(crate) buffers: ParamBuffers,
    pub(crate) call_timeout: Option<Duration>,
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
            publisher: None,
            log,
            buffers: ParamBuffers::default(),
            call_timeout,
            turn_began: Instant::now(),
        }
    }

    /// Answers the calls whose deadline has passed, and cancels them.
    #[cold]
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            self.calls.find(token).map(cancel);
            self.calls.outcomes().send(token, Err(deadline.error()));
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

pub(crate) fn cancel(cancelled: &mut Arc<AtomicBool>) {
    cancelled.store(true, Ordering::Release);
}
