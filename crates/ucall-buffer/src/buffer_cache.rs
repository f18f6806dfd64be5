//! Caches the memory of a large message for the next one.
//!
//! Allocators return large memory to the system, and then each page faults again for the next
//! message. The cache keeps one allocation of bounded size, only while it is in use.

/// Smaller memory costs no faults.
const CACHED_BYTES_MIN: usize = 64 << 10;
/// Larger memory is freed at once, because every worker has a cache.
pub(crate) const CACHED_BYTES_MAX: usize = 4 << 20;
/// How many times its bytes a message may have in memory.
pub(crate) const WASTE_MAX: usize = 4;

/// At most one allocation, which [`BufferCache::release_unused`] frees when it was not used.
#[derive(Debug, Default)]
pub struct BufferCache {
    memory: Option<Vec<u8>>,
    /// Whether it was used since the last call of [`BufferCache::release_unused`].
    was_used: bool,
}

impl BufferCache {
    /// Stores the memory of a message that is no longer needed, without its contents.
    pub fn put(&mut self, mut memory: Vec<u8>) {
        let kept = self.memory.as_ref().map_or(0, Vec::capacity);
        if (CACHED_BYTES_MIN.max(kept + 1)..=CACHED_BYTES_MAX).contains(&memory.capacity()) {
            memory.clear();
            self.memory = Some(memory);
            self.was_used = true;
        }
    }

    /// Empty memory for a message of `len` bytes, if the cache has some of about that size: a
    /// message must not occupy much more memory than it needs.
    pub fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fits = |memory: &mut Vec<u8>| {
            (memory.capacity() / WASTE_MAX..=memory.capacity()).contains(&len)
        };
        self.memory.take_if(fits)
    }

    /// Whether [`BufferCache::release_unused`] has memory to free.
    pub fn is_empty(&self) -> bool {
        self.memory.is_none()
    }

    /// Frees memory that was not used since the last call.
    pub fn release_unused(&mut self) {
        if !std::mem::take(&mut self.was_used) {
            self.memory = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_with(capacity: usize) -> BufferCache {
        let mut cache = BufferCache::default();
        cache.put(Vec::with_capacity(capacity));
        cache
    }

    #[test]
    fn cached_memory_serves_messages_of_similar_size() {
        for (len, fits) in [(0, false), (249_999, false), (250_000, true), (1_000_000, true)] {
            let memory = cache_with(1_000_000).take(len);
            assert_eq!(memory.is_some_and(|memory| memory.capacity() >= len), fits, "{len}");
        }
        assert!(cache_with(1_000_000).take(1_000_001).is_none());
    }

    #[test]
    fn only_memory_within_bounds_is_cached() {
        for (capacity, kept) in [
            (CACHED_BYTES_MIN - 1, false),
            (CACHED_BYTES_MIN, true),
            (CACHED_BYTES_MAX, true),
            (CACHED_BYTES_MAX + 1, false),
        ] {
            assert_eq!(cache_with(capacity).is_empty(), !kept, "{capacity}");
        }
    }

    #[test]
    fn the_larger_buffer_is_kept_without_its_contents() {
        let mut cache = BufferCache::default();
        cache.put(vec![7; 200_000]);
        cache.put(vec![7; 100_000]);
        assert_eq!(cache.take(150_000).map(|memory| memory.len()), Some(0));
    }

    #[test]
    fn memory_unused_between_two_calls_is_released() {
        let mut cache = cache_with(1_000_000);
        cache.release_unused();
        assert!(!cache.is_empty());
        cache.release_unused();
        assert!(cache.is_empty());
    }
}
