//! The queue through which the outcomes of deferred calls reach their worker.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::Token;
use crate::mailbox::Mailbox;

/// Takes the outcomes of deferred calls from any thread, each with the token of its call.
#[derive(Debug)]
pub struct OutcomeQueue<O> {
    outcomes: Mutex<VecDeque<(Token, O)>>,
    /// Read without the lock.
    is_nonempty: AtomicBool,
    mailbox: OnceLock<Mailbox>,
}

impl<O> OutcomeQueue<O> {
    pub(super) fn new() -> Self {
        Self {
            outcomes: Mutex::default(),
            is_nonempty: AtomicBool::new(false),
            mailbox: OnceLock::new(),
        }
    }

    /// Sets the mailbox that wakes the worker; for
    /// [`Handler::set_mailbox`](crate::Handler::set_mailbox).
    pub fn set_mailbox(&self, mailbox: Mailbox) {
        // A handler has one worker, so no mailbox was set before.
        let _ = self.mailbox.set(mailbox);
    }

    /// Enqueues an outcome on the worker's own thread, which polls before it waits. `true` if the
    /// queue was empty: a worker within another event loop then has to be scheduled.
    pub fn push(&self, token: Token, outcome: O) -> bool {
        let mut outcomes = self.lock();
        outcomes.push_back((token, outcome));
        !self.is_nonempty.swap(true, Ordering::Relaxed)
    }

    /// Enqueues an outcome on any thread, and wakes the worker.
    pub fn send(&self, token: Token, outcome: O) {
        if self.push(token, outcome) {
            self.wake();
        }
    }

    /// Enqueues outcomes on any thread, and wakes the worker.
    pub fn send_all(&self, outcomes: impl IntoIterator<Item = (Token, O)>) {
        let was_empty = {
            let mut queue = self.lock();
            queue.extend(outcomes);
            !self.is_nonempty.swap(true, Ordering::Relaxed)
        };
        if was_empty {
            self.wake();
        }
    }

    /// Wakes the worker on any thread, once for all outcomes until it takes them.
    pub fn wake(&self) {
        if let Some(mailbox) = self.mailbox.get() {
            mailbox.wake_flag().notify();
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.is_nonempty.load(Ordering::Relaxed)
    }

    /// Moves all outcomes to `taken`, which is empty.
    pub(super) fn take(&self, taken: &mut VecDeque<(Token, O)>) {
        if !self.is_empty() {
            let mut outcomes = self.lock();
            self.is_nonempty.store(false, Ordering::Relaxed);
            mem::swap(&mut *outcomes, taken);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Token, O)>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
