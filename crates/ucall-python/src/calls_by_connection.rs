//! Which calls are of the same connection: lists through the places of calls, one a connection.
//!
//! A connection that closes finds its calls without a look at the others, of which there may be
//! thousands. Connections have small indices, so a call costs a few stores and no hash; nothing is
//! allocated once there have been as many.

/// No place.
const NONE: u32 = u32::MAX;

/// The lists, by the index of a connection.
#[derive(Default)]
pub(crate) struct CallsByConnection {
    /// The place of the youngest call of each connection.
    newest: Vec<u32>,
    /// By place.
    links: Vec<Link>,
}

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
}

impl CallsByConnection {
    /// Puts the call at that place in front of the others of its connection.
    pub(crate) fn insert(&mut self, connection: u32, slot: u32) {
        let newer = NONE;
        let older = self.newest_of(connection);
        self.link_to(older, |link| link.newer = slot);
        *at(&mut self.newest, connection, NONE) = slot;
        *at(&mut self.links, slot, Link { newer, older }) = Link { newer, older };
    }

    /// Takes it out again.
    pub(crate) fn remove(&mut self, connection: u32, slot: u32) {
        let Some(&Link { newer, older }) = self.links.get(slot as usize) else { return };
        self.link_to(older, |link| link.newer = newer);
        match newer {
            NONE => *at(&mut self.newest, connection, NONE) = older,
            _ => self.link_to(newer, |link| link.older = older),
        }
    }

    /// The places of its calls, the oldest first.
    pub(crate) fn slots_of(&self, connection: u32) -> Vec<u32> {
        let older = |slot: &u32| self.links.get(*slot as usize).map(|link| link.older);
        let is_slot = |slot: &u32| *slot != NONE;
        let first = Some(self.newest_of(connection)).filter(is_slot);
        let mut positions: Vec<u32> =
            std::iter::successors(first, |slot| older(slot).filter(is_slot)).collect();
        positions.reverse();
        positions
    }

    fn newest_of(&self, connection: u32) -> u32 {
        self.newest.get(connection as usize).copied().unwrap_or(NONE)
    }

    fn link_to(&mut self, slot: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(slot as usize) {
            change(link);
        }
    }
}

/// The item at an index, which is made if it is not there.
fn at<T: Clone>(items: &mut Vec<T>, index: u32, empty: T) -> &mut T {
    let index = index as usize;
    if items.len() <= index {
        items.resize(index + 1, empty);
    }
    &mut items[index]
}
