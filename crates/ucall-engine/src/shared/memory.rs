//! The shared memory of one connection that carries calls.
//!
//! Each side copies the parts of its messages into slots of its own, and reads those of the peer.
//! A side that trusts its peer reads them where they are, and may write there: the peer uses the
//! slot again after its last view is gone. Otherwise it copies the bytes out.
//!
//! The channel has descriptors and returned slots, so the connection carries neither. A slot is
//! returned by the thread that drops its last view; the peer reads that when it needs a slot.
//! A forked child has no part in the memory of its parent.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use ucall_buffer::{Bytes, SharedMemory, SharedMemoryError, SlotPlace};

use super::channel::{Channel, ChannelMessage, SlotReturner};
use super::region;
use super::region::Quota;
use super::slots::{ReceivedSlots, SLOTS_MAX, SentSlots};
use super::view::{Lease, ReturnSlots, View};
use crate::OwningProcess;

/// The bytes of all slots that this process sends to the peers of its calls.
const QUOTA_BYTES_MAX: u64 = 1 << 30;
/// Arrays are read fastest from the start of a cache line.
const ALIGNMENT: usize = 64;

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
    is_trusted: bool,
    returned: Arc<ReturnedSlots>,
}

impl SlotMemory {
    /// Shared memory over a channel. With `is_trusted` the peer's bytes are not copied.
    pub fn new(
        channel: Channel,
        sent_bytes_max: u64,
        received_bytes_max: u64,
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
            is_trusted,
            returned: Arc::new(returned),
        }
    }

    /// Whether this process has room for the memory of another connection.
    pub fn has_room() -> bool {
        region::has_room()
    }

    fn descriptor(&mut self, number: u64) -> Result<OwnedFd, SharedMemoryError> {
        if self.early.is_empty() {
            self.receive()?;
        }
        match self.early.pop_front() {
            Some((early, memory)) if early == number => Ok(memory),
            _ => Err(SharedMemoryError::Invalid),
        }
    }

    /// Receives what the peer has sent over the channel.
    fn receive(&mut self) -> Result<(), SharedMemoryError> {
        while let Some(message) = self.channel.receive()? {
            match message {
                ChannelMessage::Return(slot) => self.sent.release(slot)?,
                // A peer sends them just before the messages that need them.
                ChannelMessage::Memory(..) if self.early.len() == SLOTS_MAX => {
                    return Err(SharedMemoryError::Invalid);
                }
                ChannelMessage::Memory(number, memory) => self.early.push_back((number, memory)),
            }
        }
        Ok(())
    }
}

impl SharedMemory for SlotMemory {
    fn place(
        &mut self,
        bytes: u64,
        pieces: &mut dyn Iterator<Item = (u64, &[u8])>,
    ) -> Result<Option<SlotPlace>, SharedMemoryError> {
        if !self.returned.process.is_current() {
            return Ok(None);
        }
        self.receive()?;
        let found = self.sent.find(bytes, (), self.sent_bytes_max, Some(&QUOTA));
        let Ok(Some(mut target)) = found else { return Ok(None) };
        for (at, piece) in pieces {
            if !self.sent.write(&mut target, at, piece) {
                self.sent.abandon(&target);
                return Ok(None);
            }
        }
        Ok(self.sent.announce(&mut self.channel, target, ()))
    }

    fn take(&mut self, place: SlotPlace, bytes: u64) -> Result<Bytes, SharedMemoryError> {
        if !self.returned.process.is_current() {
            return Err(SharedMemoryError::Invalid);
        }
        let descriptor = match place.descriptor {
            0 => None,
            number => Some(self.descriptor(number)?),
        };
        self.returned.free(&mut self.received);
        let taken = self.received.take(place.slot, descriptor, self.received_bytes_max);
        let (slot, memory) = taken?;
        let lease = Lease::of_slot(memory, slot, self.returned.clone());
        let view = View::new(&Arc::new(lease), 0, bytes).ok_or(SharedMemoryError::Invalid)?;
        match self.is_trusted {
            true => Ok(Bytes::from_owner(SlotBytes(view))),
            false => copy(&view).ok_or(SharedMemoryError::OutOfMemory),
        }
    }
}

/// A copy that begins at a multiple of [`ALIGNMENT`].
fn copy(view: &View) -> Option<Bytes> {
    let mut copy: Vec<u8> = Vec::new();
    copy.try_reserve_exact(view.len() + ALIGNMENT - 1).ok()?;
    let start = copy.as_ptr().align_offset(ALIGNMENT);
    copy.resize(start, 0);
    view.append_to(&mut copy);
    Some(Bytes::from(copy).slice(start..))
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
    /// Slots for which the channel had no room.
    unsent: Vec<usize>,
}

impl ReturnedSlots {
    /// Frees the slots that the peer may use again.
    fn free(&self, received: &mut ReceivedSlots) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.leased.drain(..).for_each(|slot| received.free(slot));
    }
}

impl ReturnSlots for ReturnedSlots {
    fn return_slot(&self, slot: usize) {
        // A forked child has the views of its parent, which may still read the slot.
        if !self.process.is_current() {
            return;
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // The peer may use the slot as soon as it is sent.
        slots.leased.push(slot);
        slots.unsent.push(slot);
        // The numbers of slots begin at 1. If the channel is full or closed, the rest waits for the
        // next slot.
        while let Some(slot) = slots.unsent.last()
            && self.returner.send(*slot as u64 + 1).is_ok()
        {
            slots.unsent.pop();
        }
    }
}

/// Bytes in a slot of a trusted peer.
#[derive(Debug)]
struct SlotBytes(View);

impl AsRef<[u8]> for SlotBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the view has checked that they are within the mapping, which it keeps. The peer
        // is trusted not to write to them before it is told that this view is gone.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_not_sent_cannot_be_returned() {
        let (one, other) = Channel::pair().unwrap();
        let mut sender = SlotMemory::new(one, 1 << 20, 1 << 20, true);
        assert!(sender.place(1, &mut [].into_iter()).unwrap().is_some());
        let hostile = other.returner();
        hostile.send(1).unwrap();
        assert!(sender.place(1, &mut [].into_iter()).unwrap().is_some());
        for slot in [2, 0, u64::MAX] {
            hostile.send(slot).unwrap();
            assert_eq!(sender.place(1, &mut [].into_iter()), Err(SharedMemoryError::Invalid));
        }
    }
}
