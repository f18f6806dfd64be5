//! What a worker has done so far: one page, one writer, read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

/// A copy of a worker's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Calls, each of a batch counted, notifications too.
    pub calls: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes sent, or handed to the kernel to be sent.
    pub bytes_sent: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// System calls of the engine.
    pub system_calls: u64,
}

/// The page itself. Cache-line aligned, so that readers of another worker's page disturb nobody.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    calls: AtomicU64,
    accepted: AtomicU64,
    connections: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
    turns: AtomicU64,
    system_calls: AtomicU64,
}

impl Counters {
    /// The counters at the end of the last turn.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            calls: read(&self.calls),
            accepted: read(&self.accepted),
            connections: read(&self.connections),
            bytes_received: read(&self.bytes_received),
            bytes_sent: read(&self.bytes_sent),
            turns: read(&self.turns),
            system_calls: read(&self.system_calls),
        }
    }

    /// Publishes the worker's own copy, at the end of a turn.
    #[inline]
    pub(crate) fn publish(&self, stats: &Stats) {
        let write = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        write(&self.calls, stats.calls);
        write(&self.accepted, stats.accepted);
        write(&self.connections, stats.connections);
        write(&self.bytes_received, stats.bytes_received);
        write(&self.bytes_sent, stats.bytes_sent);
        write(&self.turns, stats.turns);
        write(&self.system_calls, stats.system_calls);
    }
}
