//! What came and was not taken yet, and what happened to sessions.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::bell::Bell;
use crate::events::{Event, Events};
use crate::failure::Failure;
use crate::identity::Identity;
use crate::journal::Journal;
use crate::message::Incoming;

const LEFT_OUT: &str = "a session that has ended was told to neither on_start nor on_end";

/// The messages of all sessions, in the order in which they came.
#[derive(Default)]
pub struct Inbox {
    /// What is handed in. Its lock is held as briefly as can be, for the session's thread.
    messages: Mutex<VecDeque<Incoming>>,
    /// What was moved here from there, many at a time, and is taken one by one.
    moved: Mutex<VecDeque<Incoming>>,
    /// The weight of all that came and was not taken, also from peers that are gone.
    weight: AtomicUsize,
    /// No message will come any more, and why.
    closed: OnceLock<Failure>,
    events: Events,
    /// Everything is over, and nothing is listened to any more.
    finished: AtomicBool,
    /// Rung for messages and for the end.
    pub arrived: Bell,
    /// Rung for acknowledgements, failures and events.
    pub progressed: Bell,
    /// What the log is to be told.
    pub journal: Journal,
    /// Called beside the bells, for whoever waits in a way of his own.
    hook: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
}

/// What [`Inbox::take`] found.
#[derive(Debug)]
pub enum Taken {
    /// The next message.
    Message(Incoming),
    /// None came so far.
    Nothing,
    /// None will come any more.
    Closed(Failure),
}

impl Inbox {
    /// Takes the next message, or the next one from any of `peers` if there are some.
    #[inline]
    pub fn take(&self, peers: &[Identity]) -> Taken {
        // Before the messages: what came before the end is found below.
        let closed = self.closed.get();
        let mut moved = lock(&self.moved);
        if moved.is_empty() || !peers.is_empty() {
            let mut messages = lock(&self.messages);
            if moved.is_empty() {
                std::mem::swap(&mut *messages, &mut *moved);
            } else {
                moved.append(&mut messages);
            }
        }
        let place = match peers {
            [] => 0,
            _ => moved.iter().position(|it| peers.contains(&it.peer)).unwrap_or(usize::MAX),
        };
        let found = if place == 0 { moved.pop_front() } else { moved.remove(place) };
        let is_more = !moved.is_empty();
        drop(moved);
        match found {
            Some(message) => {
                self.weight.fetch_sub(message.weight, Ordering::Relaxed);
                if is_more {
                    // Others may wait who have seen that nothing is left where it is handed in.
                    self.arrived.ring();
                }
                Taken::Message(message)
            }
            None => closed.map_or(Taken::Nothing, |failure| Taken::Closed(failure.clone())),
        }
    }

    /// Whether there is nothing to take just now.
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
    }

    /// As [`Inbox::take`], after waiting for there to be one, until the deadline.
    pub fn wait(&self, peers: &[Identity], deadline: Option<Instant>) -> Taken {
        let come = || match self.take(peers) {
            Taken::Nothing => None,
            found => Some(found),
        };
        self.arrived.wait(deadline, come).unwrap_or(Taken::Nothing)
    }

    /// Why no message will come any more, once that is so.
    pub fn closed(&self) -> Option<&Failure> {
        self.closed.get()
    }

    /// Whether everything is over, and nothing is listened to any more.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// What there is in it.
    pub(crate) fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }

    pub(crate) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
        self.journal.finish();
        self.progress();
    }

    /// The next event, if there is one.
    pub fn next_event(&self) -> Option<Event> {
        self.events.next()
    }

    /// Has this called, once for all, with `true` when messages came and with `false` when
    /// something else has changed. It is called on the session's thread and must be quick.
    pub fn set_hook(&self, hook: impl Fn(bool) + Send + Sync + 'static) {
        // The first one stays.
        let _ = self.hook.set(Box::new(hook));
    }

    /// Hands messages in, and leaves the queue empty.
    pub(crate) fn hand_in(&self, messages: &mut VecDeque<Incoming>) {
        if messages.is_empty() {
            return;
        }
        let weight = messages.iter().map(|message| message.weight).sum();
        self.weight.fetch_add(weight, Ordering::Relaxed);
        lock(&self.messages).append(messages);
        self.arrived.ring();
        self.call_hook(true);
    }

    pub(crate) fn close(&self, failure: Failure) {
        // The first reason stands.
        let _ = self.closed.set(failure);
        self.arrived.ring();
        self.call_hook(true);
        self.progress();
    }

    /// Has whoever listens told of an event; if its session is left out, the log is told.
    pub(crate) fn tell(&self, event: Event, now: Instant) {
        if !self.events.push(event) {
            let line = || format!("callbacks are slow: {LEFT_OUT}");
            self.journal.tell(line, now);
        }
        self.progress();
    }

    /// Something was acknowledged or has failed.
    pub(crate) fn progress(&self) {
        self.progressed.ring();
        self.call_hook(false);
    }

    fn call_hook(&self, messages: bool) {
        if let Some(hook) = self.hook.get() {
            hook(messages);
        }
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Inbox")
    }
}
