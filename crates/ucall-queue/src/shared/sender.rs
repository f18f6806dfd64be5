//! Copies messages into shared memory.
//!
//! The place of a message that is long enough:
//!
//! | | both sides trust each other | they do not |
//! |---|---|---|
//! | a slot that is copied out | below `VIEWED_BYTES_MIN` | up to `COPIED_BYTES_MAX` |
//! | a slot that is viewed | else, if one is free | |
//! | memory of its own | else, if it has several segments | if longer, with several segments |
//! | the stream | all others | all others |
//!
//! A slot that is copied out is released at once, so a message waits for one. A slot costs one copy
//! by the sender, and another by the receiver unless it is viewed. Memory of its own costs new
//! pages, which is more than both.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use ucall_engine::shared::{
    self, Channel, MemoryUse, Quota, SentSlots, SharedMemoryError, SlotPlace, SlotTarget,
};

use super::layout::{Layout, Record, Scatter};
use super::{COPIED_SLOTS_BYTES_MAX, is_viewed};
use crate::frame::{HEADER_BYTES, Header, Kind, SEGMENT_ENTRY_BYTES, first_frame, read_u64};

/// Shorter messages are faster through the stream.
const SHARED_BYTES_MIN: u64 = 64 * 1024;
/// A message with a shorter average segment uses the stream, because each segment is a copy.
const SEGMENT_BYTES_MIN: u64 = 4 * 1024;
/// Messages up to this length are copied out of slots by a peer that is not trusted. For longer
/// ones its buffer pool rarely has memory, and the copy is not faster.
const COPIED_BYTES_MAX: u64 = 4 << 20;
/// Bytes that are copied in one turn, so that a long message does not delay other links.
const TURN_BYTES_MAX: usize = 8 << 20;
const PIECE_BYTES_MAX: usize = 1 << 20;
/// The bytes of all slots of this process that are copied out.
const QUOTA_BYTES_MAX: u64 = 128 << 20;

static QUOTA: Quota = Quota::new(QUOTA_BYTES_MAX);

/// The sending side of a link with a channel.
#[derive(Debug)]
pub(super) struct SharedSender {
    slots: SentSlots<SlotUse>,
    /// The bytes of all slots together.
    slots_bytes_max: u64,
    pending: Option<Pending>,
    /// Both sides trust each other.
    is_trusted: bool,
    /// The system refuses shared memory.
    is_refused: bool,
}

/// The use of a slot that is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotUse {
    /// A message that is copied out, after which the slot is released.
    Copied,
    /// A message that is viewed, for as long as the receiver's program likes.
    Viewed,
}

/// A message that is being copied.
#[derive(Debug)]
struct Pending {
    header: Header,
    /// The whole message, in case it has to use the stream.
    batch: Vec<Bytes>,
    layout: Layout,
    scatter: Scatter,
    position: CopyTarget,
}

#[derive(Debug)]
enum CopyTarget {
    Slot(SlotTarget, SlotUse),
    /// A slot that is released soon.
    Awaited,
    Once(OwnedFd),
}

impl SharedSender {
    pub(super) fn new(slots_bytes_max: usize) -> Self {
        let slots_bytes_max = slots_bytes_max as u64;
        let (is_trusted, is_refused) = (false, false);
        Self { slots: SentSlots::default(), slots_bytes_max, pending: None, is_trusted, is_refused }
    }

    /// Whether a message is pending, for which others wait.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether a message is being copied.
    pub(super) fn is_copying(&self) -> bool {
        self.pending.as_ref().is_some_and(|it| !matches!(it.position, CopyTarget::Awaited))
    }

    /// Begins to copy a message, or returns it if it is to use the stream.
    pub(super) fn begin(&mut self, batch: Vec<Bytes>, is_trusted: bool) -> Result<(), Vec<Bytes>> {
        let Some((header, layout)) = shareable(&batch) else { return Err(batch) };
        self.is_trusted = is_trusted;
        let (has_buffers, bytes) = (header.segments > 1, layout.end());
        let slot_use = match is_trusted {
            true if is_viewed(header.length) => Some(SlotUse::Viewed),
            true => Some(SlotUse::Copied),
            false => (bytes <= COPIED_BYTES_MAX).then_some(SlotUse::Copied),
        };
        let position = slot_use.map_or(Ok(None), |slot_use| self.find_slot(bytes, slot_use));
        let position = match position {
            Ok(None) if slot_use == Some(SlotUse::Copied) => {
                Ok(self.awaits_slot_for(bytes).then_some(CopyTarget::Awaited))
            }
            Ok(None) if has_buffers && !self.is_refused => create(bytes).map(Some),
            position => position,
        };
        match position {
            Ok(Some(position)) => {
                let parts = batch.get(1..).unwrap_or_default().to_vec();
                let scatter = Scatter::new(parts, &layout);
                self.pending = Some(Pending { header, batch, layout, scatter, position });
                Ok(())
            }
            Ok(None) => Err(batch),
            Err(error) => {
                self.is_refused |= is_refusal(&error);
                Err(batch)
            }
        }
    }

    /// Continues to copy. Returns what is sent once that is complete: the frame of the message in
    /// shared memory, or the message itself if it could not be shared.
    pub(super) fn advance(
        &mut self,
        channel: &mut Channel,
        copied: &mut usize,
    ) -> Option<Vec<Bytes>> {
        let mut pending = self.pending.take()?;
        if matches!(pending.position, CopyTarget::Awaited) {
            let bytes = pending.layout.end();
            match self.find_slot(bytes, SlotUse::Copied) {
                Ok(Some(position)) => pending.position = position,
                _ if self.awaits_slot_for(bytes) => {
                    self.pending = Some(pending);
                    return None;
                }
                // The released slots are in use again.
                _ => return Some(self.abandon(pending)),
            }
        }
        match self.copy(&mut pending, copied) {
            Ok(true) => {}
            Ok(false) => {
                self.pending = Some(pending);
                return None;
            }
            Err(_) => return Some(self.abandon(pending)),
        }
        let Pending { header, batch, layout, position, .. } = pending;
        match self.announce(channel, position) {
            Some(SlotPlace { slot, descriptor }) => {
                let record = Record { slot, descriptor, layout };
                Some(vec![Bytes::from(record.write(&header))])
            }
            None => Some(batch),
        }
    }

    /// The peer has released a slot.
    pub(super) fn release(&mut self, slot: u64) -> Result<(), SharedMemoryError> {
        self.slots.release(slot, 0)
    }

    /// Whether a slot for this many bytes is released soon.
    fn awaits_slot_for(&self, bytes: u64) -> bool {
        self.slots.has_used(bytes, SlotUse::Copied)
    }

    /// Takes a slot for this many bytes and this use; `None` if there is none.
    fn find_slot(&mut self, bytes: u64, slot_use: SlotUse) -> io::Result<Option<CopyTarget>> {
        let bytes_max = match self.is_trusted {
            _ if self.is_refused => 0,
            true => self.slots_bytes_max,
            false => self.slots_bytes_max.min(COPIED_SLOTS_BYTES_MAX),
        };
        let quota = (slot_use == SlotUse::Copied).then_some(&QUOTA);
        let found = self.slots.find(bytes, slot_use, bytes_max, quota)?;
        Ok(found.map(|target| CopyTarget::Slot(target, slot_use)))
    }

    /// Copies for one turn; `true` once all is copied.
    fn copy(&mut self, pending: &mut Pending, copied: &mut usize) -> io::Result<bool> {
        let mut left = TURN_BYTES_MAX;
        while left > 0 {
            let Some((at, piece)) = pending.scatter.next(left.min(PIECE_BYTES_MAX)) else {
                return Ok(true);
            };
            left -= piece.len();
            *copied += piece.len();
            let is_written = match &mut pending.position {
                CopyTarget::Once(memory) => {
                    shared::write(memory.as_fd(), at, &piece)?;
                    true
                }
                CopyTarget::Slot(target, _) => self.slots.write(target, at, &piece),
                CopyTarget::Awaited => false,
            };
            if !is_written {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        Ok(false)
    }

    /// Sends the descriptor, if there is one.
    fn announce(&mut self, channel: &mut Channel, position: CopyTarget) -> Option<SlotPlace> {
        match position {
            CopyTarget::Slot(target, slot_use) => self.slots.announce(channel, target, slot_use),
            CopyTarget::Awaited => None,
            CopyTarget::Once(memory) => {
                shared::seal(memory.as_fd(), MemoryUse::Once).ok()?;
                // It fails if the channel is full or broken.
                let descriptor = channel.send(memory.as_fd()).ok()?;
                Some(SlotPlace { slot: 0, descriptor })
            }
        }
    }

    /// Returns a message that could not be copied, for the stream.
    fn abandon(&mut self, pending: Pending) -> Vec<Bytes> {
        if let CopyTarget::Slot(target, _) = &pending.position {
            self.slots.abandon(target);
        }
        pending.batch
    }
}

fn create(bytes: u64) -> io::Result<CopyTarget> {
    Ok(CopyTarget::Once(shared::create(bytes)?))
}

/// Whether the system refuses shared memory for good.
fn is_refusal(error: &io::Error) -> bool {
    [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported].contains(&error.kind())
}

/// The header and layout of a batch that is one message worth sharing.
fn shareable(batch: &[Bytes]) -> Option<(Header, Layout)> {
    let [frames, _, ..] = batch else { return None };
    let (header, _) = first_frame(frames)?;
    let count = u64::from(header.segments.max(1));
    if header.kind != Kind::Data
        || header.length < SHARED_BYTES_MIN
        || header.length / count < SEGMENT_BYTES_MIN
    {
        return None;
    }
    let table = frames.get(HEADER_BYTES..)?.chunks_exact(SEGMENT_ENTRY_BYTES);
    let lengths = match header.segments {
        0 | 1 => vec![header.length],
        _ => table.map(|length| read_u64(length, 0)).collect(),
    };
    Some((header, Layout::new(lengths)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_128_mib_for_slots_that_are_copied_out() {
        static QUOTA: Quota = Quota::new(QUOTA_BYTES_MAX);
        let all = QUOTA.take(128 << 20).unwrap();
        assert!(QUOTA.take(1).is_none());
        drop(all);
        assert!(QUOTA.take(1).is_some());
    }
}
