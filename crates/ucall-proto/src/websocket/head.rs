//! The head of a frame (RFC 6455, section 5.2).
//!
//! ```text
//! FIN RSV1-3 opcode | MASK length | 0, 2 or 8 bytes of length | masking key
//! 1   3      4      | 1    7      |                           | 32 bits
//! ```

use super::error::WebSocketError;

const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
/// The reserved bit of the first frame of a compressed message (RFC 7692, section 6).
pub(super) const RSV1: u8 = 0x40;
/// The longest head of a client.
const CLIENT_HEAD_MAX: usize = SERVER_HEAD_MAX + 4;
pub(super) const MASK: u8 = 0x80;
/// The first byte of a text message in one frame.
pub(super) const FINAL_TEXT: u8 = FINAL | 0x1;
/// The length of a client's head without an extended length.
pub(super) const SHORT_HEAD_LEN: usize = 6;
/// The largest payload of a control frame, and of a head without an extended length.
pub(super) const SHORT_MAX: usize = 125;
/// In place of a length: it follows in two bytes, or in eight.
const IN_TWO_BYTES: u8 = 126;
const IN_EIGHT_BYTES: u8 = 127;
/// The longest head without a key, as a server writes it.
pub(super) const SERVER_HEAD_MAX: usize = 10;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// The next fragment of a message.
    Continuation,
    /// Text, or its first fragment.
    Text,
    /// Bytes, or their first fragment.
    Binary,
    /// The last frame of its sender.
    Close,
    /// A request for a Pong.
    Ping,
    /// The reply to a Ping, or a sign of life.
    Pong,
}

impl Opcode {
    fn parse(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xA => Self::Pong,
            _ => return None,
        })
    }

    fn bits(self) -> u8 {
        match self {
            Self::Continuation => 0x0,
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xA,
        }
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The head of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub opcode: Opcode,
    pub is_final: bool,
    pub payload_len: usize,
    /// Zeros in a server's frame, which has none.
    pub key: [u8; 4],
    /// The bytes of the head itself.
    pub len: usize,
}

impl FrameHead {
    /// Reads the head that `input` starts with, or returns `None` if it is incomplete. The frames
    /// of a client are masked, those of a server are not.
    #[inline(always)]
    pub(super) fn parse<const MASKED: bool>(input: &[u8]) -> Result<Option<Self>, WebSocketError> {
        let Some((&first, rest)) = input.split_first() else { return Ok(None) };
        if first & RESERVED != 0 {
            return Err(WebSocketError::ReservedBits);
        }
        let opcode = Opcode::parse(first & 0xF).ok_or(WebSocketError::UnknownOpcode)?;
        let is_final = first & FINAL != 0;
        if opcode.is_control() && !is_final {
            return Err(WebSocketError::ControlFragmented);
        }
        let Some((&second, rest)) = rest.split_first() else { return Ok(None) };
        match (second & MASK != 0, MASKED) {
            (false, true) => return Err(WebSocketError::Unmasked),
            (true, false) => return Err(WebSocketError::Masked),
            _ => {}
        }
        let short = second & !MASK;
        if opcode.is_control() && usize::from(short) > SHORT_MAX {
            return Err(WebSocketError::ControlTooLarge);
        }
        let Some((payload_len, rest)) = read_length(short, rest)? else { return Ok(None) };
        let len = input.len() - rest.len();
        if !MASKED {
            return Ok(Some(Self { opcode, is_final, payload_len, key: [0; 4], len }));
        }
        let Some(&key) = rest.first_chunk() else { return Ok(None) };
        let len = len + key.len();
        Ok(Some(Self { opcode, is_final, payload_len, key, len }))
    }
}

impl FrameHead {
    /// Parses the head of the first frame of a compressed message, which has no other reserved bit.
    pub(super) fn parse_compressed(input: &[u8]) -> Result<Option<Self>, WebSocketError> {
        let mut copy = [0; CLIENT_HEAD_MAX];
        let len = copy.len().min(input.len());
        let (head, _) = copy.split_at_mut(len);
        head.copy_from_slice(input.get(..len).unwrap_or_default());
        if let Some(first) = head.first_mut() {
            *first &= !RSV1;
        }
        let parsed = Self::parse::<true>(head)?;
        match parsed {
            Some(Self { opcode: Opcode::Text | Opcode::Binary, .. }) | None => Ok(parsed),
            // Neither a control frame nor a continuation has the bit.
            Some(_) => Err(WebSocketError::ReservedBits),
        }
    }
}

/// Reads the extended length, if `short` announces one; returns what follows it, too.
#[inline(always)]
fn read_length(short: u8, rest: &[u8]) -> Result<Option<(usize, &[u8])>, WebSocketError> {
    match short {
        IN_TWO_BYTES => {
            let Some((bytes, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let len = usize::from(u16::from_be_bytes(*bytes));
            if len <= SHORT_MAX {
                return Err(WebSocketError::LengthMalformed);
            }
            Ok(Some((len, rest)))
        }
        IN_EIGHT_BYTES => {
            let Some((bytes, rest)) = rest.split_first_chunk() else { return Ok(None) };
            let len = u64::from_be_bytes(*bytes);
            if len <= u64::from(u16::MAX) || len > i64::MAX as u64 {
                return Err(WebSocketError::LengthMalformed);
            }
            // A length that is no `usize` exceeds every limit.
            Ok(Some((usize::try_from(len).unwrap_or(usize::MAX), rest)))
        }
        short => Ok(Some((usize::from(short), rest))),
    }
}

/// The head of a frame of a server with a payload of at most [`SHORT_MAX`] bytes.
#[inline]
pub(super) fn short_head(opcode: Opcode, payload_len: usize) -> [u8; 2] {
    [FINAL | opcode.bits(), payload_len as u8]
}

/// The head of a frame of a server, and its length.
pub(super) fn server_head(opcode: Opcode, payload_len: usize) -> ([u8; SERVER_HEAD_MAX], usize) {
    let mut head = [0; SERVER_HEAD_MAX];
    head[..2].copy_from_slice(&short_head(opcode, payload_len));
    let len = server_head_len(payload_len);
    match len {
        2 => {}
        4 => {
            head[1] = IN_TWO_BYTES;
            head[2..4].copy_from_slice(&(payload_len as u16).to_be_bytes());
        }
        _ => {
            head[1] = IN_EIGHT_BYTES;
            head[2..].copy_from_slice(&(payload_len as u64).to_be_bytes());
        }
    }
    (head, len)
}

fn server_head_len(payload_len: usize) -> usize {
    match payload_len {
        0..=SHORT_MAX => 2,
        _ if payload_len <= usize::from(u16::MAX) => 4,
        _ => SERVER_HEAD_MAX,
    }
}
