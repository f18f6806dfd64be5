//! The client's core: requests written, replies read, and the quick way between them.
//!
//! `request` and `reply` are the two documents as Python sees them. `parser` finds replies in bytes
//! that come in any pieces; it does no I/O, so [`ReplyReader`] lends it to TLS and asyncio, and
//! [`ClientConnection`] drives it on a plain socket without the interpreter's lock. What is cold
//! (addresses, pools, retries) is in `python/ucall/_client/`.

mod connection;
mod error;
mod head;
mod limits;
mod parser;
mod reader;
mod reply;
mod request;
mod socket;

pub(crate) use connection::{ClientConnection, peek};
pub(crate) use reader::ReplyReader;
pub(crate) use reply::Reply;
pub(crate) use request::{Request, RequestWriter};
