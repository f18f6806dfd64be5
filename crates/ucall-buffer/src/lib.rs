//! Byte buffers with stable addresses while the kernel reads or fills them.
//!
//! A [`Payload`] is sent: one growable head, where replies are written, and borrowed parts that are
//! sent without a copy. A [`Target`] is received into: owned memory that is filled from its start.
//! Both may be moved; the bytes that they refer to keep their address, so an engine can pass that
//! to the kernel and return ownership later. A [`BufferPool`] keeps the memory of large messages
//! for the next ones. [`has_same_ends`] compares short byte strings, and
//! [`SharedMemory`] is what a protocol needs of memory that it shares with its peer.
//!
//! This crate is a leaf: it imports nothing of the workspace.

mod buffer_pool;
mod payload;
mod shared;
mod short;
mod target;

pub use buffer_pool::{BufferPool, POOLED_BYTES_MIN};
pub use bytes::Bytes;
pub use payload::Payload;
pub use shared::{PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};
pub use short::has_same_ends;
pub use target::Target;
