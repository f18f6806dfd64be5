//! Pieces of messages that lie in shared memory, for whoever got them.

use std::sync::{Arc, Mutex, PoisonError};

use ucall_engine::WakeFlag;

use super::region::Mapping;
use crate::link_key::LinkKey;

/// A piece of a message in shared memory, which stays mapped for as long as a view of it is there.
#[derive(Clone, Debug)]
pub struct View {
    lease: Arc<Lease>,
    start: usize,
    bytes: usize,
}

impl View {
    /// So many bytes from `start` on; `None` if they are not within the memory.
    pub(super) fn new(lease: &Arc<Lease>, start: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(bytes).ok()?);
        let end = start.checked_add(bytes)?;
        let lease = lease.clone();
        (end <= lease.mapping.bytes()).then_some(Self { lease, start, bytes })
    }

    /// Where it begins. It can be read for as long as the view is there, and is never to be
    /// written.
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

    /// The bytes, if nobody can change them; `None` in memory that is written again, by a peer
    /// that is trusted not to do it before all views of it are gone.
    pub fn as_slice(&self) -> Option<&[u8]> {
        if self.lease.slot.is_some() {
            return None;
        }
        // SAFETY: `new` has seen that they are within the mapping, which the view holds. Memory
        // that is no slot's is sealed against writing, as it was when it was mapped.
        Some(unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) })
    }

    /// A copy, which stays as it is.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy: Vec<u8> = Vec::with_capacity(self.bytes);
        // SAFETY: there is room for as many bytes as there are behind `as_ptr`. A peer that breaks
        // its word may write to them meanwhile; then the copy has some of each, and no byte is
        // looked at twice.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr(), copy.as_mut_ptr(), self.bytes);
            copy.set_len(self.bytes);
        }
        copy
    }
}

/// The use of memory by all views of one message.
#[derive(Debug)]
pub(super) struct Lease {
    mapping: Arc<Mapping>,
    /// What to give back, and to whom.
    slot: Option<(LinkKey, usize, Arc<ReturnedSlots>)>,
}

impl Lease {
    /// Of memory that holds one message for good.
    pub(super) fn once(mapping: Mapping) -> Self {
        Self { mapping: Arc::new(mapping), slot: None }
    }

    /// Of a slot's memory, which is given back in the end.
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

    /// All that were returned since the last time.
    pub(crate) fn take(&self) -> Vec<(LinkKey, usize)> {
        std::mem::take(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
