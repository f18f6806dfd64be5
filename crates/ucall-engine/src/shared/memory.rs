//! The shared memory of one connection that carries calls.
//!
//! Each side copies the parts of its messages into slots of its own, and reads those of the peer.
//! A side that trusts its peer reads them where they are, and may write there: the peer uses the
//! slot again after its last view is gone. Otherwise it copies the bytes out.
//!
//! What lies in a slot already is not copied in: memory that a program has filled, and, in the
//! answers of a server, the params that it has read in place.
//!
//! The channel has descriptors and returned slots, so the connection carries neither. A slot is
//! returned by the thread that drops its last view; the peer reads that when it needs a slot.
//! A forked child has no part in the memory of its parent.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use ucall_buffer::{Bytes, PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};

use super::channel::{Channel, ChannelMessage, SlotReturner};
use super::copies::Copies;
use super::region;
use super::region::{MemoryUse, Quota};
use super::slots::{HeldSlot, ReceivedSlots, SLOTS_MAX, SentSlots, SlotTarget};
use super::view::{Lease, ReturnSlots, View};
use crate::OwningProcess;

/// The bytes of all slots that this process sends to the peers of its calls.
const QUOTA_BYTES_MAX: u64 = 1 << 30;
/// Arrays are read fastest from the start of a cache line.
const ALIGNMENT: u64 = 64;

static QUOTA: Quota = Quota::new(QUOTA_BYTES_MAX);

/// The slots of both directions.
#[derive(Debug)]
pub struct SlotMemory {
    channel: Channel,
    sent: SentSlots<()>,
    /// The most bytes of all slots that are sent.
    sent_bytes_max: u64,
    received: ReceivedSlots,
    /// The most bytes of all slots that are received.
    received_bytes_max: u64,
    /// Descriptors that were received before the messages that need them.
    early: VecDeque<(u64, OwnedFd)>,
    side: Side,
    is_trusted: bool,
    returned: Arc<ReturnedSlots>,
    copies: Copies,
    /// Whether the channel took only a part of what a message needed: nothing more is placed.
    has_failed: bool,
}

/// The side of a connection that has some memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Sends what it has received as a copy: a program may have both arrays, and write to one.
    Client,
    /// Answers with the memory of params that nothing else has.
    Server,
}

/// Where a part lies that is not copied.
enum InPlace {
    /// In a slot of ours that the program has filled.
    Filled(SlotTarget, u64),
    /// In a slot of the peer.
    Lent(u64, u64, Arc<Lease>),
}

impl SlotMemory {
    /// Shared memory over a channel. With `is_trusted` the peer's bytes are not copied.
    pub fn new(
        channel: Channel,
        sent_bytes_max: u64,
        received_bytes_max: u64,
        side: Side,
        is_trusted: bool,
    ) -> Self {
        let returned = ReturnedSlots {
            process: OwningProcess::current(),
            returner: channel.returner(),
            slots: Mutex::default(),
        };
        Self {
            channel,
            sent: SentSlots::default(),
            sent_bytes_max,
            received: ReceivedSlots::new(is_trusted),
            received_bytes_max,
            early: VecDeque::new(),
            side,
            is_trusted,
            returned: Arc::new(returned),
            copies: Copies::new(),
            has_failed: false,
        }
    }

    /// Copies the pieces of a message into a slot of that many bytes, each to its position; returns
    /// what to tell the peer, for which the message begins at the start of the slot. `None` if no
    /// slot is free, or the system refuses memory.
    ///
    /// # Errors
    /// The peer has returned a slot that it did not have.
    pub fn place_message(
        &mut self,
        bytes: u64,
        pieces: &mut dyn Iterator<Item = (u64, &[u8])>,
    ) -> Result<Option<SlotPlace>, SharedMemoryError> {
        if !self.returned.process.is_current() || self.has_failed {
            return Ok(None);
        }
        self.receive()?;
        Ok(self.copy_pieces(bytes, pieces))
    }

    /// Whether this process has room for the memory of another connection.
    pub fn has_room() -> bool {
        region::has_room()
    }

    fn descriptor(&mut self, number: u64) -> Result<OwnedFd, SharedMemoryError> {
        let is_there = |(early, _): &(u64, OwnedFd)| *early == number;
        if !self.early.iter().any(is_there) {
            self.receive()?;
        }
        let at = self.early.iter().position(is_there);
        let found = at.and_then(|at| self.early.remove(at));
        found.map(|(_, memory)| memory).ok_or(SharedMemoryError::Invalid)
    }

    /// Receives what the peer has sent over the channel.
    fn receive(&mut self) -> Result<(), SharedMemoryError> {
        while let Some(message) = self.channel.receive()? {
            match message {
                ChannelMessage::Return { slot, answers } => self.sent.release(slot, answers)?,
                // A peer sends them just before the messages that need them.
                ChannelMessage::Memory(..) if self.early.len() == SLOTS_MAX => {
                    return Err(SharedMemoryError::Invalid);
                }
                ChannelMessage::Memory(number, memory) => self.early.push_back((number, memory)),
            }
        }
        Ok(())
    }

    /// Where a part lies, if its slot may pass to the peer. The bytes before it are those of its
    /// last header, in whose place another one is written.
    fn in_place(&self, [header, bytes]: [&[u8]; 2]) -> Option<InPlace> {
        if let Some((target, start)) = self.sent.filled_slot(bytes, header.len()) {
            return Some(InPlace::Filled(target, start));
        }
        match self.side {
            Side::Client => None,
            Side::Server => {
                let (slot, start, lease) = self.received.lent_slot(bytes, header.len())?;
                Some(InPlace::Lent(slot, start, lease))
            }
        }
    }

    /// Where each part lies; `None` for those to copy. The same memory passes once.
    fn all_in_place(&self, parts: &[[&[u8]; 2]]) -> Vec<Option<InPlace>> {
        let mut seen: Vec<*const u8> = Vec::new();
        let found = parts.iter().map(|part| {
            let start = part[1].as_ptr();
            let found = self.in_place(*part).filter(|_| !seen.contains(&start));
            seen.extend(found.is_some().then_some(start));
            found
        });
        found.collect()
    }

    /// Copies parts into a slot, one after another; `None` if none is free.
    fn copy_in(&mut self, parts: &[[&[u8]; 2]]) -> Option<Vec<(SlotOwner, SlotPlace, u64)>> {
        let mut end = 0_u64;
        let mut starts = Vec::with_capacity(parts.len());
        for [header, bytes] in parts {
            let start = end.checked_next_multiple_of(ALIGNMENT)?;
            end = start.checked_add(header.len() as u64)?.checked_add(bytes.len() as u64)?;
            starts.push(start);
        }
        let placed = parts.iter().zip(&starts);
        let mut pieces = placed.flat_map(|([header, bytes], &start)| {
            [(start, *header), (start + header.len() as u64, *bytes)]
        });
        let place = self.copy_pieces(end, &mut pieces)?;
        Some(starts.into_iter().map(|start| (SlotOwner::Sender, place, start)).collect())
    }

    /// Copies pieces into a slot of that many bytes, each to its position.
    fn copy_pieces(
        &mut self,
        bytes: u64,
        pieces: &mut dyn Iterator<Item = (u64, &[u8])>,
    ) -> Option<SlotPlace> {
        let found = self.sent.find(bytes, (), self.sent_bytes_max, Some(&QUOTA));
        let mut target = found.ok()??;
        for (at, piece) in pieces {
            if !self.sent.write(&mut target, at, piece) {
                self.sent.abandon(&target);
                return None;
            }
        }
        self.sent.announce(&mut self.channel, target, ())
    }

    /// Passes a slot on that has a part; `None` if the channel is full or broken.
    fn pass(&mut self, found: InPlace, header: &[u8]) -> Option<(SlotOwner, SlotPlace, u64)> {
        match found {
            InPlace::Filled(mut target, start) => {
                self.sent.lend_filled(&target, ());
                if !self.sent.write(&mut target, start, header) {
                    self.sent.abandon(&target);
                    return None;
                }
                let place = self.sent.announce(&mut self.channel, target, ())?;
                Some((SlotOwner::Sender, place, start))
            }
            InPlace::Lent(slot, start, lease) => {
                lease.write(start, header).then_some(())?;
                Some((SlotOwner::Receiver, SlotPlace { slot, descriptor: 0 }, start))
            }
        }
    }

    /// Takes a slot of the peer that has these parts.
    fn take_theirs(&mut self, parts: &SlotParts) -> Result<Taken, SharedMemoryError> {
        let descriptor = match parts.slot.descriptor {
            0 => None,
            number => Some(self.descriptor(number)?),
        };
        self.returned.free(&mut self.received);
        let taken = self.received.take(parts.slot.slot, descriptor, self.received_bytes_max);
        let (slot, memory) = taken?;
        let lease = Arc::new(Lease::of_slot(memory, slot, self.returned.clone()));
        let in_place = self.received.is_writable(slot);
        if in_place {
            self.received.lend(slot, &lease, parts.starts());
        }
        Ok(Taken { bytes: TakenBytes::Theirs(lease), in_place })
    }

    /// Takes a slot of ours, with which the peer has answered.
    fn take_ours(&mut self, parts: &SlotParts) -> Result<Taken, SharedMemoryError> {
        let (held, is_alone) = self.sent.answered(parts.slot.slot)?;
        // A program that has filled the slot has an array there already, and may write to it.
        Ok(Taken { bytes: TakenBytes::Ours(held), in_place: self.is_trusted && is_alone })
    }
}

impl SharedMemory for SlotMemory {
    fn place(&mut self, parts: &[[&[u8]; 2]]) -> Result<Option<Vec<PartPlace>>, SharedMemoryError> {
        if !self.returned.process.is_current() || self.has_failed {
            return Ok(None);
        }
        self.receive()?;
        let found = self.all_in_place(parts);
        let pairs = parts.iter().zip(&found).filter(|(_, found)| found.is_none());
        let copied: Vec<_> = pairs.map(|(part, _)| *part).collect();
        let copies = if copied.is_empty() { Some(Vec::new()) } else { self.copy_in(&copied) };
        let Some(copies) = copies else { return Ok(None) };
        // Each slot of the peer has one answer.
        let mut answered: Vec<Arc<Lease>> = Vec::new();
        for found in found.iter().flatten() {
            if let InPlace::Lent(_, _, lease) = found
                && !answered.iter().any(|it| Arc::ptr_eq(it, lease))
            {
                answered.push(lease.clone());
            }
        }
        let mut copies = copies.into_iter();
        let mut places = Vec::with_capacity(parts.len());
        for ([header, bytes], found) in parts.iter().zip(found) {
            let place = match found {
                Some(found) => self.pass(found, header),
                None => copies.next(),
            };
            let Some((owner, slot, start)) = place else {
                self.has_failed = true;
                return Ok(None);
            };
            let bytes = (header.len() + bytes.len()) as u64;
            places.push(PartPlace { owner, slot, start, bytes });
        }
        answered.iter().for_each(|lease| lease.answer());
        Ok(Some(places))
    }

    fn take(&mut self, places: &[PartPlace]) -> Result<Vec<Bytes>, SharedMemoryError> {
        if !self.returned.process.is_current() {
            return Err(SharedMemoryError::Invalid);
        }
        let slots = SlotParts::of(places).ok_or(SharedMemoryError::Invalid)?;
        let mut taken = Vec::with_capacity(slots.len());
        for parts in &slots {
            taken.push(match parts.owner {
                SlotOwner::Sender => self.take_theirs(parts)?,
                SlotOwner::Receiver => self.take_ours(parts)?,
            });
        }
        let bytes = |place: &PartPlace| {
            let at = slots.iter().position(|parts| parts.has(place));
            let taken = at.and_then(|at| taken.get(at)).ok_or(SharedMemoryError::Invalid)?;
            taken.part(place, &self.copies)
        };
        places.iter().map(bytes).collect()
    }

    fn reserve(&mut self, header_bytes: usize, bytes: usize) -> Option<Bytes> {
        if !self.returned.process.is_current() {
            return None;
        }
        self.receive().ok()?;
        // Nobody else may write to an array of this process, unless it trusts its peer.
        let memory_use = if self.is_trusted { MemoryUse::Reused } else { MemoryUse::OneWriter };
        let (start, len) = (header_bytes as u64, bytes as u64);
        let held = self.sent.hold(start + len, memory_use, self.sent_bytes_max, &QUOTA).ok()??;
        Some(Bytes::from_owner(OurBytes::new(held, start, len)?))
    }
}

/// The parts of a message in one slot.
#[derive(Debug)]
struct SlotParts {
    owner: SlotOwner,
    slot: SlotPlace,
    /// Where each begins and ends.
    ranges: Vec<Range<u64>>,
}

impl SlotParts {
    /// The parts in all slots; `None` if some overlap or are not aligned.
    fn of(places: &[PartPlace]) -> Option<Vec<Self>> {
        let mut slots: Vec<Self> = Vec::new();
        for place in places {
            let range = place.start..place.start.checked_add(place.bytes)?;
            if !place.start.is_multiple_of(ALIGNMENT) {
                return None;
            }
            match slots.iter_mut().find(|parts| parts.has(place)) {
                Some(parts) => parts.ranges.push(range),
                None => {
                    slots.push(Self { owner: place.owner, slot: place.slot, ranges: vec![range] });
                }
            }
        }
        let are_apart = slots.iter_mut().all(|parts| {
            parts.ranges.sort_unstable_by_key(|range| (range.start, range.end));
            parts.ranges.is_sorted_by(|one, next| one.end <= next.start)
        });
        are_apart.then_some(slots)
    }

    fn has(&self, place: &PartPlace) -> bool {
        self.owner == place.owner && self.slot == place.slot
    }

    fn starts(&self) -> Vec<u64> {
        self.ranges.iter().map(|range| range.start).collect()
    }
}

/// A slot that a message has parts in.
struct Taken {
    bytes: TakenBytes,
    /// Whether they stay there.
    in_place: bool,
}

enum TakenBytes {
    Theirs(Arc<Lease>),
    Ours(Arc<HeldSlot>),
}

impl Taken {
    fn part(&self, place: &PartPlace, copies: &Copies) -> Result<Bytes, SharedMemoryError> {
        let (start, bytes) = (place.start, place.bytes);
        let copied = match &self.bytes {
            TakenBytes::Theirs(lease) => {
                let view = View::new(lease, start, bytes).ok_or(SharedMemoryError::Invalid)?;
                if self.in_place {
                    return Ok(Bytes::from_owner(TheirBytes(view)));
                }
                copies.copy(view.len(), |copy| view.append_to(copy))
            }
            TakenBytes::Ours(held) => {
                let ours = OurBytes::new(held.clone(), start, bytes);
                let ours = ours.ok_or(SharedMemoryError::Invalid)?;
                if self.in_place {
                    return Ok(Bytes::from_owner(ours));
                }
                copies.copy(ours.bytes, |copy| ours.append_to(copy))
            }
        };
        copied.ok_or(SharedMemoryError::OutOfMemory)
    }
}

/// Returns slots to the peer.
#[derive(Debug)]
struct ReturnedSlots {
    process: OwningProcess,
    returner: SlotReturner,
    slots: Mutex<Returned>,
}

#[derive(Debug, Default)]
struct Returned {
    /// Slots that the peer may use again, and which are not free here.
    leased: Vec<usize>,
    /// Slots for which the channel had no room, with the answers in them.
    unsent: Vec<(usize, u32)>,
}

impl ReturnedSlots {
    /// Frees the slots that the peer may use again.
    fn free(&self, received: &mut ReceivedSlots) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.leased.drain(..).for_each(|slot| received.free(slot));
    }
}

impl ReturnSlots for ReturnedSlots {
    fn return_slot(&self, slot: usize, answers: u32) {
        // A forked child has the views of its parent, which may still read the slot.
        if !self.process.is_current() {
            return;
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // The peer may use the slot as soon as it is sent.
        slots.leased.push(slot);
        slots.unsent.push((slot, answers));
        // The numbers of slots begin at 1. If the channel is full or closed, the rest waits for the
        // next slot.
        while let Some(&(slot, answers)) = slots.unsent.last()
            && self.returner.send(slot as u64 + 1, answers).is_ok()
        {
            slots.unsent.pop();
        }
    }
}

/// Bytes in a slot of a trusted peer.
#[derive(Debug)]
struct TheirBytes(View);

impl AsRef<[u8]> for TheirBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the view has checked that they are within the mapping, which it keeps. The peer
        // is trusted not to write to them before it is told that this view is gone.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

/// Bytes in a slot of ours that this process holds.
#[derive(Debug)]
struct OurBytes {
    held: Arc<HeldSlot>,
    start: usize,
    bytes: usize,
}

impl OurBytes {
    /// A range of a slot; `None` if it is not within it.
    fn new(held: Arc<HeldSlot>, start: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(bytes).ok()?);
        let end = start.checked_add(bytes)?;
        (end <= held.memory().bytes()).then_some(Self { held, start, bytes })
    }

    fn append_to(&self, copy: &mut Vec<u8>) {
        self.held.memory().read(self.start as u64, self.bytes, copy);
    }
}

impl AsRef<[u8]> for OurBytes {
    fn as_ref(&self) -> &[u8] {
        let start = self.held.memory().as_ptr().wrapping_add(self.start);
        // SAFETY: `new` has checked that they are within the mapping, which the slot keeps. It is
        // used for no message while it is held. The peer has sealed memory, or is trusted not to
        // write to it.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_not_sent_cannot_be_returned() {
        let (one, other) = Channel::pair().unwrap();
        let mut sender = SlotMemory::new(one, 1 << 20, 1 << 20, Side::Client, true);
        assert!(sender.place(&[[b"", b"1"]]).unwrap().is_some());
        let hostile = other.returner();
        hostile.send(1, 0).unwrap();
        assert!(sender.place(&[[b"", b"1"]]).unwrap().is_some());
        for slot in [2, 0, (1 << 32) - 1] {
            hostile.send(slot, 0).unwrap();
            assert_eq!(sender.place(&[[b"", b"1"]]), Err(SharedMemoryError::Invalid));
        }
    }
}
