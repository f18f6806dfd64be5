//! Frames that are sent and kept together: short messages, one long message, or what takes the
//! place of messages.
#![forbid(unsafe_code)]

use bytes::Bytes;

use crate::frame::{Header, Kind};

/// Frames that are sent and kept together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Its weight in the peer's window and in our queue.
    pub(crate) weight: usize,
    /// Whole frames, or the head of one frame whose body is `parts`.
    pub(crate) frames: Vec<u8>,
    pub(crate) parts: Vec<Bytes>,
}

impl Batch {
    /// Takes the place of messages that are not sent.
    pub(crate) fn gap(first: u64, last: u64) -> Self {
        let mut frames = Header::control(Kind::Gap, last, 8).write().to_vec();
        frames.extend(first.to_le_bytes());
        Self { first, last, weight: 0, frames, parts: Vec::new() }
    }

    /// The end of this side, numbered as the message after the last.
    pub(crate) fn end(sequence: u64, is_final: bool) -> Self {
        let header = Header::control(Kind::End, sequence, 0);
        let frames = Header { segments: is_final.into(), ..header }.write().to_vec();
        Self { first: sequence, last: sequence, weight: 0, frames, parts: Vec::new() }
    }
}
