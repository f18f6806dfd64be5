//! The client's core: writes requests, reads replies, and exchanges them over a plain socket.
//!
//! `request`, `reply` and `notification` are the documents as Python sees them. `parser` finds
//! those of the server in received bytes without I/O: in documents, HTTP, server-sent events or
//! WebSocket frames. A request or a reply with
//! binary parts is a frame (`ucall_proto`'s).
//! [`ReplyReader`] offers it to TLS, asyncio and streams, and
//! [`ClientConnection`] drives it on a plain socket without the interpreter's lock.
//! [`send_datagrams`] and [`receive_datagrams`] are for UDP. Addresses, pools and retries are in
//! `python/ucall/_client/`.

mod coding;
mod connection;
mod datagrams;
mod error;
mod events;
mod frame;
mod incoming;
mod notification;
mod parser;
mod reader;
mod reply;
mod request;
mod request_parts;
mod request_writer;
mod shared_memory;
mod socket;
mod support;
mod values;

pub(crate) use coding::CodingSupport;
pub(crate) use connection::{ClientConnection, peek};
pub(crate) use datagrams::{receive_datagrams, send_datagrams};
pub(crate) use frame::client_frame;
pub(crate) use notification::Notification;
pub(crate) use reader::ReplyReader;
pub(crate) use reply::Reply;
pub(crate) use request::Request;
pub(crate) use request_writer::RequestWriter;
pub(crate) use shared_memory::SharedMemory;
pub(crate) use support::{FrameRefused, FrameSupport, Undecided};
