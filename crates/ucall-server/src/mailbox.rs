//! The messages of other threads to a worker.

use ucall_proto::Drain;

/// Sends messages to one worker, from any thread. Clones send to the same worker.
pub type Mailbox = ucall_engine::Mailbox<Message>;

/// A message of another thread to a worker.
#[derive(Debug)]
pub enum Message {
    /// Stop at once.
    Stop,
    /// Drain, then stop.
    Drain(Drain),
}
