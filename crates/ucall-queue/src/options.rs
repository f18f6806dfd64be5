//! The options of a communicator.
#![forbid(unsafe_code)]

use std::time::Duration;

/// When a message counts as acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acknowledge {
    /// When the peer's process has received it.
    Received,
    /// When the peer's `get` has returned it.
    Taken,
    /// When the peer's program has acknowledged it and all before it.
    Explicit,
}

/// What happens to a put into a full queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FullPolicy {
    /// It raises an error.
    Error,
    /// It waits for room.
    Block,
    /// The oldest messages that are not sent are dropped.
    DropOldest,
    /// The message is dropped.
    DropNewest,
}

/// The limits and policies of a communicator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The weight of messages for one peer that are not acknowledged yet: their bytes,
    /// [`MESSAGE_WEIGHT`](crate::message::MESSAGE_WEIGHT) for each, and 64 for each segment but the
    /// first of a message.
    pub queue_bytes_max: usize,
    /// Bytes of one message, in either direction.
    pub message_bytes_max: usize,
    /// Bytes of messages that a peer may have in flight and in the inbox.
    pub window_bytes: usize,
    /// What happens to a put into a full queue.
    pub full: FullPolicy,
    /// When our messages count as acknowledged.
    pub acknowledge: Acknowledge,
    /// The silence on a link after which a ping is sent. After three times this the link is closed.
    pub keepalive: Duration,
    /// The time without a link after which a session ends.
    pub expire: Duration,
    /// The wait before a lost connection is made again: the first and the longest.
    pub reconnect: (Duration, Duration),
    /// The time limit of a handshake.
    pub handshake: Duration,
    /// Accepted links without a complete handshake.
    pub handshakes_max: usize,
    /// Peers at a time.
    pub peers_max: usize,
    /// Shared memory is reused with peers that set this, too. Either side could then write to
    /// memory that still has views on the other.
    pub trusts_peers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_bytes_max: 1 << 30,
            message_bytes_max: 1 << 30,
            window_bytes: 16 << 20,
            full: FullPolicy::Error,
            acknowledge: Acknowledge::Received,
            keepalive: Duration::from_secs(10),
            expire: Duration::from_secs(30),
            reconnect: (Duration::from_millis(20), Duration::from_secs(2)),
            handshake: Duration::from_secs(10),
            handshakes_max: 1024,
            peers_max: 16_384,
            trusts_peers: false,
        }
    }
}
