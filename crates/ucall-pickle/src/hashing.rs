//! Keys and members: what hashing and comparing them costs.

use hashbrown::HashMap;

use crate::error::Error;
use crate::reader::{Reader, Step};
use crate::stack::{Alike, HashCounts};
use crate::{Builder, Hash};

impl<B: Builder> Reader<'_, B> {
    /// Charges for a key or member before it is hashed, and counts those of its hash. Returns what
    /// comparing it with those may cost.
    #[inline(always)]
    pub(crate) fn check_key(&mut self, at: usize, container: usize) -> Step<B, u64> {
        let (Some(entry), Some(object)) = (self.stack.get(at), self.objects.get(at)) else {
            return Err(Error::Stack.into());
        };
        let facts = entry.facts;
        if !facts.is_hashable {
            return Err(Error::Unhashable.into());
        }
        // It is hashed here and once more where it is put in.
        self.budget.hash(2 * u64::from(facts.weight))?;
        match self.builder.hash(object)? {
            Hash::Distinct => Ok(0),
            Hash::Shared(hash) => self.compare(hash, facts.weight, container),
        }
    }

    fn compare(&mut self, hash: i64, weight: u32, container: usize) -> Step<B, u64> {
        if self.hash_counts.last().is_none_or(|counts| counts.container != container) {
            self.hash_counts.push(HashCounts { container, alike: HashMap::new() });
        }
        let Some(counts) = self.hash_counts.last_mut() else { return Err(Error::Stack.into()) };
        let alike = counts.alike.entry(hash).or_default();
        let Alike { count, weight: others } = *alike;
        alike.count = count.saturating_add(1);
        alike.weight = others.saturating_add(u64::from(weight));
        if count == 0 {
            return Ok(0);
        }
        if count >= self.limits.alike_max {
            return Err(Error::Alike.into());
        }
        self.builder.before_comparing()?;
        // With each of the others it takes as long as the heavier of both.
        let cost = u64::from(weight).saturating_mul(u64::from(count)).saturating_add(others);
        self.budget.hash(cost)?;
        Ok(cost)
    }
}
