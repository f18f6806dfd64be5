//! What a protocol needs of memory that it shares with its peer.

use std::fmt;

use bytes::Bytes;

/// Where bytes are: what one side tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotPlace {
    /// The number of the slot, from 1.
    pub slot: u64,
    /// The number of the descriptor that was sent for it, from 1; 0 if the receiver has the slot.
    pub descriptor: u64,
}

/// What is wrong with shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// The peer's memory does not match what it says of it, or is not sealed.
    Invalid,
    /// This process has no memory, mappings or descriptors left.
    OutOfMemory,
}

impl fmt::Display for SharedMemoryError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Invalid => "the peer sent shared memory that cannot be relied on",
            Self::OutOfMemory => "there is no memory for what the peer shares",
        })
    }
}

impl std::error::Error for SharedMemoryError {}

/// The memory that a connection shares with its peer.
pub trait SharedMemory: fmt::Debug + Send {
    /// Copies pieces into a slot of this many bytes, each to its position; returns what to tell the
    /// peer. `None` if no slot is free, or the system refuses memory.
    ///
    /// # Errors
    /// The peer has returned a slot that it did not have.
    fn place(
        &mut self,
        bytes: u64,
        pieces: &mut dyn Iterator<Item = (u64, &[u8])>,
    ) -> Result<Option<SlotPlace>, SharedMemoryError>;

    /// The first bytes of a slot of the peer. They are in the slot, which is returned when they are
    /// dropped, if the peer is trusted; else they are a copy. Either way they may be written, and
    /// begin at a multiple of 64.
    ///
    /// # Errors
    /// The peer's memory cannot be relied on, or this process has no room.
    fn take(&mut self, place: SlotPlace, bytes: u64) -> Result<Bytes, SharedMemoryError>;
}
