//! The preambles of a link in shared memory.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use ucall_engine::shared::{self, Channel, Preamble};

use crate::frame;

const SERVER_PREAMBLE: [u8; 16] = *b"ucall-q1 memory\n";
const CLIENT_PREAMBLE: [u8; 16] = *b"ucall-q1 shared\n";

/// Sends the preamble of a client.
pub(crate) fn send_client_preamble(connection: BorrowedFd<'_>) -> io::Result<()> {
    shared::send_client_preamble(connection, &CLIENT_PREAMBLE)
}

/// The number of these bytes that continue a client's preamble, of which `before` were received;
/// `None` if they do not continue it.
pub(crate) fn match_client_preamble(before: usize, bytes: &[u8]) -> Option<usize> {
    let rest = CLIENT_PREAMBLE.get(before..).unwrap_or_default();
    let count = rest.len().min(bytes.len());
    (rest.get(..count) == bytes.get(..count)).then_some(count)
}

/// Whether the first bytes of a connection are a preamble.
pub(crate) fn is_preamble(first: &[u8]) -> bool {
    first.starts_with(&CLIENT_PREAMBLE) || first.starts_with(&SERVER_PREAMBLE)
}

/// Sends the preamble of a server; returns its end of the channel, if there is one.
pub(crate) fn send_preamble(connection: BorrowedFd<'_>) -> io::Result<Option<Channel>> {
    shared::send_server_preamble(connection, &SERVER_PREAMBLE)
}

/// Receives the preamble of a server; `WouldBlock` until it has arrived.
pub(crate) fn receive_preamble(connection: BorrowedFd<'_>) -> io::Result<Option<Channel>> {
    match shared::receive_server_preamble(connection)? {
        Preamble::With(_, preamble) if frame::is_frame(&preamble) => {
            Err(io::ErrorKind::Unsupported.into())
        }
        Preamble::With(channel, SERVER_PREAMBLE) => Ok(channel),
        Preamble::With(..) | Preamble::Invalid => Err(io::ErrorKind::InvalidData.into()),
    }
}
