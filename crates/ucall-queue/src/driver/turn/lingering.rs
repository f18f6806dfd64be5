//! Sockets whose link is over, kept for the peer to close, so that a reset does not eat what was
//! sent last.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ucall_engine::Id;

/// How long.
const LINGER: Duration = Duration::from_secs(1);
/// How many: past it, the one that lingers for longest goes.
const LINGERING_MAX: usize = 1024;

/// All of them, the first to go in front. Those that the peers have closed are among them.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    sockets: VecDeque<(Instant, Id)>,
}

impl Lingering {
    /// Keeps one more; which has to go for it.
    pub(super) fn push(&mut self, socket: Id, now: Instant) -> Option<Id> {
        let is_full = self.sockets.len() >= LINGERING_MAX;
        let oldest = if is_full { self.sockets.pop_front() } else { None };
        self.sockets.push_back((now + LINGER, socket));
        oldest.map(|(_, socket)| socket)
    }

    /// When the next one is to go.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sockets.front().map(|&(until, _)| until)
    }

    /// The next one that has lingered for long enough.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<Id> {
        self.deadline().filter(|&until| now >= until)?;
        self.sockets.pop_front().map(|(_, socket)| socket)
    }
}
