//! Fixed limits on a server's reply.

/// Bytes of the head of one reply.
pub(super) const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Frames of one WebSocket message.
pub(super) const FRAMES_MAX: usize = 1024;
/// Heads of status 1xx before one reply.
pub(super) const INFORMATIONAL_MAX: usize = 100;
