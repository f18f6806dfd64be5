//! Both ends of the slots of one direction.
//!
//! A slot is memory that the sender writes and the receiver returns. The sender makes it when it
//! first needs one and sends the descriptor then; later messages name the slot alone. A receiver
//! is not sure of its peer: it maps memory only if that is whole and has its seals, and a slot that
//! was not returned cannot be used again, so what a peer makes it hold is bounded.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use ucall_buffer::{SharedMemoryError, SlotPlace};

use super::channel::Channel;
use super::region::{self, Mapping, MemoryUse, Quota, QuotaShare};

/// The most slots in each direction.
pub const SLOTS_MAX: usize = 64;
/// The smallest slot. A slot also has room for messages slightly longer than its first.
const SLOT_BYTES_MIN: u64 = 128 * 1024;
const SLOT_SLACK_SHARE: u64 = 16;

/// The slots that this side writes. `U` is the use of a slot whose message was not returned.
#[derive(Debug)]
pub struct SentSlots<U> {
    slots: Vec<SentSlot<U>>,
}

#[derive(Debug)]
struct SentSlot<U> {
    memory: Mapping,
    /// `None` while it is free.
    slot_use: Option<U>,
    _quota: Option<QuotaShare>,
}

/// A slot that is being written.
#[derive(Debug)]
pub enum SlotTarget {
    /// The receiver knows it.
    Known(usize),
    /// The receiver does not have its descriptor.
    New {
        /// Its index.
        index: usize,
        /// Its memory.
        memory: Mapping,
        /// The descriptor to send.
        descriptor: OwnedFd,
        /// Its share of a quota.
        quota: Option<QuotaShare>,
    },
}

impl<U> Default for SentSlots<U> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<U: Copy + PartialEq> SentSlots<U> {
    /// Takes a slot for this many bytes and this use; `None` if there is none. All slots together
    /// have at most `bytes_max`, and a new one a share of `quota`.
    ///
    /// # Errors
    /// The system refuses new memory.
    pub fn find(
        &mut self,
        bytes: u64,
        slot_use: U,
        bytes_max: u64,
        quota: Option<&'static Quota>,
    ) -> io::Result<Option<SlotTarget>> {
        let fits = |slot: &SentSlot<U>| slot.slot_use.is_none() && slot.has_room(bytes);
        let free = self.slots.iter().enumerate().filter(|(_, slot)| fits(slot));
        if let Some((index, _)) = free.min_by_key(|(_, slot)| slot.memory.bytes()) {
            self.set_use(index, Some(slot_use));
            return Ok(Some(SlotTarget::Known(index)));
        }
        let wanted = bytes.saturating_add(bytes / SLOT_SLACK_SHARE).max(SLOT_BYTES_MIN);
        let all: u64 = self.slots.iter().map(|slot| slot.memory.bytes() as u64).sum();
        // A new slot, or a longer one in place of a free slot.
        let is_room = self.slots.len() < SLOTS_MAX && all.saturating_add(wanted) <= bytes_max;
        let (index, freed) = match self.slots.iter().position(|slot| slot.slot_use.is_none()) {
            _ if is_room => (self.slots.len(), 0),
            Some(index) => (index, self.slots.get(index).map_or(0, |it| it.memory.bytes() as u64)),
            None => return Ok(None),
        };
        if (all - freed).saturating_add(wanted) > bytes_max {
            return Ok(None);
        }
        let quota = match quota.map(|quota| quota.take(wanted)) {
            Some(None) => return Ok(None),
            share => share.flatten(),
        };
        let descriptor = region::create(wanted)?;
        region::allocate(descriptor.as_fd(), wanted)?;
        let length = usize::try_from(wanted).map_err(|_| Errno::OVERFLOW)?;
        let memory = Mapping::to_write(descriptor.as_fd(), length)?;
        region::seal(descriptor.as_fd(), MemoryUse::Reused)?;
        self.set_use(index, Some(slot_use));
        Ok(Some(SlotTarget::New { index, memory, descriptor, quota }))
    }

    /// Writes bytes at `at`; `false` if they do not fit.
    pub fn write(&mut self, target: &mut SlotTarget, at: u64, bytes: &[u8]) -> bool {
        match target {
            SlotTarget::New { memory, .. } => memory.write(at, bytes),
            SlotTarget::Known(index) => {
                self.slots.get_mut(*index).is_some_and(|slot| slot.memory.write(at, bytes))
            }
        }
    }

    /// Sends the descriptor of a slot that was written, if it is new. Without a place for the
    /// message the slot is free again: the channel is full or broken.
    pub fn announce(
        &mut self,
        channel: &mut Channel,
        target: SlotTarget,
        slot_use: U,
    ) -> Option<SlotPlace> {
        match target {
            SlotTarget::Known(index) => Some(SlotPlace { slot: index as u64 + 1, descriptor: 0 }),
            SlotTarget::New { index, memory, descriptor, quota } => {
                let Ok(number) = channel.send(descriptor.as_fd()) else {
                    self.set_use(index, None);
                    return None;
                };
                let slot = SentSlot { memory, slot_use: Some(slot_use), _quota: quota };
                match self.slots.get_mut(index) {
                    Some(old) => *old = slot,
                    None => self.slots.push(slot),
                }
                Some(SlotPlace { slot: index as u64 + 1, descriptor: number })
            }
        }
    }

    /// Frees a slot whose message was not announced.
    pub fn abandon(&mut self, target: &SlotTarget) {
        let (SlotTarget::Known(index) | SlotTarget::New { index, .. }) = *target;
        self.set_use(index, None);
    }

    /// The peer has returned the slot of this number.
    ///
    /// # Errors
    /// It has no message.
    pub fn release(&mut self, slot: u64) -> Result<(), SharedMemoryError> {
        let index = usize::try_from(slot).ok().and_then(|slot| slot.checked_sub(1));
        match index.and_then(|index| self.slots.get_mut(index)) {
            Some(slot) if slot.slot_use.is_some() => {
                slot.slot_use = None;
                Ok(())
            }
            _ => Err(SharedMemoryError::Invalid),
        }
    }

    /// Whether a slot of this use has room for this many bytes.
    pub fn has_used(&self, bytes: u64, slot_use: U) -> bool {
        self.slots.iter().any(|slot| slot.slot_use == Some(slot_use) && slot.has_room(bytes))
    }

    fn set_use(&mut self, index: usize, slot_use: Option<U>) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.slot_use = slot_use;
        }
    }
}

impl<U> SentSlot<U> {
    fn has_room(&self, bytes: u64) -> bool {
        self.memory.bytes() as u64 >= bytes
    }
}

/// The slots that the peer writes.
#[derive(Debug)]
pub struct ReceivedSlots {
    slots: Vec<ReceivedSlot>,
    /// Whether slots are mapped so that they can be written here, too.
    is_writable: bool,
}

#[derive(Debug)]
struct ReceivedSlot {
    memory: Arc<Mapping>,
    is_leased: bool,
}

impl ReceivedSlots {
    /// No slots. With `is_writable` they can be written here, too, while they are leased.
    pub fn new(is_writable: bool) -> Self {
        Self { slots: Vec::new(), is_writable }
    }

    /// Marks the slot of this number as in use; returns its index and memory, which is that of
    /// `descriptor` from now on. All slots together have at most `bytes_max`.
    ///
    /// # Errors
    /// The slot is in use or has no memory that can be relied on, or this process has no room.
    pub fn take(
        &mut self,
        slot: u64,
        descriptor: Option<OwnedFd>,
        bytes_max: u64,
    ) -> Result<(usize, Arc<Mapping>), SharedMemoryError> {
        let index = slot.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let index = index.ok_or(SharedMemoryError::Invalid)?;
        let is_new = index == self.slots.len() && index < SLOTS_MAX;
        if self.slots.get(index).map_or(!is_new, |slot| slot.is_leased) {
            return Err(SharedMemoryError::Invalid);
        }
        if let Some(descriptor) = descriptor {
            let others = self.slots.iter().enumerate().filter(|(other, _)| *other != index);
            let others_bytes: u64 = others.map(|(_, slot)| slot.memory.bytes() as u64).sum();
            let bytes_max = bytes_max.saturating_sub(others_bytes);
            let memory = self.map(&descriptor, bytes_max)?;
            let slot = ReceivedSlot { memory: Arc::new(memory), is_leased: false };
            match self.slots.get_mut(index) {
                Some(old) => *old = slot,
                None => self.slots.push(slot),
            }
        }
        let slot = self.slots.get_mut(index).ok_or(SharedMemoryError::Invalid)?;
        slot.is_leased = true;
        Ok((index, slot.memory.clone()))
    }

    /// The peer may use a slot again.
    pub fn free(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_leased = false;
        }
    }

    fn map(&self, memory: &OwnedFd, bytes_max: u64) -> Result<Mapping, SharedMemoryError> {
        let length = checked_length(memory, MemoryUse::Reused)?;
        if length as u64 > bytes_max {
            return Err(SharedMemoryError::Invalid);
        }
        let mapped = match self.is_writable {
            true => Mapping::to_write(memory.as_fd(), length),
            false => Mapping::to_read(memory.as_fd(), length, MemoryUse::Reused),
        };
        mapped.map_err(|error| match error {
            // The peer has sealed it against our writes.
            Errno::PERM | Errno::ACCESS => SharedMemoryError::Invalid,
            _ => SharedMemoryError::OutOfMemory,
        })
    }
}

/// Maps the first `bytes` of memory that is used once.
///
/// # Errors
/// It is shorter, or cannot be relied on, or this process has no room.
pub fn map_once(memory: &OwnedFd, bytes: u64) -> Result<Mapping, SharedMemoryError> {
    let length = checked_length(memory, MemoryUse::Once)?;
    match usize::try_from(bytes) {
        Ok(bytes @ 1..) if bytes <= length => {
            let mapped = Mapping::to_read(memory.as_fd(), bytes, MemoryUse::Once);
            mapped.map_err(|_| SharedMemoryError::OutOfMemory)
        }
        _ => Err(SharedMemoryError::Invalid),
    }
}

/// The length of memory that may be mapped.
fn checked_length(memory: &OwnedFd, memory_use: MemoryUse) -> Result<usize, SharedMemoryError> {
    let length = region::check(memory.as_fd(), memory_use)?;
    usize::try_from(length).map_err(|_| SharedMemoryError::Invalid)
}
