//! Both ends of the slots of one direction.
//!
//! A slot is memory that the sender writes and the receiver returns. The sender makes it when it
//! first needs one and sends the descriptor then; later messages name the slot alone. A receiver
//! is not sure of its peer: it maps memory only if that is whole and has its seals, and a slot that
//! was not returned cannot be used again, so what a peer makes it hold is bounded.
//!
//! A receiver may answer with bytes that lie in the slot of the sender. It says so when it returns
//! the slot, which is free once as many answers have arrived.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use ucall_buffer::{SharedMemoryError, SlotPlace};

use super::channel::Channel;
use super::region::{self, Mapping, MemoryUse, Quota, QuotaShare};
use super::view::Lease;

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
    memory: Arc<Mapping>,
    memory_use: MemoryUse,
    /// The descriptor, until it was sent.
    descriptor: Option<OwnedFd>,
    /// `None` while the receiver does not have it.
    slot_use: Option<U>,
    answers: Answers,
    /// What this process holds the slot by, beside messages.
    held: Weak<HeldSlot>,
    /// Where parts of messages begin.
    starts: Vec<u64>,
    _quota: Option<QuotaShare>,
}

/// The messages of the receiver with bytes in a slot that it was sent.
#[derive(Clone, Copy, Default, Debug)]
struct Answers {
    arrived: u32,
    /// How many there are, known when the slot is returned.
    sent: u32,
}

/// A slot of ours that code of this process reads or writes.
#[derive(Debug)]
pub struct HeldSlot {
    memory: Arc<Mapping>,
    /// Whether the program fills it, to send it.
    is_filled_here: bool,
}

impl HeldSlot {
    /// Its memory.
    pub fn memory(&self) -> &Mapping {
        &self.memory
    }
}

/// A slot that is being written.
#[derive(Debug)]
pub struct SlotTarget(usize);

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
        let found = match self.find_free(bytes, |_| true) {
            Some(index) => Some(index),
            None => self.add(bytes, MemoryUse::Reused, bytes_max, quota)?,
        };
        Ok(found.map(|index| {
            self.lend(index, slot_use);
            SlotTarget(index)
        }))
    }

    /// Takes a slot that the program fills, whose parts begin at `start`.
    ///
    /// # Errors
    /// The system refuses new memory.
    pub fn hold(
        &mut self,
        bytes: u64,
        memory_use: MemoryUse,
        bytes_max: u64,
        quota: &'static Quota,
    ) -> io::Result<Option<Arc<HeldSlot>>> {
        let found = match self.find_free(bytes, |slot| slot.memory_use == memory_use) {
            Some(index) => Some(index),
            None => self.add(bytes, memory_use, bytes_max, Some(quota))?,
        };
        let slot = found.and_then(|index| self.slots.get_mut(index));
        Ok(slot.map(|slot| {
            slot.starts = vec![0];
            slot.hold(true)
        }))
    }

    fn find_free(&self, bytes: u64, suits: impl Fn(&SentSlot<U>) -> bool) -> Option<usize> {
        let fits = |slot: &SentSlot<U>| slot.is_free() && slot.has_room(bytes) && suits(slot);
        let free = self.slots.iter().enumerate().filter(|(_, slot)| fits(slot));
        free.min_by_key(|(_, slot)| slot.memory.bytes()).map(|(index, _)| index)
    }

    /// Makes a slot for this many bytes.
    fn add(
        &mut self,
        bytes: u64,
        memory_use: MemoryUse,
        bytes_max: u64,
        quota: Option<&'static Quota>,
    ) -> io::Result<Option<usize>> {
        let wanted = bytes.saturating_add(bytes / SLOT_SLACK_SHARE).max(SLOT_BYTES_MIN);
        let all: u64 = self.slots.iter().map(|slot| slot.memory.bytes() as u64).sum();
        // A new slot, or a longer one in place of a free slot.
        let is_room = self.slots.len() < SLOTS_MAX && all.saturating_add(wanted) <= bytes_max;
        let (index, freed) = match self.slots.iter().position(SentSlot::is_free) {
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
        let memory = Arc::new(Mapping::to_write(descriptor.as_fd(), length)?);
        region::seal(descriptor.as_fd(), memory_use)?;
        let slot = SentSlot {
            memory,
            memory_use,
            descriptor: Some(descriptor),
            slot_use: None,
            answers: Answers::default(),
            held: Weak::new(),
            starts: Vec::new(),
            _quota: quota,
        };
        match self.slots.get_mut(index) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        Ok(Some(index))
    }

    /// Writes bytes at `at`; `false` if they do not fit.
    pub fn write(&mut self, target: &mut SlotTarget, at: u64, bytes: &[u8]) -> bool {
        self.slots.get(target.0).is_some_and(|slot| slot.memory.write(at, bytes))
    }

    /// Sends the descriptor of a slot that was written, if it is new. Without a place for the
    /// message the slot is free again: the channel is full or broken.
    pub fn announce(
        &mut self,
        channel: &mut Channel,
        target: SlotTarget,
        slot_use: U,
    ) -> Option<SlotPlace> {
        let SlotTarget(index) = target;
        let slot = self.slots.get_mut(index)?;
        let descriptor = match &slot.descriptor {
            None => Ok(0),
            Some(descriptor) => channel.send(descriptor.as_fd()),
        };
        let Ok(descriptor) = descriptor else {
            slot.slot_use = None;
            return None;
        };
        (slot.descriptor, slot.slot_use) = (None, Some(slot_use));
        Some(SlotPlace { slot: index as u64 + 1, descriptor })
    }

    /// Frees a slot whose message was not announced.
    pub fn abandon(&mut self, target: &SlotTarget) {
        if let Some(slot) = self.slots.get_mut(target.0) {
            slot.slot_use = None;
        }
    }

    /// The slot in which the program has written `bytes`, behind as many bytes as a header takes,
    /// if the receiver does not have it; and where the header begins.
    pub fn filled_slot(&self, bytes: &[u8], header_bytes: usize) -> Option<(SlotTarget, u64)> {
        self.slots.iter().enumerate().find_map(|(index, slot)| {
            let start = slot.memory.position_of(bytes)?.checked_sub(header_bytes)? as u64;
            let is_filled = slot.held.upgrade().is_some_and(|held| held.is_filled_here);
            let is_ours = slot.slot_use.is_none() && slot.answers.have_arrived();
            (is_filled && is_ours && slot.starts.contains(&start))
                .then_some((SlotTarget(index), start))
        })
    }

    /// The receiver gets a slot that the program has filled.
    pub fn lend_filled(&mut self, target: &SlotTarget, slot_use: U) {
        self.lend(target.0, slot_use);
    }

    /// The peer has returned the slot of this number, after as many answers in it.
    ///
    /// # Errors
    /// It has no message.
    pub fn release(&mut self, slot: u64, answers: u32) -> Result<(), SharedMemoryError> {
        match self.slot_mut(slot) {
            Some(slot) if slot.slot_use.is_some() && slot.answers.arrived <= answers => {
                (slot.slot_use, slot.answers.sent) = (None, answers);
                Ok(())
            }
            _ => Err(SharedMemoryError::Invalid),
        }
    }

    /// The slot of this number, in which an answer lies; `false` if something of this process has
    /// it already.
    ///
    /// # Errors
    /// The receiver has answered as often as it has reported, or does not have the slot.
    pub fn answered(&mut self, slot: u64) -> Result<(Arc<HeldSlot>, bool), SharedMemoryError> {
        let slot = self.slot_mut(slot).ok_or(SharedMemoryError::Invalid)?;
        if slot.slot_use.is_none() && slot.answers.have_arrived() {
            return Err(SharedMemoryError::Invalid);
        }
        let arrived = slot.answers.arrived.checked_add(1);
        slot.answers.arrived = arrived.ok_or(SharedMemoryError::Invalid)?;
        Ok(match slot.held.upgrade() {
            Some(held) => (held, false),
            None => (slot.hold(false), true),
        })
    }

    /// Whether a slot of this use has room for this many bytes.
    pub fn has_used(&self, bytes: u64, slot_use: U) -> bool {
        self.slots.iter().any(|slot| slot.slot_use == Some(slot_use) && slot.has_room(bytes))
    }

    fn slot_mut(&mut self, slot: u64) -> Option<&mut SentSlot<U>> {
        let index = usize::try_from(slot).ok()?.checked_sub(1)?;
        self.slots.get_mut(index)
    }

    fn lend(&mut self, index: usize, slot_use: U) {
        if let Some(slot) = self.slots.get_mut(index) {
            (slot.slot_use, slot.answers) = (Some(slot_use), Answers::default());
        }
    }
}

impl<U> SentSlot<U> {
    /// Whether neither side has it, nor any message in flight.
    fn is_free(&self) -> bool {
        let is_held = self.held.strong_count() > 0;
        self.slot_use.is_none() && self.answers.have_arrived() && !is_held
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.memory.bytes() as u64 >= bytes
    }

    fn hold(&mut self, is_filled_here: bool) -> Arc<HeldSlot> {
        let held = Arc::new(HeldSlot { memory: self.memory.clone(), is_filled_here });
        self.held = Arc::downgrade(&held);
        held
    }
}

impl Answers {
    fn have_arrived(self) -> bool {
        self.arrived == self.sent
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
    /// Whether it is mapped so that it can be written here, too.
    is_writable: bool,
    /// The lease of a message that is read in place, and where its parts begin.
    lease: Weak<Lease>,
    starts: Vec<u64>,
}

impl ReceivedSlots {
    /// No slots. With `is_writable` they can be written here, too, while they are leased, except
    /// those that their peer has sealed.
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
            let (memory, is_writable) = self.map(&descriptor, bytes_max)?;
            let slot = ReceivedSlot {
                memory: Arc::new(memory),
                is_leased: false,
                is_writable,
                lease: Weak::new(),
                starts: Vec::new(),
            };
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

    /// Whether a slot can be written here, too.
    pub fn is_writable(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.is_writable)
    }

    /// A message is read in place, whose parts begin there.
    pub fn lend(&mut self, index: usize, lease: &Arc<Lease>, starts: Vec<u64>) {
        if let Some(slot) = self.slots.get_mut(index) {
            (slot.lease, slot.starts) = (Arc::downgrade(lease), starts);
        }
    }

    /// The number of the slot in which `bytes` lie, behind a header of that length; where the
    /// header begins, and the lease.
    pub fn lent_slot(&self, bytes: &[u8], header_bytes: usize) -> Option<(u64, u64, Arc<Lease>)> {
        self.slots.iter().enumerate().find_map(|(index, slot)| {
            let start = slot.memory.position_of(bytes)?.checked_sub(header_bytes)? as u64;
            let lease = slot.lease.upgrade().filter(|_| slot.starts.contains(&start))?;
            Some((index as u64 + 1, start, lease))
        })
    }

    fn map(&self, memory: &OwnedFd, bytes_max: u64) -> Result<(Mapping, bool), SharedMemoryError> {
        let length = checked_length(memory, MemoryUse::Reused)?;
        if length as u64 > bytes_max {
            return Err(SharedMemoryError::Invalid);
        }
        if self.is_writable {
            match Mapping::to_write(memory.as_fd(), length) {
                Ok(mapped) => return Ok((mapped, true)),
                // The peer has sealed it against the writes of others.
                Err(Errno::PERM | Errno::ACCESS) => {}
                Err(_) => return Err(SharedMemoryError::OutOfMemory),
            }
        }
        let mapped = Mapping::to_read(memory.as_fd(), length, MemoryUse::Reused);
        Ok((mapped.map_err(|_| SharedMemoryError::OutOfMemory)?, false))
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
