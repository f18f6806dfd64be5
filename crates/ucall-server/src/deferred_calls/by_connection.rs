//! The deferred calls of each connection: doubly linked lists through the slots of the registry.
//!
//! A closed connection finds its calls without a scan of the others, of which there may be
//! thousands. Connections have small indices, so a call costs a few stores and no hash, and nothing
//! is allocated once there have been as many calls.

const NO_SLOT: u32 = u32::MAX;

/// The lists, by the index of a connection.
#[derive(Debug, Default)]
pub(super) struct CallsByConnection {
    /// The slot of the newest call, by connection.
    newest: Vec<u32>,
    /// By slot.
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

impl CallsByConnection {
    /// Adds the call of `slot`, which is in no list, as the newest of `connection`.
    pub(super) fn insert(&mut self, connection: u32, slot: u32) {
        let link = Link { newer: NO_SLOT, older: self.newest_of(connection) };
        self.update_link(link.older, |older| older.newer = slot);
        *entry(&mut self.newest, connection, NO_SLOT) = slot;
        *entry(&mut self.links, slot, link) = link;
    }

    /// Removes the call of `slot`, which [`CallsByConnection::insert`] has added.
    pub(super) fn remove(&mut self, connection: u32, slot: u32) {
        let Some(&Link { newer, older }) = self.links.get(slot as usize) else { return };
        self.update_link(older, |link| link.newer = newer);
        match newer {
            NO_SLOT => *entry(&mut self.newest, connection, NO_SLOT) = older,
            _ => self.update_link(newer, |link| link.older = older),
        }
    }

    /// The slots of a connection's calls, the oldest first.
    pub(super) fn slots_of(&self, connection: u32) -> Vec<u32> {
        let is_slot = |slot: &u32| *slot != NO_SLOT;
        let older = |slot: &u32| self.links.get(*slot as usize).map(|link| link.older);
        let newest = Some(self.newest_of(connection)).filter(is_slot);
        let mut slots: Vec<u32> =
            std::iter::successors(newest, |slot| older(slot).filter(is_slot)).collect();
        slots.reverse();
        slots
    }

    fn newest_of(&self, connection: u32) -> u32 {
        self.newest.get(connection as usize).copied().unwrap_or(NO_SLOT)
    }

    fn update_link(&mut self, slot: u32, update: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(slot as usize) {
            update(link);
        }
    }
}

/// The item at `index`; the vector grows to hold it.
fn entry<T: Clone>(items: &mut Vec<T>, index: u32, empty: T) -> &mut T {
    let index = index as usize;
    if items.len() <= index {
        items.resize(index + 1, empty);
    }
    &mut items[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes a call between two others, then the newer or the older neighbour, and so on: each
    /// neighbour must have taken over the link of the removed call.
    #[test]
    fn a_list_holds_after_removals_in_any_order() {
        let orders = [[0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 0, 3], [2, 1, 3, 0], [3, 2, 1, 0]];
        for order in orders {
            let mut calls = CallsByConnection::default();
            (0..4).for_each(|slot| calls.insert(5, slot));
            let mut left = vec![0, 1, 2, 3];
            for slot in order {
                calls.remove(5, slot);
                left.retain(|&it| it != slot);
                assert_eq!(calls.slots_of(5), left, "after {slot} of {order:?}");
                let forward: Vec<u32> = left
                    .iter()
                    .map(|&slot| calls.links[slot as usize].newer)
                    .filter(|&slot| slot != NO_SLOT)
                    .collect();
                assert_eq!(forward, left.get(1..).unwrap_or_default(), "{slot} of {order:?}");
            }
            calls.insert(5, 7);
            assert_eq!(calls.slots_of(5), [7]);
        }
    }
}
