//! Which calls are of the same connection: lists through the places of calls, one a connection.
//!
//! A connection that closes finds its calls without a look at the others, of which there may be
//! thousands. Connections have small indices, so a call costs a few stores and no hash; nothing is
//! allocated once there have been as many.

/// No place.
const NONE: u32 = u32::MAX;

/// The lists, by the index of a connection.
#[derive(Default)]
pub(crate) struct Siblings {
    /// The place of the youngest call of each connection.
    youngest: Vec<u32>,
    /// By place.
    links: Vec<Link>,
}

#[derive(Clone, Copy)]
struct Link {
    younger: u32,
    older: u32,
}

impl Siblings {
    /// Puts the call at that place in front of the others of its connection.
    pub(crate) fn insert(&mut self, connection: u32, place: u32) {
        let younger = NONE;
        let older = self.youngest_of(connection);
        self.link_to(older, |link| link.younger = place);
        *at(&mut self.youngest, connection, NONE) = place;
        *at(&mut self.links, place, Link { younger, older }) = Link { younger, older };
    }

    /// Takes it out again.
    pub(crate) fn remove(&mut self, connection: u32, place: u32) {
        let Some(&Link { younger, older }) = self.links.get(place as usize) else { return };
        self.link_to(older, |link| link.younger = younger);
        match younger {
            NONE => *at(&mut self.youngest, connection, NONE) = older,
            _ => self.link_to(younger, |link| link.older = older),
        }
    }

    /// The places of its calls, the oldest first.
    pub(crate) fn of(&self, connection: u32) -> Vec<u32> {
        let older = |place: &u32| self.links.get(*place as usize).map(|link| link.older);
        let is_place = |place: &u32| *place != NONE;
        let first = Some(self.youngest_of(connection)).filter(is_place);
        let mut places: Vec<u32> =
            std::iter::successors(first, |place| older(place).filter(is_place)).collect();
        places.reverse();
        places
    }

    fn youngest_of(&self, connection: u32) -> u32 {
        self.youngest.get(connection as usize).copied().unwrap_or(NONE)
    }

    fn link_to(&mut self, place: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(place as usize) {
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
