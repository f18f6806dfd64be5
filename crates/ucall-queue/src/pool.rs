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
const KEPT_BYTES_MIN: usize = 64 << 10;
/// How many times its bytes a message may have in memory.
const WASTE_MAX: usize = 2;

/// Pieces of memory, as many bytes of them as it was told at most.
#[derive(Debug)]
pub(crate) struct Pool {
    kept: Mutex<Kept>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// The one used last at the end.
    pieces: Vec<Vec<u8>>,
    bytes: usize,
    /// The fewest there were since the last look, which nobody has used.
    idle: usize,
}

/// The memory of a message, which goes back to where it came from.
#[derive(Debug, Default)]
pub struct Pooled {
    memory: Vec<u8>,
    home: Weak<Pool>,
}

impl Pool {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { kept: Mutex::default(), bytes_max })
    }

    /// Empty memory for so many bytes.
    pub(crate) fn take(&self, length: usize) -> Result<Vec<u8>, TryReserveError> {
        let fits = length..=length.saturating_mul(WASTE_MAX);
        if length >= KEPT_BYTES_MIN {
            let mut kept = self.lock();
            if let Some(place) = kept.pieces.iter().rposition(|it| fits.contains(&it.capacity())) {
                let memory = kept.pieces.remove(place);
                kept.bytes -= memory.capacity();
                kept.idle = kept.idle.min(kept.pieces.len());
                return Ok(memory);
            }
        }
        let mut memory = Vec::new();
        memory.try_reserve_exact(length)?;
        Ok(memory)
    }

    /// Has the memory come back once it is let go of.
    pub(crate) fn lend(self: &Arc<Self>, memory: Vec<u8>) -> Pooled {
        let home =
            if memory.capacity() < KEPT_BYTES_MIN { Weak::new() } else { Arc::downgrade(self) };
        Pooled { memory, home }
    }

    fn give(&self, mut memory: Vec<u8>) {
        memory.clear();
        let mut kept = self.lock();
        if kept.bytes + memory.capacity() <= self.bytes_max {
            kept.bytes += memory.capacity();
            kept.pieces.push(memory);
        }
    }

    /// Lets go of what nobody has used since the last call.
    pub(crate) fn tidy(&self) {
        let mut kept = self.lock();
        let idle = kept.idle.min(kept.pieces.len());
        let gone: Vec<_> = kept.pieces.drain(..idle).collect();
        kept.bytes -= gone.iter().map(Vec::capacity).sum::<usize>();
        kept.idle = kept.pieces.len();
        // To give it back takes a while.
        drop(kept);
        drop(gone);
    }

    /// Whether there is nothing for [`Pool::tidy`] to let go of.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().pieces.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Pooled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.give(mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this size that was used and came back.
    fn used(pool: &Arc<Pool>, length: usize) -> *const u8 {
        let memory = pool.take(length).unwrap();
        let place = memory.as_ptr();
        drop(pool.lend(memory));
        place
    }

    #[test]
    fn memory_serves_again_for_messages_of_about_its_size() {
        let pool = Pool::new(1 << 20);
        let place = used(&pool, 200_000);
        let others = [99_999, 200_001].map(|length| pool.take(length).unwrap());
        assert!(others.iter().all(|other| other.as_ptr() != place));
        let again = pool.take(100_000).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(pool.is_empty());
    }

    #[test]
    fn no_more_is_kept_than_was_told() {
        let pool = Pool::new(400_000);
        let lent: Vec<_> = (0..3).map(|_| pool.lend(pool.take(200_000).unwrap())).collect();
        drop(lent);
        assert_eq!(pool.lock().pieces.len(), 2);
        drop(pool.lend(pool.take(KEPT_BYTES_MIN - 1).unwrap()));
        assert_eq!(pool.lock().bytes, 400_000);
    }

    #[test]
    fn what_lies_idle_from_one_look_to_the_next_goes() {
        let pool = Pool::new(1 << 20);
        let lent: Vec<_> = (0..3).map(|_| pool.lend(pool.take(100_000).unwrap())).collect();
        drop(lent);
        pool.tidy();
        assert_eq!(pool.lock().pieces.len(), 3);
        // Only the one used last is needed.
        used(&pool, 100_000);
        pool.tidy();
        assert_eq!(pool.lock().pieces.len(), 1);
        pool.tidy();
        assert!(pool.is_empty());
    }

    #[test]
    fn memory_outlives_its_home() {
        let pool = Pool::new(1 << 20);
        let mut memory = pool.take(100_000).unwrap();
        memory.push(7);
        let lent = pool.lend(memory);
        drop(pool);
        assert_eq!(lent[..], [7]);
    }
}
