//! Memory that long messages were received into, kept for the next ones.
//!
//! Allocators give large memory back to the system, which then hands out each page of it anew, by
//! a fault: for a long message that costs more than to receive it. What was used last is used
//! first, and what nobody has used from one look to the next goes.
#![forbid(unsafe_code)]

use std::collections::TryReserveError;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Smaller memory costs no faults.
const POOLED_BYTES_MIN: usize = 64 << 10;
/// How many times its bytes a message may have in memory.
const WASTE_MAX: usize = 2;

/// Pieces of memory, as many bytes of them as it was told at most.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free_list: Mutex<FreeList>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct FreeList {
    /// The one used last at the end.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// The fewest there were since the last look, which nobody has used.
    idle: usize,
}

/// The memory of a message, which goes back to where it came from.
#[derive(Debug, Default)]
pub struct PooledBuffer {
    memory: Vec<u8>,
    pool: Weak<BufferPool>,
}

impl BufferPool {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { free_list: Mutex::default(), bytes_max })
    }

    /// Empty memory for so many bytes.
    pub(crate) fn take(&self, length: usize) -> Result<Vec<u8>, TryReserveError> {
        let fits = length..=length.saturating_mul(WASTE_MAX);
        if length >= POOLED_BYTES_MIN {
            let mut free_list = self.lock();
            if let Some(position) =
                free_list.buffers.iter().rposition(|it| fits.contains(&it.capacity()))
            {
                let memory = free_list.buffers.remove(position);
                free_list.bytes -= memory.capacity();
                free_list.idle = free_list.idle.min(free_list.buffers.len());
                return Ok(memory);
            }
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(length)?;
        Ok(memory)
    }

    /// Has the memory come back once it is let go of.
    pub(crate) fn pooled(self: &Arc<Self>, memory: Vec<u8>) -> PooledBuffer {
        let pool =
            if memory.capacity() < POOLED_BYTES_MIN { Weak::new() } else { Arc::downgrade(self) };
        PooledBuffer { memory, pool }
    }

    fn put_back(&self, mut memory: Vec<u8>) {
        memory.clear();
        let mut free_list = self.lock();
        if free_list.bytes + memory.capacity() <= self.bytes_max {
            free_list.bytes += memory.capacity();
            free_list.buffers.push(memory);
        }
    }

    /// Lets go of what nobody has used since the last call.
    pub(crate) fn release_idle(&self) {
        let mut free_list = self.lock();
        let idle = free_list.idle.min(free_list.buffers.len());
        let gone: Vec<_> = free_list.buffers.drain(..idle).collect();
        free_list.bytes -= gone.iter().map(Vec::capacity).sum::<usize>();
        free_list.idle = free_list.buffers.len();
        // To give it back takes a while.
        drop(free_list);
        drop(gone);
    }

    /// Whether there is nothing for [`BufferPool::release_idle`] to let go of.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().buffers.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, FreeList> {
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.put_back(mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this size that was used and came back.
    fn used(pool: &Arc<BufferPool>, length: usize) -> *const u8 {
        let memory = pool.take(length).unwrap();
        let position = memory.as_ptr();
        drop(pool.pooled(memory));
        position
    }

    #[test]
    fn buffers_are_reused_for_messages_of_similar_size() {
        let pool = BufferPool::new(1 << 20);
        let position = used(&pool, 200_000);
        let others = [99_999, 200_001].map(|length| pool.take(length).unwrap());
        assert!(others.iter().all(|other| other.as_ptr() != position));
        let again = pool.take(100_000).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (position, 0));
        assert!(pool.is_empty());
    }

    #[test]
    fn the_pool_stays_within_its_limit() {
        let pool = BufferPool::new(400_000);
        let buffers: Vec<_> = (0..3).map(|_| pool.pooled(pool.take(200_000).unwrap())).collect();
        drop(buffers);
        assert_eq!(pool.lock().buffers.len(), 2);
        drop(pool.pooled(pool.take(POOLED_BYTES_MIN - 1).unwrap()));
        assert_eq!(pool.lock().bytes, 400_000);
    }

    #[test]
    fn idle_buffers_are_released_after_one_period() {
        let pool = BufferPool::new(1 << 20);
        let buffers: Vec<_> = (0..3).map(|_| pool.pooled(pool.take(100_000).unwrap())).collect();
        drop(buffers);
        pool.release_idle();
        assert_eq!(pool.lock().buffers.len(), 3);
        // Only the one used last is needed.
        used(&pool, 100_000);
        pool.release_idle();
        assert_eq!(pool.lock().buffers.len(), 1);
        pool.release_idle();
        assert!(pool.is_empty());
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufferPool::new(1 << 20);
        let mut memory = pool.take(100_000).unwrap();
        memory.push(7);
        let buffers = pool.pooled(memory);
        drop(pool);
        assert_eq!(buffers[..], [7]);
    }
}
