//! Keeps the memory of large messages for the next ones.
//!
//! Allocators return large memory to the system, and then each page faults again for the next
//! message. A pool keeps memory that was put back, and returns the most recent that fits. It keeps
//! a bounded number of bytes, and only what is used: [`BufferPool::release_unused`] frees the rest.
//! Once nothing was taken between two calls of that, the pool is inactive, and frees at once what
//! is put into it. So memory that any thread puts back long after its message does not stay where
//! no such call follows.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Smaller memory costs no faults, and is not kept.
pub const POOLED_BYTES_MIN: usize = 64 << 10;
/// What a pool keeps at most, unless it is told otherwise.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// How many times its bytes a message may have in memory.
pub(crate) const WASTE_MAX: usize = 4;

/// Memory that is kept. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Changed while `kept` is locked.
    is_active: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// The most recent last.
    buffers: Vec<KeptBuffer>,
    bytes: usize,
    bytes_max: usize,
    /// Whether memory was asked for since the last call of [`BufferPool::release_unused`].
    was_used: bool,
}

#[derive(Debug)]
struct KeptBuffer {
    memory: Vec<u8>,
    /// Whether it was put here since the last call of [`BufferPool::release_unused`].
    was_used: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self { buffers: Vec::new(), bytes: 0, bytes_max: KEPT_BYTES_MAX, was_used: false }
    }
}

impl BufferPool {
    /// Has the pool keep at most this many bytes.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        let dropped = {
            let mut kept = self.kept();
            kept.bytes_max = bytes_max;
            kept.make_room(0)
        };
        drop(dropped);
    }

    /// The bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.kept().bytes
    }

    /// Empty memory for a message of `len` bytes, if some of about that size is kept: a message
    /// must not occupy much more memory than it needs.
    pub fn take(&self, len: usize) -> Option<Vec<u8>> {
        if len < POOLED_BYTES_MIN {
            return None;
        }
        let mut kept = self.kept();
        kept.was_used = true;
        self.0.is_active.store(true, Ordering::Relaxed);
        kept.take(len)
    }

    /// Empty memory for `len` bytes: kept, or else new, whose pages the system provides as they are
    /// written.
    ///
    /// # Errors
    /// There is not as much.
    pub fn allocate(&self, len: usize) -> Result<Vec<u8>, TryReserveError> {
        if let Some(memory) = self.take(len) {
            return Ok(memory);
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(len)?;
        Ok(memory)
    }

    /// Puts the memory of a message that is no longer needed, without its contents.
    pub fn put(&self, mut memory: Vec<u8>) {
        let capacity = memory.capacity();
        if capacity < POOLED_BYTES_MIN {
            return;
        }
        // Freed without the lock.
        let dropped = {
            // Never waits: in a forked child another thread may have had the lock.
            let Ok(mut kept) = self.0.kept.try_lock() else { return };
            if !self.is_active() || capacity > kept.bytes_max {
                drop(kept);
                return;
            }
            memory.clear();
            let dropped = kept.make_room(capacity);
            kept.bytes += capacity;
            kept.buffers.push(KeptBuffer { memory, was_used: true });
            dropped
        };
        drop(dropped);
    }

    /// The contents of memory that is put here once nothing refers to them.
    pub fn share(&self, memory: Vec<u8>) -> Bytes {
        match memory.capacity() < POOLED_BYTES_MIN {
            true => memory.into(),
            false => Bytes::from_owner(Pooled { memory, pool: self.clone() }),
        }
    }

    /// Whether [`BufferPool::release_unused`] may have memory to free, or will have.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.0.is_active.load(Ordering::Relaxed)
    }

    /// Frees memory that was not used since the last call.
    pub fn release_unused(&self) {
        if !self.is_active() {
            return;
        }
        let unused: Vec<_> = {
            let mut kept = self.kept();
            let was_used = std::mem::take(&mut kept.was_used);
            self.0.is_active.store(was_used, Ordering::Relaxed);
            let unused =
                |buffer: &mut KeptBuffer| !std::mem::take(&mut buffer.was_used) || !was_used;
            let unused = kept.buffers.extract_if(.., unused).collect();
            kept.bytes = kept.buffers.iter().map(|it| it.memory.capacity()).sum();
            unused
        };
        drop(unused);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &KeptBuffer| {
            let capacity = buffer.memory.capacity();
            (capacity / WASTE_MAX..=capacity).contains(&len)
        };
        let memory = self.buffers.remove(self.buffers.iter().rposition(fits)?).memory;
        self.bytes -= memory.capacity();
        Some(memory)
    }

    /// Removes what has been kept longest, until there is room for so many bytes.
    fn make_room(&mut self, bytes: usize) -> Vec<KeptBuffer> {
        let mut count = 0;
        for buffer in &self.buffers {
            if self.bytes + bytes <= self.bytes_max {
                break;
            }
            self.bytes -= buffer.memory.capacity();
            count += 1;
        }
        self.buffers.drain(..count).collect()
    }
}

/// Bytes whose memory goes back to its pool.
struct Pooled {
    memory: Vec<u8>,
    pool: BufferPool,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool in use.
    fn active() -> BufferPool {
        let pool = BufferPool::default();
        assert!(pool.take(POOLED_BYTES_MIN).is_none());
        pool
    }

    fn pool_with(capacities: &[usize]) -> BufferPool {
        let pool = active();
        for &capacity in capacities {
            pool.put(Vec::with_capacity(capacity));
        }
        pool
    }

    #[test]
    fn kept_memory_serves_messages_of_similar_size() {
        for (len, fits) in [(0, false), (249_999, false), (250_000, true), (1_000_000, true)] {
            let memory = pool_with(&[1_000_000]).take(len);
            assert_eq!(memory.is_some_and(|memory| memory.capacity() >= len), fits, "{len}");
        }
        assert!(pool_with(&[1_000_000]).take(1_000_001).is_none());
        let pool = pool_with(&[100_000, 1_000_000, 120_000]);
        assert_eq!(pool.take(90_000).map(|memory| memory.capacity()), Some(120_000));
        assert_eq!(pool.take(90_000).map(|memory| memory.capacity()), Some(100_000));
        assert_eq!(pool.allocate(90_000).map(|memory| memory.capacity()), Ok(90_000));
        assert_eq!(pool.bytes(), 1_000_000);
    }

    #[test]
    fn only_memory_within_bounds_is_kept() {
        for (capacity, is_kept) in [
            (POOLED_BYTES_MIN - 1, false),
            (POOLED_BYTES_MIN, true),
            (KEPT_BYTES_MAX, true),
            (KEPT_BYTES_MAX + 1, false),
        ] {
            let pool = pool_with(&[capacity]);
            assert_eq!(pool.bytes(), if is_kept { capacity } else { 0 });
        }
    }

    #[test]
    fn what_was_kept_longest_makes_room() {
        let pool = active();
        pool.set_bytes_max(300_000);
        for capacity in [100_000, 110_000, 90_000, 100_000] {
            pool.put(Vec::with_capacity(capacity));
        }
        assert_eq!(pool.bytes(), 300_000);
        pool.put(Vec::with_capacity(300_001));
        assert_eq!(pool.bytes(), 300_000);
        pool.set_bytes_max(100_000);
        assert_eq!(pool.take(100_000).map(|memory| memory.capacity()), Some(100_000));
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn shared_memory_comes_back_from_any_thread_without_its_contents() {
        let pool = active();
        let bytes = pool.share(vec![7; 200_000]);
        let (part, at) = (bytes.slice(5..9), bytes.as_ptr());
        std::thread::spawn(move || drop(bytes)).join().expect("the thread ends");
        assert_eq!((&part[..], pool.bytes()), (&[7; 4][..], 0));
        std::thread::spawn(move || drop(part)).join().expect("the thread ends");
        let memory = pool.take(150_000).expect("it was put back");
        assert_eq!((memory.len(), memory.as_ptr()), (0, at));
        drop(pool.share(vec![7; POOLED_BYTES_MIN - 1]));
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn memory_unused_between_two_calls_is_released() {
        let pool = pool_with(&[1_000_000, 100_000]);
        pool.release_unused();
        let memory = pool.take(100_000).expect("it is kept");
        pool.put(memory);
        pool.release_unused();
        assert_eq!((pool.bytes(), pool.is_active()), (100_000, true));
        pool.release_unused();
        assert_eq!((pool.bytes(), pool.is_active()), (0, false));
    }

    #[test]
    fn an_inactive_pool_keeps_nothing_until_memory_is_taken() {
        let pool = active();
        for _ in 0..2 {
            pool.release_unused();
        }
        pool.put(Vec::with_capacity(100_000));
        assert_eq!((pool.bytes(), pool.is_active()), (0, false));
        assert!(pool.take(POOLED_BYTES_MIN - 1).is_none() && !pool.is_active());
        assert!(pool.take(POOLED_BYTES_MIN).is_none() && pool.is_active());
        pool.put(Vec::with_capacity(100_000));
        assert_eq!(pool.bytes(), 100_000);
    }
}
