//! The memory of a buffer that a function reads.

/// What a buffer of a param holds besides a part, as long as its call.
#[derive(Debug, Default)]
pub(crate) struct HeldBuffer {
    pub(crate) decoded: Vec<u8>,
    /// The items of an array that could not be used where they lay.
    pub(crate) items: Vec<u8>,
    pub(crate) shape: Vec<usize>,
}
