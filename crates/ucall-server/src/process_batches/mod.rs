//! Batches that run in other processes of this host.
//!
//! `queue.rs` has the batches that wait, and decides which process gets which. `serve.rs` serves
//! one process on a thread of the server, which needs no interpreter. `link.rs` carries messages to
//! the process and back, through shared memory if they are long; `message.rs` has their bytes.
//! `forward.rs` takes the batches of several worker processes, which share the processes.
//!
//! A process gets its next batch while it runs one, and begins it by itself (`inbox.rs`). Until
//! then the server can take it back (`semaphore.rs`), as its calls still wait: one may end, a more
//! urgent one may arrive, and another process may have nothing to run.
//!
//! | what happens to a process | its batches |
//! |---|---|
//! | it dies | the one that it has begun is left, the others are the next ones |
//! | it sends what is no message | the same, and it is to be killed |
//! | it runs a batch longer than that may | the same, and it is to be killed |
//! | it cannot start | wait for another process that is ready, or are left if there is none |

mod forward;
mod inbox;
mod link;
mod message;
mod queue;
mod semaphore;
mod serve;
mod times;
mod waiter;

pub use forward::{recall, refuse_worker, serve_worker};
pub use inbox::ProcessInbox;
pub use link::{MessageKind, ProcessLink};
pub use message::{
    BatchHead, CallResult, Encoded, InvalidMessage, ReceivedBatch, ReceivedCall, SentCall,
    read_batch, read_results,
};
pub use queue::ProcessQueue;
pub use semaphore::BatchSemaphore;
pub use serve::{BatchResults, Left, Peer, ProcessBatch, ProcessEnd, serve_process};
pub use times::{FunctionTimes, encode_times};

/// A batch of the server's own, or of another worker.
pub type QueuedBatch = Box<dyn ProcessBatch + Send>;
