//! The messages of other threads to a worker.

use std::os::fd::OwnedFd;
use std::time::Duration;

use ucall_engine::Peer;
use ucall_proto::Drain;

use crate::brokered_call::BrokeredCall;

/// Sends messages to one worker, from any thread. Clones send to the same worker.
pub type Mailbox = ucall_engine::Mailbox<Message>;

/// A message of another thread to a worker.
#[derive(Debug)]
pub enum Message {
    /// Stop at once.
    Stop,
    /// All processes that share the listening sockets stop: the drain of this one ends the sockets.
    AllStop,
    /// Serve a connected stream socket, as if a listener had accepted it, for this caller if it is
    /// another than the socket's peer.
    Adopt(OwnedFd, Option<Peer>),
    /// Run a call that has come through a broker.
    Call(Box<BrokeredCall>),
    /// Run more of the calls that wait.
    RunCalls,
    /// Cancel the call of this number, which has come through a broker.
    CancelCall(u64),
    /// Drain, then stop.
    Drain {
        /// What happens to calls after `idle_time`.
        mode: Drain,
        /// For how long all calls are served, and idle connections stay open.
        idle_time: Duration,
        /// In place of [`WorkerConfig::drain_timeout`](crate::WorkerConfig::drain_timeout).
        timeout: Option<Duration>,
    },
}

impl Message {
    /// The drain of a program that stops its server itself, and does not want to wait.
    pub const fn drain(mode: Drain) -> Self {
        Self::Drain { mode, idle_time: Duration::from_millis(100), timeout: None }
    }

    /// The drain of a server that is replaced: clients that call every other second learn of it by
    /// a reply, before their connection closes.
    pub const fn drain_with_idle_time(mode: Drain) -> Self {
        Self::Drain { mode, idle_time: Duration::from_secs(2), timeout: None }
    }
}
