//! A call that came through a broker, which another thread hands over.

use std::fmt;
use std::sync::Arc;

use ucall_proto::Reservation;

use crate::caller::Transport;

/// A call of [`ucall_proto::BrokeredCall`].
#[derive(Debug)]
pub struct BrokeredCall {
    /// Larger than that of any earlier call of the worker.
    pub number: u64,
    /// The name of the method.
    pub method: Arc<str>,
    /// A list or an object, or nothing.
    pub params: Vec<u8>,
    /// The head of an HTTP request without a body.
    pub head: Vec<u8>,
    /// What it has come by.
    pub transport: Transport,
    /// Whether it is no notification.
    pub has_reply: bool,
    /// What takes the reply.
    pub replies: Arc<dyn BrokeredReplies>,
}

/// Takes the replies to calls through a broker, on the worker's thread.
pub trait BrokeredReplies: Send + Sync + fmt::Debug {
    /// Takes the JSON text of the reply to the call of this number, whose memory is reserved. That
    /// of a notification that has begun is empty.
    fn reply(&self, number: u64, text: &[u8], reserved: Reservation);
}
