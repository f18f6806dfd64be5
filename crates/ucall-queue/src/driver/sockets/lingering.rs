//! Sockets that wait for the peer's end, because a reset would discard the output sent last.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ucall_engine::Id;

/// How long a socket lingers.
const LINGER: Duration = Duration::from_secs(1);
/// Lingering sockets. Above it, the oldest is closed.
const LINGERING_MAX: usize = 1024;

/// Lingering sockets in the order of their deadlines. Some may be closed already.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    sockets: VecDeque<(Instant, Id)>,
}

impl Lingering {
    /// Adds a socket; returns one to close for it, if there are too many.
    pub(super) fn push(&mut self, socket: Id, now: Instant) -> Option<Id> {
        let is_full = self.sockets.len() >= LINGERING_MAX;
        let oldest = if is_full { self.sockets.pop_front() } else { None };
        self.sockets.push_back((now + LINGER, socket));
        oldest.map(|(_, socket)| socket)
    }

    /// The next deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sockets.front().map(|&(until, _)| until)
    }

    /// Removes the next socket whose deadline has passed.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<Id> {
        self.deadline().filter(|&until| now >= until)?;
        self.sockets.pop_front().map(|(_, socket)| socket)
    }
}
