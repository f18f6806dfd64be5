//! JSON-RPC 2.0 over raw TCP and HTTP/1.1, told apart on one port. Bytes in, bytes out.
//!
//! No sockets, threads, clocks or languages: bytes, the time and limits are arguments, replies are
//! written into buffers that the caller lends, and calls go to a [`Service`]. The crate imports
//! `ucall-buffer` and nothing else of the workspace.
//!
//! [`Connection`] puts the layers together: framing ([`http1`], or raw documents), then `rpc`
//! (documents, calls, replies), which stands on [`json`]. [`tls`] encrypts streams of any kind.
#![forbid(unsafe_code)]

mod connection;
pub mod http1;
pub mod json;
mod limits;
mod rpc;
pub mod tls;

pub use connection::{
    Connection, Drain, Environment, LoadState, MemoryBudget, NextAction, Reservation, Scratch,
};
pub use limits::Limits;
pub use rpc::{
    AuthenticationError, Call, CallOutcome, CallerIdentity, ExchangeId, Reply, RpcError, Service,
};
