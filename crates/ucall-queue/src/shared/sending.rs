//! Messages on their way into shared memory.
//!
//! Where a message goes that is long enough:
//!
//! | | both sides trust each other | they do not |
//! |---|---|---|
//! | a slot that is copied out | below `VIEWED_BYTES_MIN` | up to `COPIED_BYTES_MAX` |
//! | a slot that is viewed | else, if one is free | |
//! | memory of its own | else, if it has buffers to be viewed | if it is longer, and has those |
//! | the stream | what is left | what is left |
//!
//! A slot that is copied out comes back at once, so that a message which finds none waits for it.
//! A copy to a slot costs what a copy costs, and another one to get it out if it is not viewed;
//! memory of its own costs new pages, which is more than both.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use rustix::io::{self, Errno};

use super::channel::Channel;
use super::layout::{Layout, Record, Scatter};
use super::region::{self, Mapping, Share, Use};
use super::taking::SLOTS_MAX;
use super::{COPIED_SLOTS_BYTES_MAX, is_viewed};
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
/// Messages up to this length are copied out of slots by a peer that is not trusted. The memory for
/// longer ones is rarely there to be used again, so that nothing is gained.
const COPIED_BYTES_MAX: u64 = 4 << 20;
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
    /// The peer trusts us, and we it.
    is_trusted: bool,
    /// The system gives no shared memory.
    is_refused: bool,
}

#[derive(Debug)]
struct Slot {
    memory: Mapping,
    held: Held,
    /// Of those that are copied out.
    _share: Option<Share>,
}

/// Who has a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// Nobody.
    Free,
    /// A message that is copied out, so that it comes back soon.
    Soon,
    /// A message that is viewed, for as long as somebody likes.
    Viewed,
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
    NewSlot(usize, Slot, OwnedFd),
    /// A slot that comes back soon.
    Awaited,
    Once(OwnedFd),
}

impl Sending {
    pub(super) fn new(slots_bytes_max: usize) -> Self {
        let slots_bytes_max = slots_bytes_max as u64;
        let (is_trusted, is_refused) = (false, false);
        Self { slots: Vec::new(), slots_bytes_max, under_way: None, is_trusted, is_refused }
    }

    /// Whether there is a message that others have to wait for.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether a message is being copied.
    pub(super) fn is_copying(&self) -> bool {
        self.under_way.as_ref().is_some_and(|it| !matches!(it.place, Place::Awaited))
    }

    /// Begins to copy a message, or gives it back if it is to go through the stream.
    pub(super) fn begin(&mut self, chunk: Vec<Bytes>, is_trusted: bool) -> Result<(), Vec<Bytes>> {
        let Some((header, layout)) = fitting(&chunk) else { return Err(chunk) };
        self.is_trusted = is_trusted;
        let (has_buffers, bytes) = (header.segments > 1, layout.end());
        let held = match is_trusted {
            true if is_viewed(header.length) => Some(Held::Viewed),
            true => Some(Held::Soon),
            false => (bytes <= COPIED_BYTES_MAX).then_some(Held::Soon),
        };
        let place = held.map_or(Ok(None), |held| self.find_slot(bytes, held));
        let place = match place {
            Ok(None) if held == Some(Held::Soon) => {
                Ok(self.awaits_slot_for(bytes).then_some(Place::Awaited))
            }
            Ok(None) if has_buffers && !self.is_refused => create(bytes).map(Some),
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
        if matches!(under_way.place, Place::Awaited) {
            let bytes = under_way.layout.end();
            match self.find_slot(bytes, Held::Soon) {
                Ok(Some(place)) => under_way.place = place,
                _ if self.awaits_slot_for(bytes) => {
                    self.under_way = Some(under_way);
                    return None;
                }
                // What came back has gone to others since.
                _ => return Some(self.give_up(under_way)),
            }
        }
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
            Some(slot) if slot.held != Held::Free => {
                slot.held = Held::Free;
                Ok(())
            }
            _ => Err(ProtocolError::Memory),
        }
    }

    /// Whether a slot for so many bytes is to come back soon.
    fn awaits_slot_for(&self, bytes: u64) -> bool {
        let comes_back = |slot: &Slot| slot.held == Held::Soon && slot.has_room(bytes);
        self.slots.iter().any(comes_back)
    }

    /// A slot for so many bytes, which is held so from now on; `None` if there is none.
    fn find_slot(&mut self, bytes: u64, held: Held) -> io::Result<Option<Place>> {
        let fits = |slot: &Slot| slot.held == Held::Free && slot.has_room(bytes);
        let fitting = self.slots.iter().enumerate().filter(|(_, slot)| fits(slot));
        if let Some((place, _)) = fitting.min_by_key(|(_, slot)| slot.memory.bytes()) {
            self.hold(place, held);
            return Ok(Some(Place::Slot(place)));
        }
        let most = match self.is_trusted {
            true => self.slots_bytes_max,
            false => self.slots_bytes_max.min(COPIED_SLOTS_BYTES_MAX),
        };
        let room = (bytes + bytes / SLOT_SPARE_SHARE).max(SLOT_BYTES_MIN);
        let all: u64 = self.slots.iter().map(|slot| slot.memory.bytes() as u64).sum();
        // A new one, or in the place of one that is too short.
        let (place, freed) = if self.slots.len() < SLOTS_MAX && all + room <= most {
            (self.slots.len(), 0)
        } else if let Some(place) = self.slots.iter().position(|slot| slot.held == Held::Free) {
            (place, self.slots.get(place).map_or(0, |slot| slot.memory.bytes() as u64))
        } else {
            return Ok(None);
        };
        if all - freed + room > most || self.is_refused {
            return Ok(None);
        }
        let share = if held == Held::Viewed { None } else { Share::take(room) };
        if share.is_none() && held != Held::Viewed {
            return Ok(None);
        }
        let memory = region::create(room)?;
        region::allocate(memory.as_fd(), room)?;
        let length = usize::try_from(room).map_err(|_| Errno::OVERFLOW)?;
        let mapping = Mapping::to_write(memory.as_fd(), length)?;
        region::seal(memory.as_fd(), Use::Again)?;
        self.hold(place, held);
        let slot = Slot { memory: mapping, held, _share: share };
        Ok(Some(Place::NewSlot(place, slot, memory)))
    }

    fn hold(&mut self, place: usize, held: Held) {
        if let Some(slot) = self.slots.get_mut(place) {
            slot.held = held;
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
                Place::NewSlot(_, slot, _) => slot.memory.write(at, &piece),
                Place::Slot(place) => {
                    let slot = self.slots.get_mut(*place);
                    slot.is_some_and(|slot| slot.memory.write(at, &piece))
                }
                Place::Awaited => false,
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
            Place::NewSlot(place, slot, descriptor) => {
                let number = channel.send(descriptor.as_fd());
                let Ok(number) = number else {
                    self.hold(place, Held::Free);
                    return None;
                };
                match self.slots.get_mut(place) {
                    Some(old) => *old = slot,
                    None => self.slots.push(slot),
                }
                Some((place as u64 + 1, number))
            }
            Place::Awaited => None,
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
            self.hold(place, Held::Free);
        }
        under_way.chunk
    }
}

impl Slot {
    fn has_room(&self, bytes: u64) -> bool {
        self.memory.bytes() as u64 >= bytes
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
