//! Receives messages in shared memory.
//!
//! The peer is not trusted to be correct. A message has to be within its memory, and a slot that
//! was not released cannot be used again, so the copies and answers that a peer causes before it
//! reads our output are bounded. Messages in slots of a peer that is not trusted are copied out
//! before any code reads them.
#![forbid(unsafe_code)]

use std::sync::Arc;

use ucall_engine::shared::{Channel, Lease, Mapping, ReceivedSlots, ReturnSlots, View, map_once};

use super::layout::Record;
use super::returned::LinkSlots;
use crate::buffer_pool::BufferPool;
use crate::frame::ProtocolError;
use crate::message::{Body, Segment};

/// The receiving side of a link with a channel.
#[derive(Debug)]
pub(super) struct SharedReceiver {
    slots: ReceivedSlots,
    returned: Arc<LinkSlots>,
    /// The memory of copies.
    pool: Arc<BufferPool>,
}

impl SharedReceiver {
    pub(super) fn new(returned: LinkSlots, pool: Arc<BufferPool>) -> Self {
        Self { slots: ReceivedSlots::new(false), returned: Arc::new(returned), pool }
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
            0 => {
                let descriptor = channel.take(record.descriptor)?;
                let memory = map_once(&descriptor, record.layout.end())?;
                views(Lease::once(memory), record)
            }
            slot => {
                let descriptor = match record.descriptor {
                    0 => None,
                    number => Some(channel.take(number)?),
                };
                let (slot, memory) = self.slots.take(slot, descriptor, slots_bytes_max)?;
                match is_viewed {
                    true => {
                        let returned: Arc<dyn ReturnSlots> = self.returned.clone();
                        views(Lease::of_slot(memory, slot, returned), record)
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
        self.slots.free(slot);
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
