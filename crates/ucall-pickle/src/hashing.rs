//! Charges for hashing and comparing the keys of dicts and the members of sets.

use hashbrown::HashMap;

use crate::error::Error;
use crate::reader::{Reader, Step};
use crate::stack::{Collisions, HashCounts};
use crate::{Builder, Hash};

impl<B: Builder> Reader<'_, B> {
    /// Charges for hashing a key or member and counts those that share its hash. Returns the cost
    /// of comparing it with them.
    #[inline(always)]
    pub(crate) fn check_key(&mut self, at: usize, container: usize) -> Step<B, u64> {
        let (Some(entry), Some(object)) = (self.stack.get(at), self.objects.get(at)) else {
            return Err(Error::Stack.into());
        };
        let extent = entry.extent;
        if !extent.is_hashable {
            return Err(Error::Unhashable.into());
        }
        // The key is hashed here and again when it is inserted.
        self.budget.hash(2 * u64::from(extent.weight))?;
        match self.builder.hash(object)? {
            Hash::Distinct => Ok(0),
            Hash::Shared(hash) => self.compare(hash, extent.weight, container),
        }
    }

    fn compare(&mut self, hash: i64, weight: u32, container: usize) -> Step<B, u64> {
        if self.hash_counts.last().is_none_or(|counts| counts.container != container) {
            self.hash_counts.push(HashCounts { container, collisions: HashMap::new() });
        }
        let Some(counts) = self.hash_counts.last_mut() else { return Err(Error::Stack.into()) };
        let collisions = counts.collisions.entry(hash).or_default();
        let Collisions { count, weight: others } = *collisions;
        collisions.count = count.saturating_add(1);
        collisions.weight = others.saturating_add(u64::from(weight));
        if count == 0 {
            return Ok(0);
        }
        if count >= self.limits.collisions_max {
            return Err(Error::Collisions.into());
        }
        self.builder.before_comparing()?;
        // A comparison costs at most as much as the heavier of the two keys.
        let cost = u64::from(weight).saturating_mul(u64::from(count)).saturating_add(others);
        self.budget.hash(cost)?;
        Ok(cost)
    }
}
