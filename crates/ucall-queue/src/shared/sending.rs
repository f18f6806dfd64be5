//! Messages on their way into shared memory.
//!
//! A message that is long enough goes to a slot, if both sides trust each other and one is free,
//! else into memory of its own if it has buffers to be viewed. A copy to a slot costs what a copy
//! costs; memory of its own costs new pages as well. All else goes through the stream.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use rustix::io::{self, Errno};

use super::channel::Channel;
use super::layout::{Layout, Record, Scatter};
use super::region::{self, Mapping, Use};
use super::taking::SLOTS_MAX;
use crate::frame::{
    HEADER_BYTES, Header, Kind, ProtocolError, SEGMENT_ENTRY_BYTES, first_frame, word,
};

/// Shorter messages are quicker through the stream.
const SHARED_BYTES_MIN: u64 = 64 * 1024;
/// Of many short segments each would have to be copied on its own.
const SEGMENT_BYTES_MIN: u64 = 4 * 1024;
/// A slot has room for at least so much, and for messages that are a little longer than its first.
const SLOT_BYTES_MIN: u64 = 128 * 1024;
const SLOT_SPARE_SHARE: u64 = 16;
/// What is copied in one turn, so that a long message holds up nobody.
const TURN_BYTES_MAX: usize = 8 << 20;
const PIECE_BYTES_MAX: usize = 1 << 20;

/// The sending side of a link with a channel.
#[derive(Debug)]
pub(super) struct Sending {
    slots: Vec<Slot>,
    /// What all slots together may hold.
    slots_bytes_max: u64,
    under_way: Option<UnderWay>,
    /// The system gives no shared memory.
    is_refused: bool,
}

#[derive(Debug)]
struct Slot {
    memory: Mapping,
    is_free: bool,
}

/// A message that is being copied.
#[derive(Debug)]
struct UnderWay {
    header: Header,
    /// As they came, in case they have to go through the stream.
    chunk: Vec<Bytes>,
    layout: Layout,
    scatter: Scatter,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// One that the peer knows.
    Slot(usize),
    /// One that the peer has to be told of.
    NewSlot(usize, Mapping, OwnedFd),
    Once(OwnedFd),
}

impl Sending {
    pub(super) fn new(slots_bytes_max: usize) -> Self {
        let slots_bytes_max = slots_bytes_max as u64;
        Self { slots: Vec::new(), slots_bytes_max, under_way: None, is_refused: false }
    }

    /// Whether a message is being copied.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Begins to copy a message, or gives it back if it is to go through the stream.
    pub(super) fn begin(&mut self, chunk: Vec<Bytes>, reuses: bool) -> Result<(), Vec<Bytes>> {
        let Some((header, layout)) = fitting(&chunk) else { return Err(chunk) };
        let place = if reuses { self.find_slot(layout.end()) } else { Ok(None) };
        let is_viewed = header.segments > 1;
        let place = match place {
            Ok(None) if is_viewed && !self.is_refused => create(layout.end()).map(Some),
            place => place,
        };
        match place {
            Ok(Some(place)) => {
                let parts = chunk.get(1..).unwrap_or_default().to_vec();
                let scatter = Scatter::new(parts, &layout);
                self.under_way = Some(UnderWay { header, chunk, layout, scatter, place });
                Ok(())
            }
            Ok(None) => Err(chunk),
            Err(error) => {
                self.is_refused |= is_refusal(error);
                Err(chunk)
            }
        }
    }

    /// Goes on copying. What is to be sent once that is done: the frame that tells of the message,
    /// or the message itself if it could not be shared.
    pub(super) fn go_on(
        &mut self,
        channel: &mut Channel,
        copied: &mut usize,
    ) -> Option<Vec<Bytes>> {
        let mut under_way = self.under_way.take()?;
        match self.copy(&mut under_way, copied) {
            Ok(true) => {}
            Ok(false) => {
                self.under_way = Some(under_way);
                return None;
            }
            Err(_) => return Some(self.give_up(under_way)),
        }
        let UnderWay { header, chunk, layout, place, .. } = under_way;
        match self.hand_over(channel, place) {
            Some((slot, descriptor)) => {
                let record = Record { slot, descriptor, layout };
                Some(vec![Bytes::from(record.write(&header))])
            }
            None => Some(chunk),
        }
    }

    /// A slot is free again.
    pub(super) fn release(&mut self, slot: u64) -> Result<(), ProtocolError> {
        let place = usize::try_from(slot).ok().and_then(|slot| slot.checked_sub(1));
        match place.and_then(|place| self.slots.get_mut(place)) {
            Some(slot) if !slot.is_free => {
                slot.is_free = true;
                Ok(())
            }
            _ => Err(ProtocolError::Memory),
        }
    }

    /// A slot for so many bytes, which is free no longer; `None` if there is none.
    fn find_slot(&mut self, bytes: u64) -> io::Result<Option<Place>> {
        let fits = |slot: &Slot| slot.is_free && slot.memory.bytes() as u64 >= bytes;
        let fitting = self.slots.iter().enumerate().filter(|(_, slot)| fits(slot));
        if let Some((place, _)) = fitting.min_by_key(|(_, slot)| slot.memory.bytes()) {
            self.take_slot(place);
            return Ok(Some(Place::Slot(place)));
        }
        let room = (bytes + bytes / SLOT_SPARE_SHARE).max(SLOT_BYTES_MIN);
        let held: u64 = self.slots.iter().map(|slot| slot.memory.bytes() as u64).sum();
        // A new one, or in the place of one that is too short.
        let (place, freed) = if self.slots.len() < SLOTS_MAX && held + room <= self.slots_bytes_max
        {
            (self.slots.len(), 0)
        } else if let Some(place) = self.slots.iter().position(|slot| slot.is_free) {
            (place, self.slots.get(place).map_or(0, |slot| slot.memory.bytes() as u64))
        } else {
            return Ok(None);
        };
        if held - freed + room > self.slots_bytes_max || self.is_refused {
            return Ok(None);
        }
        let memory = region::create(room)?;
        region::allocate(memory.as_fd(), room)?;
        let length = usize::try_from(room).map_err(|_| Errno::OVERFLOW)?;
        let mapping = Mapping::to_write(memory.as_fd(), length)?;
        region::seal(memory.as_fd(), Use::Again)?;
        self.take_slot(place);
        Ok(Some(Place::NewSlot(place, mapping, memory)))
    }

    fn take_slot(&mut self, place: usize) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.is_free = false;
        }
    }

    /// Copies for one turn; `true` when that was all.
    fn copy(&mut self, under_way: &mut UnderWay, copied: &mut usize) -> io::Result<bool> {
        let mut left = TURN_BYTES_MAX;
        while left > 0 {
            let Some((at, piece)) = under_way.scatter.next(left.min(PIECE_BYTES_MAX)) else {
                return Ok(true);
            };
            left -= piece.len();
            *copied += piece.len();
            let is_written = match &mut under_way.place {
                Place::Once(memory) => {
                    region::write(memory.as_fd(), at, &piece)?;
                    true
                }
                Place::NewSlot(_, mapping, _) => mapping.write(at, &piece),
                Place::Slot(place) => {
                    let slot = self.slots.get_mut(*place);
                    slot.is_some_and(|slot| slot.memory.write(at, &piece))
                }
            };
            if !is_written {
                return Err(Errno::RANGE);
            }
        }
        Ok(false)
    }

    /// Sends the descriptor, if there is one: the numbers of the slot and of the descriptor.
    fn hand_over(&mut self, channel: &mut Channel, place: Place) -> Option<(u64, u64)> {
        match place {
            Place::Slot(place) => Some((place as u64 + 1, 0)),
            Place::NewSlot(place, memory, descriptor) => {
                let number = channel.send(descriptor.as_fd());
                let Ok(number) = number else {
                    self.free_slot(place);
                    return None;
                };
                let slot = Slot { memory, is_free: false };
                match self.slots.get_mut(place) {
                    Some(old) => *old = slot,
                    None => self.slots.push(slot),
                }
                Some((place as u64 + 1, number))
            }
            Place::Once(memory) => {
                region::seal(memory.as_fd(), Use::Once).ok()?;
                // It fails when there is no room for more under way, or the channel is broken.
                let number = channel.send(memory.as_fd()).ok()?;
                Some((0, number))
            }
        }
    }

    /// Leaves a message that could not be copied to the stream.
    fn give_up(&mut self, under_way: UnderWay) -> Vec<Bytes> {
        if let Place::Slot(place) | Place::NewSlot(place, ..) = under_way.place {
            self.free_slot(place);
        }
        under_way.chunk
    }

    fn free_slot(&mut self, place: usize) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.is_free = true;
        }
    }
}

fn create(bytes: u64) -> io::Result<Place> {
    region::create(bytes).map(Place::Once)
}

/// Whether the system will never give any.
fn is_refusal(error: Errno) -> bool {
    [Errno::PERM, Errno::ACCESS, Errno::NOSYS].contains(&error)
}

/// The header of a chunk that is one message worth sharing, and where its segments would lie.
fn fitting(chunk: &[Bytes]) -> Option<(Header, Layout)> {
    let [frames, _, ..] = chunk else { return None };
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
        _ => table.map(|length| word(length, 0)).collect(),
    };
    Some((header, Layout::new(lengths)?))
}
