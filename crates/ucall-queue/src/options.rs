//! What a communicator is told when it is made.
#![forbid(unsafe_code)]

use std::time::Duration;

/// When a message counts as acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acknowledge {
    /// The peer's process has received it.
    Received,
    /// The peer's `get` has returned it.
    Taken,
    /// The peer's program has acknowledged it, and all before it.
    Explicit,
}

/// What happens to a put for which there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FullPolicy {
    /// It is refused.
    Error,
    /// It waits for room.
    Block,
    /// What was put first and is not on the wire yet makes room, and fails.
    DropOldest,
    /// It fails.
    DropNewest,
}

/// The limits and habits of a communicator.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of messages for one peer that are not yet acknowledged, each counted with
    /// [`MESSAGE_WEIGHT`](crate::message::MESSAGE_WEIGHT) more than its length, and with 64 bytes
    /// for each segment but the first.
    pub queue_bytes_max: usize,
    /// Bytes of one message, in either direction.
    pub message_bytes_max: usize,
    /// Bytes of messages that a peer may have under way to us and in our inbox.
    pub window_bytes: usize,
    /// What to do when a queue is full.
    pub full: FullPolicy,
    /// What our messages wait for.
    pub acknowledge: Acknowledge,
    /// A link that is quiet for so long is asked for a sign of life, and given up after three times
    /// that.
    pub keepalive: Duration,
    /// A peer that is gone for so long is given up.
    pub expire: Duration,
    /// How long to wait before a lost connection is made again: at first, and at most.
    pub reconnect: (Duration, Duration),
    /// Time for a handshake.
    pub handshake: Duration,
    /// Links that others have made and on which nobody has said yet who they are.
    pub handshakes_max: usize,
    /// Peers at the same time.
    pub peers_max: usize,
    /// Shared memory is used again with peers that trust us as well: they, and we, could write to
    /// what the other side still looks at.
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
