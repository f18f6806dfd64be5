//! The core of `ucall.queue`: a communicator's thread, and its interface to Python.
//!
//! The thread never uses the interpreter. `put` writes into the outbox and makes a `Receipt`, which
//! reads the delivery state when it is polled; `get` takes from the inbox. The next call from
//! Python releases objects whose memory was sent (`pinned_buffers`).
//!
//! `QueueLink` is a link over a transport in Python.

mod communicator;
mod detach;
mod errors;
mod incoming;
mod link;
mod log;
mod message;
mod pickle;
mod pinned_buffers;
mod receipt;
mod security;
mod sent_names;
mod settings;
mod waiting;
mod watched_futures;

pub(crate) use communicator::{QueueCore, check_shared_memory};
pub(crate) use incoming::Block;
pub(crate) use link::{QueueLink, QueueTunnel};
pub(crate) use log::QueueLog;
pub(crate) use message::Message;
pub(crate) use pickle::PickleLoader;
pub(crate) use receipt::Receipt;
pub(crate) use security::system_certificates;
