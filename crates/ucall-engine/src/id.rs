//! Names for what an engine holds.

/// Names one listener, socket or watch of one engine.
///
/// The index is small and reused, so that tables above may be plain vectors; the generation tells
/// a new holder of an index from the old one, so that what comes late reaches nobody else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id {
    /// Place in the engine's table.
    pub index: u32,
    /// Counts the holders of that place.
    pub generation: u32,
}
