//! Byte buffers that keep their place while the kernel reads or fills them.
//!
//! A [`Payload`] goes out: one growable head, where replies are written, and parts that belong to
//! somebody else and are sent from where they lie. A [`Target`] comes in: memory with an owner,
//! filled from the front. Both may be moved freely; the bytes they name stay where they are, which
//! is what lets an engine hand their addresses to the kernel and give ownership back later. A
//! [`BufferCache`] keeps the memory of a large message for the next. [`has_same_ends`] compares
//! what is short.
//!
//! This crate is a leaf: it imports nothing of the workspace.

mod buffer_cache;
mod payload;
mod short;
mod target;

pub use buffer_cache::BufferCache;
pub use bytes::Bytes;
pub use payload::Payload;
pub use short::has_same_ends;
pub use target::Target;
