//! The counters of a worker: a page with one writer, which any thread or process may read.

use std::ops::{AddAssign, Deref};
use std::sync::atomic::{AtomicU64, Ordering};

use ucall_proto::ConnectionProtocol;

/// A copy of a worker's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Calls, counting notifications and each call of a batch.
    pub calls: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes passed to the engine for sending.
    pub bytes_sent: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// System calls of the engine.
    pub system_calls: u64,
    /// Subscriptions to topics now.
    pub subscriptions: u64,
    /// Messages of the server that were dropped for slow clients or busy workers.
    pub dropped_messages: u64,
    /// Lines of the access log that were dropped.
    pub dropped_log_lines: u64,
    /// The protocols of the open connections, as of the last sweep.
    pub protocols: ProtocolCounts,
    /// Of UDP.
    pub datagrams: DatagramCounts,
}

/// Datagrams of calls over UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramCounts {
    /// Received.
    pub received: u64,
    /// Replies passed to the engine for sending.
    pub sent: u64,
    /// Received without a valid request, which gets no reply.
    pub invalid: u64,
    /// Repeats of a request that has run, or runs.
    pub repeated: u64,
    /// Whose calls were not run because of a limit, or whose reply needed a cookie.
    pub refused: u64,
    /// Lost on this machine, because a socket's buffer was full.
    pub dropped: u64,
}

/// Connections by protocol. Those that have sent no byte yet are in none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProtocolCounts {
    /// Over HTTP.
    pub http: u64,
    /// Over WebSocket.
    pub websocket: u64,
    /// Over raw TCP.
    pub raw: u64,
}

impl ProtocolCounts {
    /// Counts a connection.
    pub(crate) fn add(&mut self, protocol: Option<ConnectionProtocol>) {
        match protocol {
            Some(ConnectionProtocol::Http) => self.http += 1,
            Some(ConnectionProtocol::WebSocket) => self.websocket += 1,
            Some(ConnectionProtocol::Raw) => self.raw += 1,
            None => {}
        }
    }
}

impl Stats {
    /// The counts without what describes open connections.
    pub fn without_connections(self) -> Self {
        let protocols = ProtocolCounts::default();
        Self { connections: 0, subscriptions: 0, protocols, ..self }
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.accepted += other.accepted;
        self.connections += other.connections;
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
        self.turns += other.turns;
        self.system_calls += other.system_calls;
        self.subscriptions += other.subscriptions;
        self.dropped_messages += other.dropped_messages;
        self.dropped_log_lines += other.dropped_log_lines;
        self.protocols.http += other.protocols.http;
        self.protocols.websocket += other.protocols.websocket;
        self.protocols.raw += other.protocols.raw;
        self.datagrams.received += other.datagrams.received;
        self.datagrams.sent += other.datagrams.sent;
        self.datagrams.invalid += other.datagrams.invalid;
        self.datagrams.repeated += other.datagrams.repeated;
        self.datagrams.refused += other.datagrams.refused;
        self.datagrams.dropped += other.datagrams.dropped;
    }
}

/// A page of counters, in the memory of one process or in memory that processes share.
#[derive(Debug, Default)]
pub struct Counters(PageMemory);

#[derive(Debug)]
enum PageMemory {
    Own(Box<CounterPage>),
    Shared(&'static CounterPage),
}

impl Default for PageMemory {
    fn default() -> Self {
        Self::Own(Box::default())
    }
}

/// The layout of a page; all zeros are a new one. Aligned, so that pages of two workers share no
/// cache line.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct CounterPage {
    calls: AtomicU64,
    accepted: AtomicU64,
    connections: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
    turns: AtomicU64,
    system_calls: AtomicU64,
    subscriptions: AtomicU64,
    dropped_messages: AtomicU64,
    dropped_log_lines: AtomicU64,
    http: AtomicU64,
    websocket: AtomicU64,
    raw: AtomicU64,
    datagrams: DatagramPage,
}

#[derive(Debug, Default)]
#[repr(C)]
struct DatagramPage {
    received: AtomicU64,
    sent: AtomicU64,
    invalid: AtomicU64,
    repeated: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

impl Counters {
    /// Counters on a page that other processes read.
    pub fn shared(page: &'static CounterPage) -> Self {
        Self(PageMemory::Shared(page))
    }
}

impl Deref for Counters {
    type Target = CounterPage;

    #[inline]
    fn deref(&self) -> &CounterPage {
        match &self.0 {
            PageMemory::Own(page) => page,
            PageMemory::Shared(page) => page,
        }
    }
}

impl CounterPage {
    /// The counters at the end of the last turn.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connections = read(&self.connections);
        // Without connections there is no sweep to count them.
        let protocols = match connections {
            0 => ProtocolCounts::default(),
            _ => ProtocolCounts {
                http: read(&self.http),
                websocket: read(&self.websocket),
                raw: read(&self.raw),
            },
        };
        Stats {
            calls: read(&self.calls),
            accepted: read(&self.accepted),
            connections,
            bytes_received: read(&self.bytes_received),
            bytes_sent: read(&self.bytes_sent),
            turns: read(&self.turns),
            system_calls: read(&self.system_calls),
            subscriptions: read(&self.subscriptions),
            dropped_messages: read(&self.dropped_messages),
            dropped_log_lines: read(&self.dropped_log_lines),
            protocols,
            datagrams: DatagramCounts {
                received: read(&self.datagrams.received),
                sent: read(&self.datagrams.sent),
                invalid: read(&self.datagrams.invalid),
                repeated: read(&self.datagrams.repeated),
                refused: read(&self.datagrams.refused),
                dropped: read(&self.datagrams.dropped),
            },
        }
    }

    /// Clears a page that belongs to no worker any more, and returns what it had.
    pub fn take(&self) -> Stats {
        let stats = self.stats();
        self.publish(&Stats::default());
        self.subscriptions.store(0, Ordering::Relaxed);
        self.dropped_messages.store(0, Ordering::Relaxed);
        self.dropped_log_lines.store(0, Ordering::Relaxed);
        self.set_datagrams(DatagramCounts::default());
        stats
    }

    /// Adds counters to a page of workers that have ended.
    pub fn add(&self, mut stats: Stats) {
        self.dropped_messages.fetch_add(stats.dropped_messages, Ordering::Relaxed);
        self.add_dropped_log_lines(stats.dropped_log_lines);
        stats += self.stats();
        self.publish(&stats);
        self.set_datagrams(stats.datagrams);
    }

    /// Sets the protocols of the open connections.
    pub(crate) fn set_protocols(&self, counts: ProtocolCounts) {
        self.http.store(counts.http, Ordering::Relaxed);
        self.websocket.store(counts.websocket, Ordering::Relaxed);
        self.raw.store(counts.raw, Ordering::Relaxed);
    }

    /// Sets the counts of datagrams. They are not in [`CounterPage::publish`], so that servers
    /// without UDP do not write them.
    pub(crate) fn set_datagrams(&self, counts: DatagramCounts) {
        let write = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        write(&self.datagrams.received, counts.received);
        write(&self.datagrams.sent, counts.sent);
        write(&self.datagrams.invalid, counts.invalid);
        write(&self.datagrams.repeated, counts.repeated);
        write(&self.datagrams.refused, counts.refused);
        write(&self.datagrams.dropped, counts.dropped);
    }

    /// Sets the number of subscriptions, on any thread.
    pub(crate) fn set_subscriptions(&self, subscriptions: u64) {
        self.subscriptions.store(subscriptions, Ordering::Relaxed);
    }

    /// The number of subscriptions.
    pub fn subscriptions(&self) -> u64 {
        self.subscriptions.load(Ordering::Relaxed)
    }

    /// Counts dropped messages, on any thread.
    pub fn add_dropped(&self, count: u64) {
        self.dropped_messages.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts dropped lines of the access log, on any thread.
    pub(crate) fn add_dropped_log_lines(&self, count: u64) {
        self.dropped_log_lines.fetch_add(count, Ordering::Relaxed);
    }

    /// Writes the counters of a worker's turn. A page has one worker.
    #[inline]
    pub fn publish(&self, stats: &Stats) {
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
