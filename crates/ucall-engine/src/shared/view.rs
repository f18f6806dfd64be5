//! Views of received bytes in shared memory.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::copy::copy_bytes;
use super::region::Mapping;

/// A range of shared memory, which stays mapped for as long as a view exists.
#[derive(Clone, Debug)]
pub struct View {
    lease: Arc<Lease>,
    start: usize,
    bytes: usize,
}

impl View {
    /// A view of a range; `None` if that is not within the memory.
    pub fn new(lease: &Arc<Lease>, start: u64, bytes: u64) -> Option<Self> {
        let (start, bytes) = (usize::try_from(start).ok()?, usize::try_from(bytes).ok()?);
        let end = start.checked_add(bytes)?;
        let lease = lease.clone();
        (end <= lease.mapping.bytes()).then_some(Self { lease, start, bytes })
    }

    /// Its address, readable for as long as the view exists.
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
        self.append_to(&mut copy);
        copy
    }

    /// Appends a copy of the bytes.
    pub fn append_to(&self, copy: &mut Vec<u8>) {
        copy.reserve(self.bytes);
        let filled = copy.len();
        // SAFETY: `copy` has room for the bytes at `as_ptr` after those that it has. A peer may
        // write to them meanwhile: then the copy has old and new bytes, and no byte is read twice.
        unsafe {
            let end = copy.as_mut_ptr().add(filled);
            copy_bytes(self.as_ptr(), end, self.bytes);
            copy.set_len(filled + self.bytes);
        }
    }
}

/// Takes back the slots that a receiver has read.
pub trait ReturnSlots: fmt::Debug + Send + Sync {
    /// The last view of a slot is gone, after so many messages to its sender with bytes in it. Any
    /// thread may call this.
    fn return_slot(&self, slot: usize, answers: u32);
}

/// Keeps memory mapped for all views of one message.
#[derive(Debug)]
pub struct Lease {
    mapping: Arc<Mapping>,
    /// The slot to return, and where to.
    slot: Option<(usize, Arc<dyn ReturnSlots>)>,
    /// The messages to the sender of the slot with bytes in it.
    answers: AtomicU32,
}

impl Lease {
    /// A lease of memory that is used once.
    pub fn once(mapping: Mapping) -> Self {
        Self { mapping: Arc::new(mapping), slot: None, answers: AtomicU32::new(0) }
    }

    /// A lease of a slot, which is returned when the lease is dropped.
    pub fn of_slot(mapping: Arc<Mapping>, slot: usize, returned: Arc<dyn ReturnSlots>) -> Self {
        Self { mapping, slot: Some((slot, returned)), answers: AtomicU32::new(0) }
    }

    /// Writes bytes at `at` to a slot that was mapped for writing; `false` if they do not fit.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> bool {
        self.mapping.write(at, bytes)
    }

    /// A message to the sender of the slot has bytes in it.
    pub(super) fn answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((slot, returned)) = self.slot.take() {
            returned.return_slot(slot, *self.answers.get_mut());
        }
    }
}
