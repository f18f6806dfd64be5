//! A slab with a generation for each slot.
//!
//! A value is removed in two steps, because the kernel may still use it after its owner has closed
//! it: once retired, its [`Id`] is unknown; once freed, its slot is reused.

use crate::Id;

pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

/// In a cache line of its own, if it fits in one: most accesses are to one of thousands of slots,
/// which is rarely in the cache.
#[repr(align(64))]
struct Entry<T> {
    generation: u32,
    retired: bool,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    /// Inserts a value. The slot freed last is reused first, so that indices stay small.
    pub(crate) fn insert(&mut self, value: T) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, retired: false, value: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Id { index, generation: entry.generation }
    }

    /// The value that `id` names, unless it was retired.
    #[inline(always)]
    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        let entry = self.entries.get(id.index as usize)?;
        if entry.generation != id.generation || entry.retired {
            return None;
        }
        entry.value.as_ref()
    }

    /// The value that `id` names, unless it was retired.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation || entry.retired {
            return None;
        }
        entry.value.as_mut()
    }

    /// The value in a slot and its id, unless it was retired.
    #[cfg(target_os = "linux")]
    #[inline(always)]
    pub(crate) fn live_at_mut(&mut self, index: u32) -> Option<(Id, &mut T)> {
        let entry = self.entries.get_mut(index as usize)?;
        if entry.retired {
            return None;
        }
        Some((Id { index, generation: entry.generation }, entry.value.as_mut()?))
    }

    /// The value in a slot and its id, retired or not.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<(Id, &mut T)> {
        let entry = self.entries.get_mut(index as usize)?;
        Some((Id { index, generation: entry.generation }, entry.value.as_mut()?))
    }

    /// Removes the value from a slot, which gets a new generation.
    pub(crate) fn free(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.retired = false;
        self.free.push(index);
        Some(value)
    }

    /// Retires and frees in one.
    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        self.get(id)?;
        self.free(id.index)
    }

    /// All values, retired or not.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().filter_map(|entry| entry.value)
    }

    /// Values placed and not freed.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The ids of all that were not retired.
    pub(crate) fn ids(&self) -> Vec<Id> {
        let found = |(index, entry): (usize, &Entry<T>)| {
            let id = Id { index: index as u32, generation: entry.generation };
            (entry.value.is_some() && !entry.retired).then_some(id)
        };
        self.entries.iter().enumerate().filter_map(found).collect()
    }
}

/// For engines whose kernel still works on closed values.
#[cfg(any(target_os = "linux", test))]
impl<T> Slab<T> {
    /// Whether the value in a slot was retired.
    pub(crate) fn is_retired(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.retired)
    }

    /// Retires an id, and keeps its value; returns `false` if the id was unknown.
    pub(crate) fn retire(&mut self, id: Id) -> bool {
        let known = self.get(id).is_some();
        if known {
            self.entries[id.index as usize].retired = true;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_a_new_generation() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!((second.index, second.generation), (first.index, first.generation + 1));
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
    }

    #[test]
    fn a_retired_value_keeps_its_slot_until_freed() {
        let mut slab = Slab::new();
        let id = slab.insert('a');
        assert!(slab.retire(id));
        assert!(!slab.retire(id));
        assert_eq!(slab.get_mut(id), None);
        assert!(slab.is_retired(id.index));
        assert_eq!(slab.at_mut(id.index), Some((id, &mut 'a')));
        assert_ne!(slab.insert('b').index, id.index);
        assert_eq!(slab.free(id.index), Some('a'));
        assert_eq!(slab.insert('c').index, id.index);
        assert_eq!((slab.len(), slab.ids().len()), (2, 2));
    }
}
