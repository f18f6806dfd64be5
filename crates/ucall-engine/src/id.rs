//! Identifiers of an engine's objects.

/// Identifies one listener, socket or watch of one engine.
///
/// The index is small and reused, so that the layers above can use plain vectors. The generation
/// distinguishes the objects that have used an index, so that late events do not reach another
/// object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id {
    /// Place in the engine's table.
    pub index: u32,
    /// Counts the objects that have used the index.
    pub generation: u32,
}
