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

use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use rustix::io::{self, Errno};

use super::channel::Channel;
use super::layout::{Layout, Record, Scatter};
use super::receiver::SLOTS_MAX;
use super::region::{self, Mapping, MemoryUse, QuotaShare};
use super::{COPIED_SLOTS_BYTES_MAX, is_viewed};
use crate::frame::{
    HEADER_BYTES, Header, Kind, ProtocolError, SEGMENT_ENTRY_BYTES, first_frame, read_u64,
};

/// Shorter messages are faster through the stream.
const SHARED_BYTES_MIN: u64 = 64 * 1024;
/// A message with a shorter average segment uses the stream, because each segment is a copy.
const SEGMENT_BYTES_MIN: u64 = 4 * 1024;
/// The smallest slot. A slot also has room for messages slightly longer than its first.
const SLOT_BYTES_MIN: u64 = 128 * 1024;
const SLOT_SLACK_SHARE: u64 = 16;
/// Messages up to this length are copied out of slots by a peer that is not trusted. For longer
/// ones its buffer pool rarely has memory, and the copy is not faster.
const COPIED_BYTES_MAX: u64 = 4 << 20;
/// Bytes that are copied in one turn, so that a long message does not delay other links.
const TURN_BYTES_MAX: usize = 8 << 20;
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The sending side of a link with a channel.
#[derive(Debug)]
pub(super) struct SharedSender {
    slots: Vec<Slot>,
    /// The bytes of all slots together.
    slots_bytes_max: u64,
    pending: Option<Pending>,
    /// Both sides trust each other.
    is_trusted: bool,
    /// The system refuses shared memory.
    is_refused: bool,
}

#[derive(Debug)]
struct Slot {
    memory: Mapping,
    state: SlotState,
    /// The share of a slot that is copied out.
    _quota: Option<QuotaShare>,
}

/// The use of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    /// None.
    Free,
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
    /// A slot that the peer knows.
    Slot(usize),
    /// A slot whose descriptor the peer does not have.
    NewSlot(usize, Slot, OwnedFd),
    /// A slot that is released soon.
    Awaited,
    Once(OwnedFd),
}

impl SharedSender {
    pub(super) fn new(slots_bytes_max: usize) -> Self {
        let slots_bytes_max = slots_bytes_max as u64;
        let (is_trusted, is_refused) = (false, false);
        Self { slots: Vec::new(), slots_bytes_max, pending: None, is_trusted, is_refused }
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
        let state = match is_trusted {
            true if is_viewed(header.length) => Some(SlotState::Viewed),
            true => Some(SlotState::Copied),
            false => (bytes <= COPIED_BYTES_MAX).then_some(SlotState::Copied),
        };
        let position = state.map_or(Ok(None), |state| self.find_slot(bytes, state));
        let position = match position {
            Ok(None) if state == Some(SlotState::Copied) => {
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
                self.is_refused |= is_refusal(error);
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
            match self.find_slot(bytes, SlotState::Copied) {
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
            Some((slot, descriptor)) => {
                let record = Record { slot, descriptor, layout };
                Some(vec![Bytes::from(record.write(&header))])
            }
            None => Some(batch),
        }
    }

    /// The peer has released a slot.
    pub(super) fn release(&mut self, slot: u64) -> Result<(), ProtocolError> {
        let position = usize::try_from(slot).ok().and_then(|slot| slot.checked_sub(1));
        match position.and_then(|position| self.slots.get_mut(position)) {
            Some(slot) if slot.state != SlotState::Free => {
                slot.state = SlotState::Free;
                Ok(())
            }
            _ => Err(ProtocolError::InvalidSharedMemory),
        }
    }

    /// Whether a slot for this many bytes is released soon.
    fn awaits_slot_for(&self, bytes: u64) -> bool {
        let is_returning = |slot: &Slot| slot.state == SlotState::Copied && slot.has_room(bytes);
        self.slots.iter().any(is_returning)
    }

    /// Takes a slot for this many bytes and this use; `None` if there is none.
    fn find_slot(&mut self, bytes: u64, state: SlotState) -> io::Result<Option<CopyTarget>> {
        let fits = |slot: &Slot| slot.state == SlotState::Free && slot.has_room(bytes);
        let shareable = self.slots.iter().enumerate().filter(|(_, slot)| fits(slot));
        if let Some((position, _)) = shareable.min_by_key(|(_, slot)| slot.memory.bytes()) {
            self.set_slot_state(position, state);
            return Ok(Some(CopyTarget::Slot(position)));
        }
        let most = match self.is_trusted {
            true => self.slots_bytes_max,
            false => self.slots_bytes_max.min(COPIED_SLOTS_BYTES_MAX),
        };
        let room = (bytes + bytes / SLOT_SLACK_SHARE).max(SLOT_BYTES_MIN);
        let all: u64 = self.slots.iter().map(|slot| slot.memory.bytes() as u64).sum();
        // A new slot, or a longer one in place of a free slot.
        let (position, freed) = if self.slots.len() < SLOTS_MAX && all + room <= most {
            (self.slots.len(), 0)
        } else if let Some(position) =
            self.slots.iter().position(|slot| slot.state == SlotState::Free)
        {
            (position, self.slots.get(position).map_or(0, |slot| slot.memory.bytes() as u64))
        } else {
            return Ok(None);
        };
        if all - freed + room > most || self.is_refused {
            return Ok(None);
        }
        let quota_share = if state == SlotState::Viewed { None } else { QuotaShare::take(room) };
        if quota_share.is_none() && state != SlotState::Viewed {
            return Ok(None);
        }
        let memory = region::create(room)?;
        region::allocate(memory.as_fd(), room)?;
        let length = usize::try_from(room).map_err(|_| Errno::OVERFLOW)?;
        let mapping = Mapping::to_write(memory.as_fd(), length)?;
        region::seal(memory.as_fd(), MemoryUse::Reused)?;
        self.set_slot_state(position, state);
        let slot = Slot { memory: mapping, state, _quota: quota_share };
        Ok(Some(CopyTarget::NewSlot(position, slot, memory)))
    }

    fn set_slot_state(&mut self, position: usize, state: SlotState) {
        if let Some(slot) = self.slots.get_mut(position) {
            slot.state = state;
        }
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
                    region::write(memory.as_fd(), at, &piece)?;
                    true
                }
                CopyTarget::NewSlot(_, slot, _) => slot.memory.write(at, &piece),
                CopyTarget::Slot(position) => {
                    let slot = self.slots.get_mut(*position);
                    slot.is_some_and(|slot| slot.memory.write(at, &piece))
                }
                CopyTarget::Awaited => false,
            };
            if !is_written {
                return Err(Errno::RANGE);
            }
        }
        Ok(false)
    }

    /// Sends the descriptor, if there is one: the numbers of the slot and of the descriptor.
    fn announce(&mut self, channel: &mut Channel, position: CopyTarget) -> Option<(u64, u64)> {
        match position {
            CopyTarget::Slot(position) => Some((position as u64 + 1, 0)),
            CopyTarget::NewSlot(position, slot, descriptor) => {
                let number = channel.send(descriptor.as_fd());
                let Ok(number) = number else {
                    self.set_slot_state(position, SlotState::Free);
                    return None;
                };
                match self.slots.get_mut(position) {
                    Some(old) => *old = slot,
                    None => self.slots.push(slot),
                }
                Some((position as u64 + 1, number))
            }
            CopyTarget::Awaited => None,
            CopyTarget::Once(memory) => {
                region::seal(memory.as_fd(), MemoryUse::Once).ok()?;
                // It fails if the channel is full or broken.
                let number = channel.send(memory.as_fd()).ok()?;
                Some((0, number))
            }
        }
    }

    /// Returns a message that could not be copied, for the stream.
    fn abandon(&mut self, pending: Pending) -> Vec<Bytes> {
        if let CopyTarget::Slot(position) | CopyTarget::NewSlot(position, ..) = pending.position {
            self.set_slot_state(position, SlotState::Free);
        }
        pending.batch
    }
}

impl Slot {
    fn has_room(&self, bytes: u64) -> bool {
        self.memory.bytes() as u64 >= bytes
    }
}

fn create(bytes: u64) -> io::Result<CopyTarget> {
    region::create(bytes).map(CopyTarget::Once)
}

/// Whether the system refuses shared memory for good.
fn is_refusal(error: Errno) -> bool {
    [Errno::PERM, Errno::ACCESS, Errno::NOSYS].contains(&error)
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
