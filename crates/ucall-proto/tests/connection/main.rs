//! The whole connection, driven as an engine would: any bytes in any pieces.

mod bench;
mod closing;
mod deferred;
mod harness;
mod http;
mod limits;
mod raw;
mod specification;
