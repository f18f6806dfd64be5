//! The extension permessage-deflate (RFC 7692): what both sides agree on, and the messages of a
//! server.
//!
//! | an offer with | is |
//! |---|---|
//! | `server_no_context_takeover`, `client_no_context_takeover` | accepted; the reply has both |
//! | `client_max_window_bits`, also without a value | accepted, without a limit on the client |
//! | `server_max_window_bits` of 9 to 15 | accepted; the server's windows have that size |
//! | `server_max_window_bits` of 8, which zlib has not | declined |
//! | another parameter, one twice, or an invalid value | declined |
//!
//! The first offer that is accepted counts. Each message is compressed by itself: a connection
//! holds neither an encoder nor a decoder between messages, which together take 320 KiB.

use super::head::{Opcode, RSV1, server_head};
use crate::Compression;
use crate::coding::{Encoder, Flush};

const NAME: &[u8] = b"permessage-deflate";
/// What ends the blocks of a message, and is not sent (RFC 7692, section 7.2.1).
pub(crate) const MESSAGE_TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// The logarithms of the sizes of windows.
const WINDOW_BITS_MIN: u8 = 8;
const WINDOW_BITS_MAX: u8 = 15;
/// The smallest window of zlib.
const SERVER_WINDOW_BITS_MIN: u8 = 9;

/// The extension of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deflate {
    window_bits: u8,
    /// Whether the client has asked for these windows.
    has_window_bits: bool,
}

impl Deflate {
    /// The extension, if one of the offers of a client is acceptable.
    pub(super) fn accepted<'a>(mut offers: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        if cfg!(feature = "compression") { offers.find_map(Self::of_offer) } else { None }
    }

    fn of_offer(offer: &[u8]) -> Option<Self> {
        let mut parts = offer.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        if !parts.next()?.eq_ignore_ascii_case(NAME) {
            return None;
        }
        let mut deflate = Self { window_bits: WINDOW_BITS_MAX, has_window_bits: false };
        let mut names = Vec::new();
        for part in parts {
            let (name, value) = match part.iter().position(|&byte| byte == b'=') {
                Some(at) => (part.get(..at)?.trim_ascii(), part.get(at + 1..)),
                None => (part, None),
            };
            if names.contains(&name) {
                return None;
            }
            names.push(name);
            match (name, value) {
                (b"server_no_context_takeover" | b"client_no_context_takeover", None) => {}
                (b"client_max_window_bits", None) => {}
                (b"client_max_window_bits", Some(value)) => _ = window_bits(value)?,
                (b"server_max_window_bits", Some(value)) => {
                    deflate.window_bits = window_bits(value)?;
                    deflate.has_window_bits = true;
                }
                _ => return None,
            }
        }
        (deflate.window_bits >= SERVER_WINDOW_BITS_MIN).then_some(deflate)
    }

    /// Appends the header of the reply to the upgrade.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Sec-WebSocket-Extensions: ");
        out.extend_from_slice(NAME);
        out.extend_from_slice(b"; server_no_context_takeover; client_no_context_takeover");
        if self.has_window_bits {
            out.extend_from_slice(
                format!("; server_max_window_bits={}", self.window_bits).as_bytes(),
            );
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The value of a parameter, perhaps in quotes: a number without leading zeros.
fn window_bits(value: &[u8]) -> Option<u8> {
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"\"").and_then(|it| it.strip_suffix(b"\"")).unwrap_or(value);
    let bits: u8 = std::str::from_utf8(value).ok()?.parse().ok()?;
    let is_valid = (WINDOW_BITS_MIN..=WINDOW_BITS_MAX).contains(&bits);
    (is_valid && value.first().is_some_and(|&byte| matches!(byte, b'1'..=b'9'))).then_some(bits)
}

/// Compresses the messages of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageEncoder {
    pub(super) deflate: Deflate,
    pub(super) lengths: Compression,
}

impl MessageEncoder {
    /// The frame of a message, if it is compressed: its length is one of those, and it becomes
    /// smaller.
    pub(super) fn frame(&self, opcode: Opcode, payload: &[u8]) -> Option<Vec<u8>> {
        let Compression { bytes_min, bytes_max } = self.lengths;
        if !(bytes_min..=bytes_max).contains(&payload.len()) {
            return None;
        }
        let mut encoded = Vec::with_capacity(payload.len() / 4);
        Encoder::of_deflate(self.deflate.window_bits)?.encode(payload, Flush::Item, &mut encoded);
        let encoded = encoded.strip_suffix(&MESSAGE_TAIL)?;
        if encoded.len() >= payload.len() {
            return None;
        }
        let (mut head, head_len) = server_head(opcode, encoded.len());
        head[0] |= RSV1;
        Some([head.get(..head_len)?, encoded].concat())
    }
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use super::*;

    /// The reply to the offers of a client.
    fn reply(offers: &[&str]) -> Option<String> {
        let deflate = Deflate::accepted(offers.iter().map(|offer| offer.as_bytes()))?;
        let mut out = Vec::new();
        deflate.write(&mut out);
        Some(String::from_utf8_lossy(&out).into_owned())
    }

    #[test]
    fn acceptable_offers_are_accepted_without_context_takeover() {
        let without = "Sec-WebSocket-Extensions: permessage-deflate; \
                       server_no_context_takeover; client_no_context_takeover";
        for offer in [
            "permessage-deflate",
            "Permessage-Deflate",
            "permessage-deflate; client_max_window_bits",
            "permessage-deflate;client_max_window_bits=8",
            "permessage-deflate; client_max_window_bits=\"15\"",
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
        ] {
            assert_eq!(reply(&[offer]), Some(format!("{without}\r\n")), "{offer}");
        }
        for (bits, value) in [(9, "9"), (10, "\"10\""), (15, " 15 ")] {
            let offer = format!("permessage-deflate; server_max_window_bits={value}");
            let expected = format!("{without}; server_max_window_bits={bits}\r\n");
            assert_eq!(reply(&[&offer]), Some(expected), "{offer}");
        }
    }

    #[test]
    fn other_offers_are_declined() {
        for offer in [
            "",
            "permessage-bzip2",
            "permessage-deflate-x",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            "permessage-deflate; client_max_window_bits=7",
            "permessage-deflate; client_max_window_bits=16",
            "permessage-deflate; client_max_window_bits=08",
            "permessage-deflate; client_max_window_bits=+9",
            "permessage-deflate; client_max_window_bits=",
            "permessage-deflate; client_max_window_bits; client_max_window_bits",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=8",
            "permessage-deflate; server_max_window_bits=16",
            "permessage-deflate; unknown",
            "permessage-deflate;",
        ] {
            assert_eq!(reply(&[offer]), None, "{offer}");
        }
        let second = ["permessage-deflate; server_max_window_bits=8", "permessage-deflate"];
        assert!(reply(&second).is_some());
    }
}
