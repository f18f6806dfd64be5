//! Detects from the first bytes of a Unix socket that only one side uses shared memory.
#![forbid(unsafe_code)]

use std::io;

use crate::frame;
#[cfg(target_os = "linux")]
use crate::shared::{is_client_preamble, is_server_preamble, match_client_preamble};

/// The reason for this side's program and log, and the reason that the peer gets.
const MISSING_SHARED: (&str, &str) = (
    "the other side says Protocol.SHM, and this one Protocol.UNIX: both have to say the same",
    "Protocol.UNIX is spoken here, not Protocol.SHM: both sides have to say the same",
);
pub(super) const PEER_USES_UNIX: &str =
    "the other side says Protocol.UNIX, and this one Protocol.SHM: both have to say the same";
const PEER_USES_SHARED: &str =
    "Protocol.SHM is spoken here, not Protocol.UNIX: both sides have to say the same";

/// What the first bytes of a connection are.
pub(super) enum FirstBytes {
    /// Frames, after this number of bytes of a preamble.
    Expected(usize),
    /// The protocol of a peer that does not match: the reason here, and that for the peer.
    Mismatch(&'static str, &'static str),
}

/// Classifies the bytes of a client at a server with shared memory, which has received
/// `preamble_bytes` of its preamble.
pub(super) fn of_shared_client(bytes: &[u8], preamble_bytes: &mut usize) -> FirstBytes {
    match match_client_preamble(*preamble_bytes, bytes) {
        Some(passed) => {
            *preamble_bytes += passed;
            FirstBytes::Expected(passed)
        }
        None if frame::is_frame(bytes) => FirstBytes::Mismatch(PEER_USES_UNIX, PEER_USES_SHARED),
        None => FirstBytes::Expected(0),
    }
}

/// Classifies the first bytes of a client at any other server.
pub(super) fn of_client(first: &[u8]) -> FirstBytes {
    match is_client_preamble(first) {
        true => FirstBytes::Mismatch(MISSING_SHARED.0, MISSING_SHARED.1),
        false => FirstBytes::Expected(0),
    }
}

/// Classifies the first bytes of a server without shared memory.
pub(super) fn of_server(first: &[u8]) -> FirstBytes {
    match is_server_preamble(first) {
        true => FirstBytes::Mismatch(MISSING_SHARED.0, MISSING_SHARED.1),
        false => FirstBytes::Expected(0),
    }
}

/// Whether a server sent frames in place of its preamble.
pub(super) fn is_mismatch(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

#[cfg(not(target_os = "linux"))]
fn match_client_preamble(_before: usize, _bytes: &[u8]) -> Option<usize> {
    Some(0)
}

#[cfg(not(target_os = "linux"))]
fn is_client_preamble(_first: &[u8]) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn is_server_preamble(_first: &[u8]) -> bool {
    false
}
