//! Reuses the memory of long received messages.
//!
//! Allocators return large memory to the system, which then hands out each page again by a fault.
//! For a long message that costs more than to receive it. The buffer used last is reused first, and
//! buffers that are unused from one sweep to the next are released.
#![forbid(unsafe_code)]

use std::collections::TryReserveError;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Smaller buffers are not pooled, because they cause no faults.
const POOLED_BYTES_MIN: usize = 64 << 10;
/// The capacity of a buffer is at most this multiple of its message.
const WASTE_MAX: usize = 2;

/// Unused buffers, up to a number of bytes.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free_list: Mutex<FreeList>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct FreeList {
    /// The buffer used last is at the end.
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// The smallest number of buffers since the last sweep: those were unused.
    idle: usize,
}

/// The memory of a message, which returns to its pool.
#[derive(Debug, Default)]
pub struct PooledBuffer {
    memory: Vec<u8>,
    pool: Weak<BufferPool>,
}

impl BufferPool {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { free_list: Mutex::default(), bytes_max })
    }

    /// An empty buffer for this many bytes.
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

    /// Has the memory return to this pool when it is dropped.
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

    /// Releases the buffers that were unused since the last call.
    pub(crate) fn release_idle(&self) {
        let mut free_list = self.lock();
        let idle = free_list.idle.min(free_list.buffers.len());
        let gone: Vec<_> = free_list.buffers.drain(..idle).collect();
        free_list.bytes -= gone.iter().map(Vec::capacity).sum::<usize>();
        free_list.idle = free_list.buffers.len();
        // Released without the lock, because it takes long.
        drop(free_list);
        drop(gone);
    }

    /// Whether [`BufferPool::release_idle`] has nothing to release.
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

    /// Uses a buffer of this size and returns it.
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
        // Only the buffer used last is needed.
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
