//! Two sides of which only one speaks of shared memory, as the first bytes of a Unix socket tell.
#![forbid(unsafe_code)]

use std::io;

use crate::frame;
#[cfg(target_os = "linux")]
use crate::shared::{is_client_preamble, is_server_preamble, match_client_preamble};

/// What the log and this side's people are told, and what the other side is.
const MISSING_SHARED: (&str, &str) = (
    "the other side says Protocol.SHM, and this one Protocol.UNIX: both have to say the same",
    "Protocol.UNIX is spoken here, not Protocol.SHM: both sides have to say the same",
);
pub(super) const PEER_USES_UNIX: &str =
    "the other side says Protocol.UNIX, and this one Protocol.SHM: both have to say the same";
const PEER_USES_SHARED: &str =
    "Protocol.SHM is spoken here, not Protocol.UNIX: both sides have to say the same";

/// What comes first on a connection.
pub(super) enum FirstBytes {
    /// What should, behind so many bytes that are no frames.
    Expected(usize),
    /// What this side is told, and the other one.
    Mismatch(&'static str, &'static str),
}

/// Of what a client says to a server with shared memory, which has heard so much of its knock.
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

/// Of what a client says first to any other server.
pub(super) fn of_client(first: &[u8]) -> FirstBytes {
    match is_client_preamble(first) {
        true => FirstBytes::Mismatch(MISSING_SHARED.0, MISSING_SHARED.1),
        false => FirstBytes::Expected(0),
    }
}

/// Of what a server says first, where that is to be frames.
pub(super) fn of_server(first: &[u8]) -> FirstBytes {
    match is_server_preamble(first) {
        true => FirstBytes::Mismatch(MISSING_SHARED.0, MISSING_SHARED.1),
        false => FirstBytes::Expected(0),
    }
}

/// Whether somebody was to greet and has sent frames.
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
