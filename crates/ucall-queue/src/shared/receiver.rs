//! Receives messages in shared memory.
//!
//! The peer is not trusted to be correct. Memory is mapped only if it is whole and has the seals
//! that its use requires, and a message has to be within it. A slot that was not released cannot be
//! used again, so the copies and answers that a peer causes before it reads our output are bounded.
//! Messages in slots of a peer that is not trusted are copied out before any code reads them.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;

use super::channel::Channel;
use super::layout::Record;
use super::region::{self, Mapping, MemoryUse};
use super::view::{Lease, ReturnedSlots, View};
use crate::buffer_pool::BufferPool;
use crate::frame::ProtocolError;
use crate::link_key::LinkKey;
use crate::message::{Body, Segment};

/// The most slots of one link in each direction.
pub(super) const SLOTS_MAX: usize = 64;

/// The receiving side of a link with a channel.
#[derive(Debug)]
pub(super) struct SharedReceiver {
    link: LinkKey,
    slots: Vec<Slot>,
    returned: Arc<ReturnedSlots>,
    /// The memory of copies.
    pool: Arc<BufferPool>,
}

#[derive(Debug)]
struct Slot {
    memory: Arc<Mapping>,
    is_leased: bool,
}

impl SharedReceiver {
    pub(super) fn new(link: LinkKey, returned: Arc<ReturnedSlots>, pool: Arc<BufferPool>) -> Self {
        Self { link, slots: Vec::new(), returned, pool }
    }

    /// The segments of a message: views of memory that is used once, or of a slot if `is_viewed`;
    /// else copies.
    pub(super) fn take(
        &mut self,
        channel: &mut Channel,
        record: &Record,
        is_viewed: bool,
        slots_bytes_max: u64,
    ) -> Result<Body, ProtocolError> {
        let segments = match record.slot {
            0 => views(Lease::once(map(channel, record, MemoryUse::Once, u64::MAX)?), record),
            slot => {
                let (position, memory) = self.take_slot(channel, record, slot, slots_bytes_max)?;
                match is_viewed {
                    true => {
                        let returned = self.returned.clone();
                        views(Lease::of_slot(memory, self.link, position, returned), record)
                    }
                    false => self.copies(&memory, record),
                }
            }
        };
        let mut segments = segments?;
        match segments.len() {
            1 => segments.pop().map(Body::One).ok_or(ProtocolError::Malformed),
            _ => Ok(Body::Many(segments)),
        }
    }

    fn copies(&self, memory: &Mapping, record: &Record) -> Result<Vec<Segment>, ProtocolError> {
        let copy = |(start, bytes)| {
            let length = usize::try_from(bytes).map_err(|_| ProtocolError::TooLong)?;
            let room = self.pool.take(length);
            let mut copy = room.map_err(|_| ProtocolError::OutOfMemory)?;
            match memory.read(start, length, &mut copy) {
                true => Ok(Segment::Owned(self.pool.pooled(copy))),
                false => Err(ProtocolError::InvalidSharedMemory),
            }
        };
        record.layout.segments().map(copy).collect()
    }

    /// Reports to the peer that it may reuse a slot.
    pub(super) fn free(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.is_leased = false;
        }
    }

    /// Marks a slot as in use; returns its index and memory.
    fn take_slot(
        &mut self,
        channel: &mut Channel,
        record: &Record,
        slot: u64,
        slots_bytes_max: u64,
    ) -> Result<(usize, Arc<Mapping>), ProtocolError> {
        let position = usize::try_from(slot - 1).map_err(|_| ProtocolError::InvalidSharedMemory)?;
        let is_new = position == self.slots.len() && position < SLOTS_MAX;
        if self.slots.get(position).map_or(!is_new, |slot| slot.is_leased) {
            return Err(ProtocolError::InvalidSharedMemory);
        }
        if record.descriptor != 0 {
            let others = self.slots.iter().enumerate().filter(|(other, _)| *other != position);
            let others_bytes: u64 = others.map(|(_, slot)| slot.memory.bytes() as u64).sum();
            let bytes_max = slots_bytes_max.saturating_sub(others_bytes);
            let memory = Arc::new(map(channel, record, MemoryUse::Reused, bytes_max)?);
            let slot = Slot { memory, is_leased: false };
            match self.slots.get_mut(position) {
                Some(old) => *old = slot,
                None => self.slots.push(slot),
            }
        }
        let slot = self.slots.get_mut(position).ok_or(ProtocolError::InvalidSharedMemory)?;
        slot.is_leased = true;
        Ok((position, slot.memory.clone()))
    }
}

fn views(lease: Lease, record: &Record) -> Result<Vec<Segment>, ProtocolError> {
    let lease = Arc::new(lease);
    let view = |(start, bytes)| {
        View::new(&lease, start, bytes)
            .map(Segment::Mapped)
            .ok_or(ProtocolError::InvalidSharedMemory)
    };
    record.layout.segments().map(view).collect()
}

/// Maps the memory of a message, if that takes at most `bytes_max`.
fn map(
    channel: &mut Channel,
    record: &Record,
    memory_use: MemoryUse,
    bytes_max: u64,
) -> Result<Mapping, ProtocolError> {
    let memory = channel.take(record.descriptor)?;
    let length = region::check(memory.as_fd(), memory_use)?;
    let wanted = if memory_use == MemoryUse::Once { record.layout.end() } else { length };
    if wanted > bytes_max {
        return Err(ProtocolError::InvalidSharedMemory);
    }
    let wanted = usize::try_from(wanted).map_err(|_| ProtocolError::TooLong)?;
    if wanted == 0 || wanted as u64 > length {
        return Err(ProtocolError::InvalidSharedMemory);
    }
    Mapping::to_read(memory.as_fd(), wanted, memory_use).map_err(|_| ProtocolError::OutOfMemory)
}
