//! Views of received messages in shared memory.

use std::sync::{Arc, Mutex, PoisonError};

use ucall_engine::WakeFlag;

use super::region::Mapping;
use crate::link_key::LinkKey;

/// A segment of a message in shared memory, which stays mapped for as long as a view exists.
#[derive(Clone, Debug)]
pub struct View {
    lease: Arc<Lease>,
    start: usize,
    bytes: usize,
}

impl View {
    /// A view of a range; `None` if that is not within the memory.
    pub(super) fn new(lease: &Arc<Lease>, start: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(bytes).ok()?);
        let end = start.checked_add(bytes)?;
        let lease = lease.clone();
        (end <= lease.mapping.bytes()).then_some(Self { lease, start, bytes })
    }

    /// Its address, readable for as long as the view exists. Writes are never allowed.
    pub fn as_ptr(&self) -> *const u8 {
        // The start is within the mapping.
        self.lease.mapping.as_ptr().wrapping_add(self.start)
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes, if no process can change them; `None` in a slot, which a peer is trusted not to
    /// write before all views are gone.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.lease.slot.is_some() {
            return None;
        }
        // SAFETY: `new` has checked that they are within the mapping, which the view keeps. Memory
        // other than a slot was sealed against writes when it was mapped.
        Some(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) })
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy: Vec<u8> = Vec::with_capacity(self.bytes);
        // SAFETY: `copy` has capacity for the bytes at `as_ptr`. A peer may violate the trust and
        // write to them meanwhile: then the copy has old and new bytes, and no byte is read twice.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr(), copy.as_mut_ptr(), self.bytes);
            copy.set_len(self.bytes);
        }
        copy
    }
}

/// Keeps memory mapped for all views of one message.
#[derive(Debug)]
pub(super) struct Lease {
    mapping: Arc<Mapping>,
    /// The slot to release, with its link and the queue for it.
    slot: Option<(LinkKey, usize, Arc<ReturnedSlots>)>,
}

impl Lease {
    /// A lease of memory that is used once.
    pub(super) fn once(mapping: Mapping) -> Self {
        Self { mapping: Arc::new(mapping), slot: None }
    }

    /// A lease of a slot, which is released when the lease is dropped.
    pub(super) fn of_slot(
        mapping: Arc<Mapping>,
        link: LinkKey,
        slot: usize,
        returned: Arc<ReturnedSlots>,
    ) -> Self {
        Self { mapping, slot: Some((link, slot, returned)) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((link, slot, returned)) = self.slot.take() {
            returned.push(link, slot);
        }
    }
}

/// Slots without views, until the communicator's thread reports them to the peer.
#[derive(Debug)]
pub(crate) struct ReturnedSlots {
    slots: Mutex<Vec<(LinkKey, usize)>>,
    wake_flag: Arc<WakeFlag>,
}

impl ReturnedSlots {
    pub(crate) fn new(wake_flag: Arc<WakeFlag>) -> Self {
        Self { slots: Mutex::default(), wake_flag }
    }

    fn push(&self, link: LinkKey, slot: usize) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push((link, slot));
        self.wake_flag.notify();
    }

    /// All slots that were returned since the last call.
    pub(crate) fn take(&self) -> Vec<(LinkKey, usize)> {
        std::mem::take(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
