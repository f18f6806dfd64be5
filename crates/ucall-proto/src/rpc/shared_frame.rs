//! Frames whose parts lie in memory that both sides share.
//!
//! | at | of a frame of version 2, numbers with their lowest byte first |
//! |---|---|
//! | 0 | as in version 1, up to the length of the JSON text |
//! | 8 | the number of the slot that has the parts, 64 bits |
//! | 16 | the number of the descriptor that was sent for the slot, 64 bits; 0 if the peer has it |
//! | 24 | the length of each part, 64 bits |
//! | then | the JSON text |
//!
//! The first part is at the start of the slot, and each other one at the next multiple of
//! [`FRAME_ALIGNMENT`](super::frame::FRAME_ALIGNMENT). Only a connection that has agreed on shared
//! memory has such frames; its short ones are of version 1, as are all for which no slot is free.

use ucall_buffer::{SharedMemory, SharedMemoryError, SlotPlace};

use super::frame::{FrameError, FrameHead, aligned};
use super::parts::Parts;

/// The version of these frames.
pub(super) const SHARED_VERSION: u8 = 2;
/// The bytes of a place.
pub(super) const PLACE_BYTES: usize = 16;
/// Shorter parts, all of a frame together, are faster through the socket.
const SHARED_BYTES_MIN: u64 = 64 << 10;

/// The place in these bytes.
pub(super) fn read_place(bytes: &[u8]) -> Option<SlotPlace> {
    let (slot, rest) = bytes.split_first_chunk()?;
    let (descriptor, _) = rest.split_first_chunk()?;
    Some(SlotPlace { slot: u64::from_le_bytes(*slot), descriptor: u64::from_le_bytes(*descriptor) })
}

/// Appends the head of a frame whose parts, of these lengths, are in a slot.
///
/// # Errors
/// There are more parts, or a longer text, than a frame may have.
pub fn write_shared_head(
    out: &mut Vec<u8>,
    text_len: usize,
    parts: &[usize],
    place: SlotPlace,
) -> Result<(), FrameError> {
    let start = out.len();
    super::frame::write_frame_head(out, text_len, parts)?;
    if let Some(version) = out.get_mut(start + 1) {
        *version = SHARED_VERSION;
    }
    let at = out.len() - size_of_val(parts);
    let place = [place.slot, place.descriptor].map(u64::to_le_bytes);
    out.splice(at..at, place.into_iter().flatten());
    Ok(())
}

/// Copies parts, each of which is some pieces, to shared memory, if there are enough bytes.
///
/// # Errors
/// The peer has broken the rules of shared memory.
pub fn place_parts(
    memory: &mut dyn SharedMemory,
    parts: &[[&[u8]; 2]],
) -> Result<Option<SlotPlace>, SharedMemoryError> {
    let mut pieces = Vec::with_capacity(2 * parts.len());
    let mut end = 0;
    for part in parts {
        let Some(start) = aligned(end) else { return Ok(None) };
        end = start;
        for piece in part {
            pieces.push((end as u64, *piece));
            end += piece.len();
        }
    }
    match end as u64 {
        bytes if bytes < SHARED_BYTES_MIN => Ok(None),
        bytes => memory.place(bytes, &mut pieces.into_iter()),
    }
}

/// The parts of a frame that are in shared memory.
///
/// # Errors
/// The connection has none, or the peer has broken its rules.
pub fn take_parts(
    memory: Option<&mut (dyn SharedMemory + '_)>,
    head: &FrameHead,
    place: SlotPlace,
) -> Result<Parts, FrameError> {
    let memory = memory.ok_or(FrameError::Version(SHARED_VERSION))?;
    let bytes = head.parts.last().map_or(0, |part| part.end) as u64;
    let memory = memory.take(place, bytes).map_err(|error| match error {
        SharedMemoryError::OutOfMemory => FrameError::NoMemory,
        _ => FrameError::SharedMemory,
    })?;
    let parts = head.parts.iter().map(|part| (part.clone(), None)).collect();
    Ok(Parts::new(memory, parts))
}
