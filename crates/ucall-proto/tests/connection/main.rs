//! The whole connection, driven as an engine would: any bytes in any pieces.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bench;
mod call_limit;
mod closing;
#[cfg(feature = "compression")]
mod coded;
#[cfg(feature = "compression")]
mod compressed;
mod deferred;
#[cfg(feature = "compression")]
mod deflate;
mod drain;
mod frames;
mod harness;
mod http;
mod items;
mod large_frames;
mod limits;
mod long;
mod members;
mod memory;
mod mounted_websocket;
mod raw;
mod routes;
mod secure;
mod shared_memory;
mod specification;
mod streamed;
#[path = "../tls/harness.rs"]
#[allow(dead_code, reason = "the rest is for the tests that it belongs to")]
mod tls;
mod websocket;
