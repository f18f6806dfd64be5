//! How many calls to one upstream each connection of a caller has.
//!
//! A call keeps its connection's [`Share`] until the upstream has answered it, whatever becomes of
//! the caller meanwhile, so the number of holders is that of calls.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use ucall_engine::Id;

/// Each call of one connection has one.
pub(crate) type Share = Rc<()>;

/// Connections without calls that are kept, beside as many as have some.
const CACHED_MAX: usize = 64;

/// The shares of one upstream's callers.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    shares: HashMap<Id, Share, BuildHasherDefault<IdHasher>>,
    /// Above this, those without calls are removed.
    len_max: usize,
}

impl Shares {
    /// Calls of a connection.
    pub(crate) fn calls(&self, caller: Id) -> usize {
        self.shares.get(&caller).map_or(0, |share| Rc::strong_count(share) - 1)
    }

    /// The share of a connection, for another call.
    pub(crate) fn of(&mut self, caller: Id) -> Share {
        if self.shares.len() > self.len_max {
            self.shares.retain(|_, share| Rc::strong_count(share) > 1);
            self.len_max = 2 * self.shares.len() + CACHED_MAX;
        }
        self.shares.entry(caller).or_default().clone()
    }
}

/// Engines choose the ids, so that none collide on purpose.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // A table uses the highest bits and the lowest ones.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32, generation: u32) -> Id {
        Id { index, generation }
    }

    #[test]
    fn calls_are_counted_until_they_end() {
        let mut shares = Shares::default();
        let calls: Vec<Share> = (0..3).map(|_| shares.of(id(7, 1))).collect();
        let other = shares.of(id(7, 2));
        assert_eq!((shares.calls(id(7, 1)), shares.calls(id(7, 2))), (3, 1));
        assert_eq!(shares.calls(id(7, 3)), 0, "a new connection in the place of another");
        drop(calls);
        assert_eq!((shares.calls(id(7, 1)), shares.calls(id(7, 2))), (0, 1));
        drop(other);
    }

    #[test]
    fn connections_without_calls_are_forgotten() {
        let mut shares = Shares::default();
        let held: Vec<Share> = (0..100).map(|index| shares.of(id(index, 0))).collect();
        for generation in 1..100 {
            for index in 0..100 {
                drop(shares.of(id(index, generation)));
            }
            assert!(shares.shares.len() <= 2 * held.len() + CACHED_MAX + 1);
        }
        assert!((0..100).all(|index| shares.calls(id(index, 0)) == 1));
    }
}
