//! Messages of all sessions that were received and are not taken yet.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ucall_engine::EventCount;

use crate::failure::Failure;
use crate::identity::Identity;
use crate::message::Incoming;

/// The messages of all sessions, in the order of their arrival.
#[derive(Default)]
pub struct Inbox {
    /// Messages that the session's thread added. Locked briefly, so that it never waits for `take`.
    added: Mutex<VecDeque<Incoming>>,
    /// Messages that `take` moved here from `added`, many at a time.
    batch: Mutex<VecDeque<Incoming>>,
    /// The weight of all messages that are not taken, also of peers whose session is over.
    weight: AtomicUsize,
    /// Why no message will arrive any more, and the only peer of a client.
    closed: OnceLock<(Option<Identity>, Failure)>,
    /// Notified of messages and of the close.
    arrived: EventCount,
}

/// The result of [`Inbox::take`].
#[derive(Debug)]
pub enum TakeResult {
    /// The next message.
    Message(Incoming),
    /// No message has arrived yet.
    Empty,
    /// No message will arrive any more. Has the server of a client.
    Closed(Option<Identity>, Failure),
}

impl Inbox {
    /// Takes the next message, or the next one of `peers` unless that is empty.
    #[inline]
    pub fn take(&self, peers: &[Identity]) -> TakeResult {
        // Read before the messages, so that those that arrived before the close are found.
        let closed = self.closed.get();
        let mut batch = lock(&self.batch);
        if batch.is_empty() || !peers.is_empty() {
            let mut added = lock(&self.added);
            if batch.is_empty() {
                std::mem::swap(&mut *added, &mut *batch);
            } else {
                batch.append(&mut added);
            }
        }
        let position = match peers {
            [] => 0,
            _ => batch.iter().position(|it| peers.contains(&it.peer)).unwrap_or(usize::MAX),
        };
        let found = if position == 0 { batch.pop_front() } else { batch.remove(position) };
        let has_more = !batch.is_empty();
        drop(batch);
        match found {
            Some(message) => {
                self.weight.fetch_sub(message.weight, Ordering::Relaxed);
                if has_more {
                    // Other threads may wait after they found both queues empty.
                    self.arrived.notify();
                }
                TakeResult::Message(message)
            }
            None => closed.map_or(TakeResult::Empty, |(peer, failure)| {
                TakeResult::Closed(*peer, failure.clone())
            }),
        }
    }

    /// Takes as [`Inbox::take`] does, and waits for a message until the deadline.
    pub fn wait(&self, peers: &[Identity], deadline: Option<Instant>) -> TakeResult {
        let received = || match self.take(peers) {
            TakeResult::Empty => None,
            found => Some(found),
        };
        self.arrived.wait(deadline, received).unwrap_or(TakeResult::Empty)
    }

    /// Whether there is no message to take.
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
    }

    /// Why no message will arrive any more; `None` while more may.
    pub fn closed(&self) -> Option<&Failure> {
        self.closed.get().map(|(_, failure)| failure)
    }

    /// The weight of all messages that are not taken.
    pub(crate) fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }

    /// Moves all of `messages` in; `false` if there are none.
    pub(crate) fn push(&self, messages: &mut VecDeque<Incoming>) -> bool {
        if messages.is_empty() {
            return false;
        }
        let weight = messages.iter().map(|message| message.weight).sum();
        self.weight.fetch_add(weight, Ordering::Relaxed);
        lock(&self.added).append(messages);
        self.arrived.notify();
        true
    }

    /// Accepts no message after this. The first reason stands.
    pub(crate) fn close(&self, peer: Option<Identity>, failure: Failure) {
        let _ = self.closed.set((peer, failure));
        self.arrived.notify();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Inbox")
    }
}
