//! Replaces shared memory on systems that cannot seal it: no connection has any.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use ucall_buffer::Bytes;
pub use ucall_buffer::{PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};

/// One end of a channel.
#[derive(Debug)]
pub enum Channel {}

/// The first bytes of a server on a connection.
#[derive(Debug)]
pub enum Preamble<const BYTES: usize> {
    /// With our end of the channel, if the server has made one.
    With(Option<Channel>, [u8; BYTES]),
    /// It has a descriptor that is no channel, or several.
    Invalid,
}

/// Fails, because this system has no memory that can be sealed.
///
/// # Errors
/// Always.
pub fn send_client_preamble(_connection: BorrowedFd<'_>, _preamble: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails, because this system has no memory that can be sealed.
///
/// # Errors
/// Always.
pub fn send_server_preamble(
    _connection: BorrowedFd<'_>,
    _preamble: &[u8],
) -> io::Result<Option<Channel>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails, because this system has no memory that can be sealed.
///
/// # Errors
/// Always.
pub fn receive_server_preamble<const BYTES: usize>(
    _connection: BorrowedFd<'_>,
) -> io::Result<Preamble<BYTES>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The side of a connection that has some memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// That of the client.
    Client,
    /// That of the server.
    Server,
}

/// The slots of both directions of a connection.
#[derive(Debug)]
pub enum SlotMemory {}

impl SlotMemory {
    /// Shared memory over a channel.
    pub fn new(
        channel: Channel,
        _sent_bytes_max: u64,
        _received_bytes_max: u64,
        _side: Side,
        _is_trusted: bool,
    ) -> Self {
        match channel {}
    }

    /// Copies the pieces of a message into a slot.
    ///
    /// # Errors
    /// Never: there are no slots.
    pub fn place_message(
        &mut self,
        _bytes: u64,
        _pieces: &mut dyn Iterator<Item = (u64, &[u8])>,
    ) -> Result<Option<SlotPlace>, SharedMemoryError> {
        match *self {}
    }

    /// Whether this process has room for the memory of another connection.
    pub fn has_room() -> bool {
        false
    }
}

impl SharedMemory for SlotMemory {
    fn place(
        &mut self,
        _parts: &[[&[u8]; 2]],
    ) -> Result<Option<Vec<PartPlace>>, SharedMemoryError> {
        match *self {}
    }

    fn take(&mut self, _places: &[PartPlace]) -> Result<Vec<Bytes>, SharedMemoryError> {
        match *self {}
    }

    fn reserve(&mut self, _header_bytes: usize, _bytes: usize) -> Option<Bytes> {
        match *self {}
    }
}
