//! The memory that one worker holds for its peers: one count, and reservations of it.
//!
//! Each part that stores bytes for a peer also owns a [`Reservation`]: a connection for its stored
//! requests and replies, the send queue for its output, a deferred call for its params. A
//! reservation releases its bytes on drop, so no code subtracts by hand. Deferred calls are dropped
//! on threads of other languages, so the count is atomic. Requests that arrive whole and are
//! answered at once reserve nothing and never touch it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use ucall_buffer::BufferPool;

/// The bytes that one worker holds. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct MemoryBudget(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    bytes: AtomicUsize,
    /// The most since [`MemoryBudget::take_peak`].
    peak: AtomicUsize,
    pool: BufferPool,
}

/// Bytes of a [`MemoryBudget`], released on drop. The default reserves nothing.
#[derive(Debug, Default)]
pub struct Reservation {
    bytes: usize,
    /// Set by the first bytes that are reserved.
    budget: Option<MemoryBudget>,
}

impl MemoryBudget {
    /// What one holder may hold without a reservation: connections and calls are limited by number,
    /// and the shared count is touched for large ones alone.
    pub const UNRESERVED_BYTES: usize = 16 << 10;

    /// Memory of large messages that the worker keeps for the next ones. It is not reserved.
    #[inline]
    pub fn pool(&self) -> &BufferPool {
        &self.0.pool
    }

    /// All reserved bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Relaxed)
    }

    /// The most bytes since the last call of [`MemoryBudget::take_peak`].
    pub fn peak(&self) -> usize {
        self.0.peak.load(Relaxed).max(self.bytes())
    }

    /// The most bytes since the last call of this function.
    pub fn take_peak(&self) -> usize {
        self.0.peak.swap(0, Relaxed).max(self.bytes())
    }

    /// Reserves `bytes` if they are more than [`Self::UNRESERVED_BYTES`], and nothing otherwise.
    #[inline]
    pub fn reserve_large(&self, bytes: usize) -> Reservation {
        let mut reservation = Reservation::default();
        if bytes > Self::UNRESERVED_BYTES {
            reservation.resize(bytes, self);
        }
        reservation
    }
}

impl Reservation {
    /// The reserved bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the reservation to `bytes` of `budget`.
    #[inline]
    pub fn resize(&mut self, bytes: usize, budget: &MemoryBudget) {
        if bytes != self.bytes {
            self.change(bytes, budget);
        }
    }

    #[cold]
    fn change(&mut self, bytes: usize, budget: &MemoryBudget) {
        let budget = self.budget.get_or_insert_with(|| budget.clone());
        // Wraps around when the reservation shrinks, which subtracts the difference.
        let added = bytes.wrapping_sub(self.bytes);
        let before = budget.0.bytes.fetch_add(added, Relaxed);
        budget.0.peak.fetch_max(before.wrapping_add(added), Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.0.bytes.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_the_sum_of_its_reservations() {
        let budget = MemoryBudget::default();
        let (mut one, mut other) = (Reservation::default(), Reservation::default());
        for (first, second) in [(10, 5), (3, 5), (3, 0), (0, 7), (100, 100)] {
            one.resize(first, &budget);
            other.resize(second, &budget.clone());
            assert_eq!((one.bytes(), budget.bytes()), (first, first + second));
        }
        drop(one);
        assert_eq!(budget.bytes(), 100);
        drop(other);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn the_peak_is_the_most_since_it_was_taken() {
        let budget = MemoryBudget::default();
        let mut held = Reservation::default();
        for (bytes, peak) in [(5, 5), (9, 9), (2, 9)] {
            held.resize(bytes, &budget);
            assert_eq!(budget.peak(), peak);
        }
        assert_eq!((budget.take_peak(), budget.peak()), (9, 2));
    }

    #[test]
    fn small_holders_reserve_nothing() {
        let budget = MemoryBudget::default();
        let max = MemoryBudget::UNRESERVED_BYTES;
        assert_eq!(budget.reserve_large(max).bytes(), 0);
        assert_eq!(budget.reserve_large(max + 1).bytes(), max + 1);
        assert_eq!(budget.bytes(), 0, "both are dropped");
    }

    #[test]
    fn another_thread_may_drop_a_reservation() {
        let budget = MemoryBudget::default();
        let held = budget.reserve_large(1 << 20);
        std::thread::spawn(move || drop(held)).join().expect("the thread ends");
        assert_eq!(budget.bytes(), 0);
    }
}
