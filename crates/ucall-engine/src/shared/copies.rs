//! Memory for copies of messages, which is kept for the next ones: new memory costs several times
//! what a copy does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ucall_buffer::Bytes;

use super::region::{Quota, QuotaShare};
use crate::OwningProcess;

/// Copies begin at a multiple of this: arrays are read fastest from the start of a cache line.
const ALIGNMENT: usize = 64;
/// Memory of shorter copies is not kept.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// The bytes that are kept in this process, by all connections.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// What one connection keeps.
const KEPT_MAX: usize = 8;

static QUOTA: Quota = Quota::new(KEPT_BYTES_MAX);

/// The memory of the copies of one connection.
#[derive(Debug)]
pub(super) struct Copies {
    kept: Arc<KeptMemory>,
}

impl Copies {
    pub(super) fn new() -> Self {
        let kept = KeptMemory { process: OwningProcess::current(), memory: Mutex::default() };
        Self { kept: Arc::new(kept) }
    }

    /// A copy of that length, which `append` makes; `None` without memory for it.
    pub(super) fn copy(&self, len: usize, append: impl FnOnce(&mut Vec<u8>)) -> Option<Bytes> {
        let mut memory = match self.kept.take(len + ALIGNMENT - 1) {
            Some(memory) => memory,
            None => {
                let mut memory: Vec<u8> = Vec::new();
                memory.try_reserve_exact(len + ALIGNMENT - 1).ok()?;
                memory
            }
        };
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        memory.resize(start, 0);
        append(&mut memory);
        if len < KEPT_BYTES_MIN {
            return Some(Bytes::from(memory).slice(start..));
        }
        Some(Bytes::from_owner(Copy { memory, start, kept: self.kept.clone() }))
    }
}

#[derive(Debug)]
struct KeptMemory {
    process: OwningProcess,
    /// The last one is the latest.
    memory: Mutex<Vec<(Vec<u8>, QuotaShare)>>,
}

impl KeptMemory {
    /// Memory with that capacity, and not much more.
    fn take(&self, capacity: usize) -> Option<Vec<u8>> {
        let mut kept = self.lock();
        let suits = |it: &Vec<u8>| (capacity..=capacity.saturating_mul(2)).contains(&it.capacity());
        let at = kept.iter().rposition(|(memory, _)| suits(memory))?;
        let (mut memory, _) = kept.remove(at);
        memory.clear();
        Some(memory)
    }

    fn keep(&self, memory: Vec<u8>) {
        // Another thread of the parent may have had the lock when a child was forked.
        if !self.process.is_current() {
            return;
        }
        let Some(share) = QUOTA.take(memory.capacity() as u64) else { return };
        let mut kept = self.lock();
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push((memory, share));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Vec<u8>, QuotaShare)>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy, whose memory is kept after it.
#[derive(Debug)]
struct Copy {
    memory: Vec<u8>,
    start: usize,
    kept: Arc<KeptMemory>,
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(self.start..).unwrap_or_default()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.kept.keep(std::mem::take(&mut self.memory));
    }
}
