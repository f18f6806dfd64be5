//! The core of `ucall.queue`: a communicator's thread, and what Python puts and gets.
//!
//! The thread never touches the interpreter. A put writes into the outbox and makes a `Receipt`,
//! which asks how far the peer is only when somebody asks it; a get takes from the inbox. Objects
//! whose memory was sent are let go of by the next call from Python (`pinned_buffers`).
//!
//! `QueueLink` lets a transport in Python carry the sessions: see there.

mod communicator;
mod errors;
mod incoming;
mod link;
mod log;
mod message;
mod pickle;
mod pinned_buffers;
mod receipt;
mod security;
mod settings;
mod waiting;
mod watched_futures;

pub(crate) use communicator::{QueueCore, check_shared_memory};
pub(crate) use incoming::Block;
pub(crate) use link::QueueLink;
pub(crate) use log::QueueLog;
pub(crate) use message::Message;
pub(crate) use pickle::PickleLoader;
pub(crate) use receipt::Receipt;
pub(crate) use security::system_certificates;
