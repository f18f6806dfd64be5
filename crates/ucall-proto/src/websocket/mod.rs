//! WebSocket (RFC 6455) without I/O: frames, messages, control frames, and closing.
//!
//! It may import `http1` for the upgrade, `coding`, `simdutf8`, `base64ct`, and SHA-1 of
//! `aws-lc-rs`.
//!
//! [`MessageReader`] reads the client's frames from a buffer that may be written: a payload is
//! unmasked where it is, and a message of one frame is not copied. The fragments of a message are
//! collected in memory of the reader. [`FrameWriter`] writes a server's frames around payloads that
//! are written in place. [`Deflate`] is the only extension; unless it is agreed on, the reserved
//! bits of each frame must be 0. For a client, the reader reads a server's frames, and
//! [`write_client_frame`] writes masked ones.

mod close;
mod deflate;
mod error;
mod head;
mod mask;
mod reader;
mod upgrade;
mod writer;

pub use close::CloseCode;
pub use deflate::Deflate;
pub(crate) use deflate::MESSAGE_TAIL;
pub use error::WebSocketError;
pub use head::Opcode;
pub use mask::unmask;
pub(crate) use reader::LongMessage;
pub use reader::{
    CloseFrame, Event, MessageKind, MessageLimits, MessageReader, PeekedFrame, Progress,
    peek_frame, validate_text,
};
pub use upgrade::{Handshake, Upgrade};
pub use writer::{
    FrameWriter, PendingFrame, write_client_frame, write_close, write_frame, write_head,
};
