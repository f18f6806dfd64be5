//! Where calls and sockets are, by their small indices.
//!
//! An entry stays after its call or socket has ended, so the reader checks what it finds there.

/// A connection of an upstream, and a slot of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    /// The index of the upstream.
    pub(crate) upstream: usize,
    /// The key of the connection.
    pub(crate) connection: u32,
    /// The slot of a call.
    pub(crate) slot: u32,
}

/// Places by index.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    pub(crate) fn set(&mut self, index: usize, place: Place) {
        if self.0.len() <= index {
            self.0.resize(index + 1, Place::default());
        }
        if let Some(entry) = self.0.get_mut(index) {
            *entry = place;
        }
    }

    /// Where something with this index was last.
    pub(crate) fn get(&self, index: usize) -> Option<Place> {
        self.0.get(index).copied()
    }
}
