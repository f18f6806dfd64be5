//! JSON-RPC 2.0 over raw TCP, HTTP/1.1 and WebSocket on one port, as a protocol without I/O.
//!
//! The crate knows no sockets, threads, clocks or languages: bytes, the time and limits are
//! arguments, replies are appended to buffers of the caller, and calls go to a [`Service`]. Of the
//! workspace it imports `ucall-buffer` only.
//!
//! [`DatagramCalls`] runs calls that come in datagrams, without a connection, and [`BrokeredCalls`]
//! those in messages of a broker.
//!
//! [`Lines`] finds documents that come one a line, for a connection over raw TCP.
//!
//! [`coding`] decodes compressed bodies.
//!
//! [`Connection`] combines the layers: framing ([`http1`], [`websocket`], or raw documents), then
//! `rpc` (documents, calls, replies), then [`json`]. [`tls`] encrypts streams of any kind.
#![forbid(unsafe_code)]

pub mod arrays;
pub mod coding;
mod connection;
mod cookie;
#[cfg(feature = "invariants")]
pub mod endpoint;
#[cfg(not(feature = "invariants"))]
mod endpoint;
pub mod http1;
pub mod json;
mod keys;
mod limits;
mod lines;
mod rpc;
pub mod tls;
pub mod websocket;

pub use connection::brokered::{BrokeredCall, BrokeredCalls};
pub use connection::datagrams::{
    DatagramCalls, DatagramDocument, DatagramOutcome, refuse_datagram, write_datagram_error,
};
pub use connection::{
    CANCEL_REQUEST, Connection, ConnectionProtocol, DRAIN, Drain, Environment, EvictionClass,
    LoadState, MemoryBudget, MessageFraming, NextAction, PREAMBLE_BYTES, Reservation, Scratch,
    client_preamble, read_server_preamble, server_preamble,
};
pub use cookie::CookieKey;
pub use endpoint::{
    Datatype, Endpoint, InferenceModel, InferencePath, InputForm, ModelInput, ModelOutput,
    ParamKind, percent_decoded,
};
pub use keys::KeySet;
pub use limits::{Compression, Limits};
pub use lines::{Lines, ReplyLines};
pub use rpc::frame::{
    Attachment, FRAME_ALIGNMENT, FRAME_BYTE, FRAME_MEDIA_TYPE, FrameError, FrameHead,
    frame_padding, place_parts, take_parts, write_frame_head, write_shared_head,
};
pub use rpc::mcp::{CANCELLED, RESPONSE, WHOLE_REPLY};
pub use rpc::{
    AuthenticationError, Binary, Call, CallNumber, CallOutcome, CallRefusal, CallerIdentity,
    McpRequest, Meta, Part, PartError, Parts, Reply, Response, ResponseBody, ResultFormat,
    ResultPart, RpcError, Service, inline_results, part_reference, part_references, reply_apart,
};
pub use ucall_buffer::POOLED_BYTES_MIN;
