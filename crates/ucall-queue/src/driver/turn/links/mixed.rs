//! Two sides of which only one speaks of shared memory, as the first bytes of a Unix socket tell.
#![forbid(unsafe_code)]

use std::io;

use crate::frame;
#[cfg(target_os = "linux")]
use crate::shared::{is_greeting, is_knock, knock_bytes};

/// What the log and this side's people are told, and what the other side is.
const SHARED_IS_NOT_SPOKEN: (&str, &str) = (
    "the other side says Protocol.SHM, and this one Protocol.UNIX: both have to say the same",
    "Protocol.UNIX is spoken here, not Protocol.SHM: both sides have to say the same",
);
pub(super) const UNIX_IS_SPOKEN: &str =
    "the other side says Protocol.UNIX, and this one Protocol.SHM: both have to say the same";
const SHARED_IS_SPOKEN: &str =
    "Protocol.SHM is spoken here, not Protocol.UNIX: both sides have to say the same";

/// What comes first on a connection.
pub(super) enum Opening {
    /// What should, behind so many bytes that are no frames.
    AsExpected(usize),
    /// What this side is told, and the other one.
    Mixed(&'static str, &'static str),
}

/// Of what a client says to a server with shared memory, which has heard so much of its knock.
pub(super) fn of_shared_client(bytes: &[u8], knocked_bytes: &mut usize) -> Opening {
    match knock_bytes(*knocked_bytes, bytes) {
        Some(passed) => {
            *knocked_bytes += passed;
            Opening::AsExpected(passed)
        }
        None if frame::is_ours(bytes) => Opening::Mixed(UNIX_IS_SPOKEN, SHARED_IS_SPOKEN),
        None => Opening::AsExpected(0),
    }
}

/// Of what a client says first to any other server.
pub(super) fn of_client(first: &[u8]) -> Opening {
    match is_knock(first) {
        true => Opening::Mixed(SHARED_IS_NOT_SPOKEN.0, SHARED_IS_NOT_SPOKEN.1),
        false => Opening::AsExpected(0),
    }
}

/// Of what a server says first, where that is to be frames.
pub(super) fn of_server(first: &[u8]) -> Opening {
    match is_greeting(first) {
        true => Opening::Mixed(SHARED_IS_NOT_SPOKEN.0, SHARED_IS_NOT_SPOKEN.1),
        false => Opening::AsExpected(0),
    }
}

/// Whether somebody was to greet and has sent frames.
pub(super) fn is_told_by(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

#[cfg(not(target_os = "linux"))]
fn knock_bytes(_before: usize, _bytes: &[u8]) -> Option<usize> {
    Some(0)
}

#[cfg(not(target_os = "linux"))]
fn is_knock(_first: &[u8]) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn is_greeting(_first: &[u8]) -> bool {
    false
}
