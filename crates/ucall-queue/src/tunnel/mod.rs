//! Links through a broker of messages: numbered pieces, and credit for them.
//!
//! A broker drops messages for a reader that is too slow, and those in flight when it is killed. So
//! each message of a link starts with a byte for its kind and a number of 64 bits, little-endian. A
//! piece that is missing is detected by the number of the next one, and credit bounds what waits in
//! the broker, so that it has no reason to drop any. Over MQTT the numbers count pieces, because
//! brokers bound the number of messages, over NATS bytes, because it bounds those.
#![forbid(unsafe_code)]

mod byte_tunnel;
mod flow_control;

pub use byte_tunnel::{ByteTunnel, TunnelEvent};
pub(crate) use flow_control::{FlowControl, FlowLimits};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 9;
/// The next piece of the link follows.
pub(crate) const PIECE: u8 = 0;
/// How much the other side may send.
pub(crate) const CREDIT: u8 = 1;
/// The link has ended.
pub(crate) const CLOSE: u8 = 2;

pub(crate) fn header(kind: u8, number: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [kind; HEADER_BYTES];
    let (_, tail) = bytes.split_at_mut(1);
    tail.copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The kind and the number of a message, and what follows its header.
pub(crate) fn split_header(message: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (kind, rest) = message.split_first()?;
    let (number, rest) = rest.split_first_chunk()?;
    Some((*kind, u64::from_le_bytes(*number), rest))
}
