//! The part of the NATS client protocol that a server of calls needs, after CONNECT: messages in,
//! replies out. See <https://docs.nats.io/reference/reference-protocols/nats-protocol>.
//!
//! It works on byte slices. [`parse`] keeps no state: an operation that is incomplete says how many
//! bytes it needs, and is parsed again when they have arrived.

mod headers;
mod reader;
mod writer;

pub(crate) use headers::write_head;
pub use reader::{Message, NatsError, Operation, Parsed, parse};
pub(crate) use writer::{PING, PONG, error_length, write_error, write_result, write_unsubscribe};
