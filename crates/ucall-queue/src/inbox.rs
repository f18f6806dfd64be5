//! What came and was not taken yet, and what happened to sessions.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::event_queue::{Event, EventQueue};
use crate::failure::Failure;
use crate::identity::Identity;
use crate::log_queue::LogQueue;
use crate::message::Incoming;
use crate::wake::EventCount;

const DROPPED_SESSION: &str = "a session that has ended was told to neither on_start nor on_end";

/// The messages of all sessions, in the order in which they came.
#[derive(Default)]
pub struct Inbox {
    /// What is handed in. Its lock is held as briefly as can be, for the session's thread.
    messages: Mutex<VecDeque<Incoming>>,
    /// What was moved here from there, many at a time, and is taken one by one.
    batch: Mutex<VecDeque<Incoming>>,
    /// The weight of all that came and was not taken, also from peers that are gone.
    weight: AtomicUsize,
    /// No message will come any more, and why.
    closed: OnceLock<Failure>,
    events: EventQueue,
    /// Everything is over, and nothing is listened to any more.
    finished: AtomicBool,
    /// Rung for messages and for the end.
    pub arrived: EventCount,
    /// Rung for acknowledgements, failures and events.
    pub progressed: EventCount,
    /// What the log is to be told.
    pub log_queue: LogQueue,
    /// Called beside the bells, for whoever waits in a way of his own.
    callback: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
}

/// What [`Inbox::take`] found.
#[derive(Debug)]
pub enum TakeResult {
    /// The next message.
    Message(Incoming),
    /// None came so far.
    Empty,
    /// None will come any more.
    Closed(Failure),
}

impl Inbox {
    /// Takes the next message, or the next one from any of `peers` if there are some.
    #[inline]
    pub fn take(&self, peers: &[Identity]) -> TakeResult {
        // Before the messages: what came before the end is found below.
        let closed = self.closed.get();
        let mut batch = lock(&self.batch);
        if batch.is_empty() || !peers.is_empty() {
            let mut messages = lock(&self.messages);
            if batch.is_empty() {
                std::mem::swap(&mut *messages, &mut *batch);
            } else {
                batch.append(&mut messages);
            }
        }
        let position = match peers {
            [] => 0,
            _ => batch.iter().position(|it| peers.contains(&it.peer)).unwrap_or(usize::MAX),
        };
        let found = if position == 0 { batch.pop_front() } else { batch.remove(position) };
        let is_more = !batch.is_empty();
        drop(batch);
        match found {
            Some(message) => {
                self.weight.fetch_sub(message.weight, Ordering::Relaxed);
                if is_more {
                    // Others may wait who have seen that nothing is left where it is handed in.
                    self.arrived.notify();
                }
                TakeResult::Message(message)
            }
            None => closed.map_or(TakeResult::Empty, |failure| TakeResult::Closed(failure.clone())),
        }
    }

    /// Whether there is nothing to take just now.
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
    }

    /// As [`Inbox::take`], after waiting for there to be one, until the deadline.
    pub fn wait(&self, peers: &[Identity], deadline: Option<Instant>) -> TakeResult {
        let received = || match self.take(peers) {
            TakeResult::Empty => None,
            found => Some(found),
        };
        self.arrived.wait(deadline, received).unwrap_or(TakeResult::Empty)
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
        self.log_queue.finish();
        self.notify_progress();
    }

    /// The next event, if there is one.
    pub fn next_event(&self) -> Option<Event> {
        self.events.next()
    }

    /// Has this called, once for all, with `true` when messages came and with `false` when
    /// something else has changed. It is called on the session's thread and must be quick.
    pub fn set_callback(&self, callback: impl Fn(bool) + Send + Sync + 'static) {
        // The first one stays.
        let _ = self.callback.set(Box::new(callback));
    }

    /// Hands messages in, and leaves the queue empty.
    pub(crate) fn push(&self, messages: &mut VecDeque<Incoming>) {
        if messages.is_empty() {
            return;
        }
        let weight = messages.iter().map(|message| message.weight).sum();
        self.weight.fetch_add(weight, Ordering::Relaxed);
        lock(&self.messages).append(messages);
        self.arrived.notify();
        self.call_callback(true);
    }

    pub(crate) fn close(&self, failure: Failure) {
        // The first reason stands.
        let _ = self.closed.set(failure);
        self.arrived.notify();
        self.call_callback(true);
        self.notify_progress();
    }

    /// Has whoever listens told of an event; if its session is left out, the log is told.
    pub(crate) fn push_event(&self, event: Event, now: Instant) {
        if !self.events.push(event) {
            let line = || format!("callbacks are slow: {DROPPED_SESSION}");
            self.log_queue.log(line, now);
        }
        self.notify_progress();
    }

    /// Something was acknowledged or has failed.
    pub(crate) fn notify_progress(&self) {
        self.progressed.notify();
        self.call_callback(false);
    }

    fn call_callback(&self, messages: bool) {
        if let Some(callback) = self.callback.get() {
            callback(messages);
        }
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
