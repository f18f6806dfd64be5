//! The messages of other threads to a worker.

use crate::handler::CallId;
use ucall_proto::{Drain, RpcError};

/// Sends messages to one worker, from any thread. Clones lead to the same worker.
pub type Mailbox = ucall_engine::Mailbox<Message>;

/// A message of another thread to a worker.
#[derive(Debug)]
pub enum Message {
    /// End the run at once.
    Stop,
    /// End the run in order: see [`Drain`].
    Drain(Drain),
    /// The handler has replies to give: see [`Handler::poll_reply`](crate::Handler::poll_reply).
    PollReplies,
    /// The outcome of a deferred call: the JSON text of its result, or an error.
    Complete(CallId, Result<Vec<u8>, RpcError>),
}
