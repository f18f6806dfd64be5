//! Messages that a peer left in shared memory.
//!
//! Nothing is believed: memory is mapped only if it is sealed as its use asks for and whole, a
//! message has to lie within it, and a slot that somebody still looks at cannot be told of again.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;

use super::channel::Channel;
use super::layout::Record;
use super::region::{self, Mapping, Use};
use super::view::{Lease, Returned, View};
use crate::frame::ProtocolError;
use crate::link::LinkKey;
use crate::message::{Body, Segment};

/// Slots of one link in each direction.
pub(super) const SLOTS_MAX: usize = 64;

/// The receiving side of a link with a channel.
#[derive(Debug)]
pub(super) struct Taking {
    link: LinkKey,
    slots: Vec<Slot>,
    returned: Arc<Returned>,
}

#[derive(Debug)]
struct Slot {
    memory: Arc<Mapping>,
    is_leased: bool,
}

impl Taking {
    pub(super) fn new(link: LinkKey, returned: Arc<Returned>) -> Self {
        Self { link, slots: Vec::new(), returned }
    }

    /// The segments of a message, where they lie.
    pub(super) fn take(
        &mut self,
        channel: &mut Channel,
        record: &Record,
        reuses: bool,
    ) -> Result<Body, ProtocolError> {
        let lease = match record.slot {
            0 => Lease::once(map(channel, record, Use::Once)?),
            slot if reuses => self.lease_slot(channel, record, slot)?,
            _ => return Err(ProtocolError::Memory),
        };
        let lease = Arc::new(lease);
        let views = record.layout.segments().map(|(start, bytes)| {
            View::new(&lease, start, bytes).map(Segment::Mapped).ok_or(ProtocolError::Memory)
        });
        let mut segments = views.collect::<Result<Vec<_>, _>>()?;
        match segments.len() {
            1 => segments.pop().map(Body::One).ok_or(ProtocolError::Malformed),
            _ => Ok(Body::Many(segments)),
        }
    }

    /// Nobody looks at a slot any more.
    pub(super) fn free(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.is_leased = false;
        }
    }

    fn lease_slot(
        &mut self,
        channel: &mut Channel,
        record: &Record,
        slot: u64,
    ) -> Result<Lease, ProtocolError> {
        let place = usize::try_from(slot - 1).map_err(|_| ProtocolError::Memory)?;
        let is_new = place == self.slots.len() && place < SLOTS_MAX;
        if self.slots.get(place).map_or(!is_new, |slot| slot.is_leased) {
            return Err(ProtocolError::Memory);
        }
        if record.descriptor != 0 {
            let memory = Arc::new(map(channel, record, Use::Again)?);
            let slot = Slot { memory, is_leased: false };
            match self.slots.get_mut(place) {
                Some(old) => *old = slot,
                None => self.slots.push(slot),
            }
        }
        let slot = self.slots.get_mut(place).ok_or(ProtocolError::Memory)?;
        slot.is_leased = true;
        Ok(Lease::of_slot(slot.memory.clone(), self.link, place, self.returned.clone()))
    }
}

/// Maps the memory that came for a message.
fn map(channel: &mut Channel, record: &Record, used: Use) -> Result<Mapping, ProtocolError> {
    let memory = channel.take(record.descriptor)?;
    let length = region::check(memory.as_fd(), used)?;
    let wanted = if used == Use::Once { record.layout.end() } else { length };
    let wanted = usize::try_from(wanted).map_err(|_| ProtocolError::TooLong)?;
    if wanted == 0 || wanted as u64 > length {
        return Err(ProtocolError::Memory);
    }
    Mapping::to_read(memory.as_fd(), wanted, used).map_err(|_| ProtocolError::OutOfMemory)
}
