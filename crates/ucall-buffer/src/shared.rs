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

/// Where a part of a message is: what one side tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartPlace {
    /// The side that has made the slot.
    pub owner: SlotOwner,
    /// The slot, and the descriptor of one that the receiver does not have.
    pub slot: SlotPlace,
    /// Where the part begins in the slot.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

/// The side that has made a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotOwner {
    /// The sender of the message.
    Sender,
    /// Its receiver, who has lent it to the sender.
    Receiver,
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
    /// Places parts, each a header and its bytes, and returns what to tell the peer. Bytes that
    /// lie in a slot already stay there if the slot may pass to the peer. All others are copied
    /// into one slot, each to a multiple of 64. `None` if no slot is free, or the system refuses
    /// memory.
    ///
    /// # Errors
    /// The peer has returned a slot that it did not have.
    fn place(&mut self, parts: &[[&[u8]; 2]]) -> Result<Option<Vec<PartPlace>>, SharedMemoryError>;

    /// The parts in slots. They are in the slot, which is returned when they are dropped, if the
    /// peer is trusted; else they are copies. Either way they may be written, and begin at a
    /// multiple of 64.
    ///
    /// # Errors
    /// The peer's memory cannot be relied on, or this process has no room.
    fn take(&mut self, places: &[PartPlace]) -> Result<Vec<Bytes>, SharedMemoryError>;

    /// Memory in a slot of ours for a program to fill, behind room for a header of that length.
    /// `None` if there is no room.
    fn reserve(&mut self, header_bytes: usize, bytes: usize) -> Option<Bytes>;
}
