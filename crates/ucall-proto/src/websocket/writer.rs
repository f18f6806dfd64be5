//! Writes frames, which are never fragmented. Those of a client are masked.

use super::close::CloseCode;
use super::deflate::{Deflate, MessageEncoder};
use super::head::{MASK, Opcode, SERVER_HEAD_MAX, SHORT_MAX, server_head, short_head};
use super::mask::unmask;
use crate::Compression;

/// Writes messages whose payload is appended after their head.
///
/// The length is known only afterwards. The head gets as many bytes as the previous one had; if
/// the length needs more or fewer, the payload moves by the difference.
///
/// A writer that compresses messages gives the head no bytes. So only a head of another length asks
/// whether it does, and one that does not compress costs nothing more.
#[derive(Clone, Copy, Debug)]
pub struct FrameWriter {
    head_len: u8,
    encoder: Option<MessageEncoder>,
}

/// A message that is being written. Pass it to [`FrameWriter::end`] or [`FrameWriter::abort`], with
/// the same buffer and only the payload after the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a pending frame has no length yet"]
pub struct PendingFrame {
    start: usize,
    payload_at: usize,
}

impl Default for FrameWriter {
    fn default() -> Self {
        Self { head_len: 2, encoder: None }
    }
}

impl FrameWriter {
    /// A writer that compresses messages of these lengths, as was agreed on.
    #[must_use]
    pub fn compressing(deflate: Deflate, lengths: Compression) -> Self {
        Self { head_len: 0, encoder: Some(MessageEncoder { deflate, lengths }) }
    }

    /// Whether compressed messages are agreed on.
    #[must_use]
    pub fn compresses(&self) -> bool {
        self.encoder.is_some()
    }

    /// Begins a message. The caller appends its payload to `out`.
    #[inline]
    pub fn begin(&self, out: &mut Vec<u8>) -> PendingFrame {
        let start = out.len();
        let payload_at = start + usize::from(self.head_len);
        // A copy of constant size needs no call.
        out.extend_from_slice(&[0; SERVER_HEAD_MAX]);
        out.truncate(payload_at);
        PendingFrame { start, payload_at }
    }

    /// Writes the head of the message, whose payload is all that follows in `out`.
    #[inline]
    pub fn end(&mut self, out: &mut Vec<u8>, pending: PendingFrame, opcode: Opcode) {
        let payload_len = out.len().saturating_sub(pending.payload_at);
        match out.get_mut(pending.start..pending.payload_at) {
            Some([first, second]) if payload_len <= SHORT_MAX => {
                [*first, *second] = short_head(opcode, payload_len);
            }
            _ => self.end_general(out, pending, opcode, payload_len),
        }
    }

    /// Writes a head of any length, for which the payload may have to move.
    #[inline(never)]
    fn end_general(
        &mut self,
        out: &mut Vec<u8>,
        pending: PendingFrame,
        opcode: Opcode,
        payload_len: usize,
    ) {
        let (head, len) = server_head(opcode, payload_len);
        let head = head.get(..len).unwrap_or_default();
        match out.get_mut(pending.start..pending.payload_at) {
            Some(room) if room.len() == len => room.copy_from_slice(head),
            Some(_) if self.encoder.is_some() => self.end_compressing(out, pending, opcode, head),
            Some(_) => {
                out.splice(pending.start..pending.payload_at, head.iter().copied());
                self.head_len = len as u8;
            }
            None => debug_assert!(false, "the buffer was cut below the head of its message"),
        }
    }

    /// Writes a message that is compressed, if that makes it smaller; else with this head.
    #[cold]
    fn end_compressing(
        &self,
        out: &mut Vec<u8>,
        pending: PendingFrame,
        opcode: Opcode,
        head: &[u8],
    ) {
        let payload = out.get(pending.payload_at..).unwrap_or_default();
        match self.encoder.and_then(|encoder| encoder.frame(opcode, payload)) {
            Some(frame) => {
                out.truncate(pending.start);
                out.extend_from_slice(&frame);
            }
            None => drop(out.splice(pending.start..pending.payload_at, head.iter().copied())),
        }
    }

    /// Takes the message back, as if it had never begun.
    pub fn abort(&self, out: &mut Vec<u8>, pending: PendingFrame) {
        out.truncate(pending.start);
    }
}

/// Appends a client's frame with this payload, masked by a random key that is used once.
pub fn write_client_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], key: [u8; 4]) {
    let (mut head, len) = server_head(opcode, payload.len());
    head[1] |= MASK;
    out.extend_from_slice(head.get(..len).unwrap_or_default());
    out.extend_from_slice(&key);
    let start = out.len();
    out.extend_from_slice(payload);
    unmask(out.get_mut(start..).unwrap_or_default(), key);
}

/// Appends a server's frame with this payload: a message, or a control frame of at most 125 bytes.
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    write_head(out, opcode, payload.len());
    out.extend_from_slice(payload);
}

/// Appends the head of a frame, whose payload of `payload_len` bytes the caller appends.
pub fn write_head(out: &mut Vec<u8>, opcode: Opcode, payload_len: usize) {
    let (head, len) = server_head(opcode, payload_len);
    out.extend_from_slice(head.get(..len).unwrap_or_default());
}

/// Appends a Close frame. A reason that does not fit is cut between characters.
pub fn write_close(out: &mut Vec<u8>, code: CloseCode, reason: &str) {
    let mut ends = (0..=SHORT_MAX - 2).rev();
    let reason = ends.find_map(|end| reason.get(..end.min(reason.len()))).unwrap_or_default();
    let mut payload = code.get().to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    write_frame(out, Opcode::Close, &payload);
}
