//! Batches that run in other processes of this host.
//!
//! `queue.rs` has the batches that wait, and decides which process gets which. `serve.rs` serves
//! one process on a thread of the server, which needs no interpreter. `link.rs` carries messages to
//! the process and back, through shared memory if they are long; `message.rs` has their bytes.
//! `forward.rs` takes the batches of several worker processes, which share the processes.
//!
//! | what happens to a process | its batches |
//! |---|---|
//! | it dies | the one that it may have begun is left, the others are the next ones |
//! | it sends what is no message | the same, and it is to be killed |
//! | it runs a batch longer than that may | the same, and it is to be killed |
//! | it cannot start | wait for another process that is ready, or are left if there is none |

mod forward;
mod link;
mod message;
mod queue;
mod serve;
mod waiter;

pub use forward::{refuse_worker, serve_worker};
pub use link::{MessageKind, ProcessLink};
pub use message::{
    BatchHead, CallResult, Encoded, InvalidMessage, ReceivedBatch, ReceivedCall, SentCall,
    read_batch, read_results,
};
pub use queue::ProcessQueue;
pub use serve::{BatchResults, Left, Peer, ProcessBatch, ProcessEnd, fail, serve_process};

/// A batch of the server's own, or of another worker.
pub type QueuedBatch = Box<dyn ProcessBatch + Send>;
