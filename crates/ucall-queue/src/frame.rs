//! The frames of a link.
//!
//! Every frame opens with a header of 24 bytes, numbers in little-endian order:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | flags: 1 for a possible repeat; the encoding of a message in bits 1 and 2 |
//! | 2, 3 | segments of a message |
//! | 4 to 7 | a magic number, so that another protocol is detected at once |
//! | 8 to 15 | number of the message; of an acknowledgement, and of a handshake, see [`Progress`] |
//! | 16 to 23 | length of the body that follows |
//!
//! A handshake has kinds of its own, so no message can be mistaken for it. Before the handshake no
//! other kind is accepted, and after it no second handshake.
#![forbid(unsafe_code)]

use std::fmt;

use crate::identity::{Identity, Incarnation};
use crate::options::Acknowledge;

/// Bytes of every header.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes of the body of a handshake.
pub(crate) const HELLO_BYTES: usize = 104;
/// Bytes of the body of an acknowledgement.
pub(crate) const PROGRESS_BYTES: usize = 24;
/// Bytes of a refusal's reason.
pub(crate) const REASON_BYTES_MAX: usize = 256;
/// Bytes of one entry of the table of segments.
pub(crate) const SEGMENT_ENTRY_BYTES: usize = 8;

/// Bytes of a [`Kind::Shared`] body before the lengths of the segments.
pub(crate) const RECORD_HEAD_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"uclQ";
const VERSION: [u8; 8] = *b"ucall-q2";
const REPEATED: u8 = 1;
// Of the last number of a handshake.
const WANTS_TAKEN: u64 = 1;
const TAKES_SHARED: u64 = 2;
const TRUSTS: u64 = 4;
const HAS_FINISHED: u64 = 8;
const WANTS_EXPLICIT: u64 = 16;
const TAKES_NAMES: u64 = 32;

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The handshake of the side that made the link.
    Hello,
    /// The handshake of the other side.
    Welcome,
    /// The other side refuses the link; the body is the reason.
    Refuse,
    /// A message.
    Data,
    /// A cancelled message, whose bytes are skipped.
    Cancelled,
    /// The messages from the number in the body to that in the header were dropped.
    Gap,
    /// No message follows. With a segment, the sender will not be started again.
    End,
    /// How far the sender has received and taken, and its window.
    Acknowledge,
    /// Asks for a [`Kind::Pong`].
    Ping,
    /// Answers a [`Kind::Ping`].
    Pong,
    /// A message in shared memory; the body has its place.
    Shared,
    /// A slot of shared memory, by its number, may be written again.
    Release,
    /// Messages wait for room in the window: taken messages are to be acknowledged at once.
    Blocked,
    /// Both sides have ended, and all messages of the client are acknowledged. The server answers
    /// with the same, after which it has forgotten the session. It also answers an end: the rest is
    /// kept for another incarnation of the side that has ended.
    Finish,
    /// The names that the sender accepts in messages; see [`crate::AcceptedNames`].
    Accepts,
    /// The program could not read the message with this number; the body is the reason.
    Rejected,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Hello,
        Self::Welcome,
        Self::Refuse,
        Self::Data,
        Self::Cancelled,
        Self::Gap,
        Self::End,
        Self::Acknowledge,
        Self::Ping,
        Self::Pong,
        Self::Shared,
        Self::Release,
        Self::Blocked,
        Self::Finish,
        Self::Accepts,
        Self::Rejected,
    ];

    fn byte(self) -> u8 {
        self as u8 + 1
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte.checked_sub(1)?)).copied()
    }
}

/// The meaning of a message's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// A serializer's stream, and its out-of-band buffers.
    Serialized,
    /// A `bytes` object.
    Bytes,
    /// A `str`, in UTF-8.
    Text,
}

impl Encoding {
    fn bits(self) -> u8 {
        (self as u8) << 1
    }

    fn from_flags(flags: u8) -> Option<Self> {
        match flags & !REPEATED {
            0 => Some(Self::Serialized),
            2 => Some(Self::Bytes),
            4 => Some(Self::Text),
            _ => None,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) encoding: Encoding,
    pub(crate) repeated: bool,
    pub(crate) segments: u16,
    pub(crate) sequence: u64,
    pub(crate) length: u64,
}

impl Header {
    /// A frame that is not a message.
    pub(crate) fn control(kind: Kind, sequence: u64, length: usize) -> Self {
        let encoding = Encoding::Serialized;
        Self { kind, encoding, repeated: false, segments: 0, sequence, length: length as u64 }
    }

    #[inline]
    pub(crate) fn write(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.byte();
        bytes[1] = self.encoding.bits() | u8::from(self.repeated);
        bytes[2..4].copy_from_slice(&self.segments.to_le_bytes());
        bytes[4..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    #[inline]
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        if bytes[4..8] != MAGIC {
            return Err(ProtocolError::WrongProtocol);
        }
        let kind = Kind::from_byte(bytes[0]).ok_or(ProtocolError::Unknown)?;
        let encoding = Encoding::from_flags(bytes[1]).ok_or(ProtocolError::Unknown)?;
        Ok(Self {
            kind,
            encoding,
            repeated: bytes[1] & REPEATED != 0,
            segments: u16::from_le_bytes([bytes[2], bytes[3]]),
            sequence: read_u64(bytes, 8),
            length: read_u64(bytes, 16),
        })
    }
}

/// Bytes of the body of a [`Kind::Shared`] frame for this number of segments.
pub(crate) fn record_bytes(segments: u16) -> u64 {
    (RECORD_HEAD_BYTES + usize::from(segments) * SEGMENT_ENTRY_BYTES) as u64
}

/// Writes a frame whose body is a reason, of which the peer gets [`REASON_BYTES_MAX`] bytes.
pub(crate) fn write_reason(kind: Kind, sequence: u64, reason: &str, output: &mut Vec<u8>) {
    let mut ends = (0..=REASON_BYTES_MAX.min(reason.len())).rev();
    let end = ends.find(|&end| reason.is_char_boundary(end));
    let reason = end.and_then(|end| reason.get(..end)).unwrap_or_default();
    output.extend(Header::control(kind, sequence, reason.len()).write());
    output.extend(reason.as_bytes());
}

/// The reason in a body. Terminals show it, so it may not hold control characters.
pub(crate) fn read_reason(body: &[u8]) -> String {
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    String::from_utf8_lossy(body).chars().map(printable).collect()
}

/// Whether `bytes` begin with a frame.
pub(crate) fn is_frame(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(&MAGIC)
}

/// Marks all messages up to `through`, in consecutive frames, as possible repeats.
pub(crate) fn mark_repeated(frames: &mut [u8], through: u64) {
    for_each_header(frames, |header, bytes| {
        if header.sequence <= through {
            bytes[1] |= REPEATED;
        }
        true
    });
}

/// Turns a message into a cancelled one without a body; returns the length of the body, or `None`
/// if the message is not among the frames.
pub(crate) fn mark_cancelled(frames: &mut Vec<u8>, sequence: u64) -> Option<usize> {
    let (mut at, mut found) = (0, None);
    for_each_header(frames, |header, bytes| {
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if header.sequence == sequence && header.kind == Kind::Data {
            let cancelled = Header::control(Kind::Cancelled, sequence, 0);
            *bytes = Header { segments: 1, ..cancelled }.write();
            found = Some(at + HEADER_BYTES..at + HEADER_BYTES + length);
        }
        at += HEADER_BYTES + length;
        header.sequence < sequence
    });
    frames.drain(found.clone()?);
    found.map(|body| body.len())
}

/// Visits our own frames until `visit` returns `false`; the last body may be in another part.
fn for_each_header(
    frames: &mut [u8],
    mut visit: impl FnMut(&Header, &mut [u8; HEADER_BYTES]) -> bool,
) {
    let mut rest = frames;
    while let Some((bytes, tail)) = rest.split_first_chunk_mut::<HEADER_BYTES>() {
        let Ok(header) = Header::read(bytes) else { return };
        if !visit(&header, bytes) {
            return;
        }
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        rest = tail.get_mut(length..).unwrap_or_default();
    }
}

/// The first of our own frames: its header, and its length with header and body.
pub(crate) fn first_frame(frames: &[u8]) -> Option<(Header, usize)> {
    let header = Header::read(frames.first_chunk()?).ok()?;
    Some((header, HEADER_BYTES + usize::try_from(header.length).ok()?))
}

/// How many of the messages among our own frames have such a number.
pub(crate) fn count_messages(frames: &[u8], is_counted: impl Fn(u64) -> bool) -> usize {
    let (mut rest, mut count) = (frames, 0);
    while let Some((header, length)) = first_frame(rest) {
        count += usize::from(header.kind == Kind::Data && is_counted(header.sequence));
        rest = rest.get(length..).unwrap_or_default();
    }
    count
}

/// The handshake, which each side sends when a link begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) identity: Identity,
    /// The sender's, of this session.
    pub(crate) incarnation: Incarnation,
    /// The receiver's, as far as the sender knows it.
    pub(crate) known_incarnation: Incarnation,
    /// How far the sender has received from the receiver, if that is known.
    pub(crate) progress: Progress,
    /// The first message that the sender keeps.
    pub(crate) oldest: u64,
    /// The longest message that the sender accepts.
    pub(crate) message_bytes_max: u64,
    /// The acknowledgements that the sender wants.
    pub(crate) wants: Acknowledge,
    /// The sender has sent [`Kind::Finish`], or would: it waits for the answer alone.
    pub(crate) has_finished: bool,
    /// The sender knows [`Kind::Accepts`] and [`Kind::Rejected`].
    pub(crate) takes_names: bool,
    pub(crate) sharing: Sharing,
}

/// What a side supports of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sharing {
    /// It accepts messages in shared memory.
    pub(crate) takes: bool,
    /// It trusts the other side not to write to memory that still has views.
    pub(crate) trusts: bool,
}

/// How far a side has received, and its window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) received: u64,
    pub(crate) taken: u64,
    /// The last message that the program has acknowledged with all before it, if the sender wants
    /// that. It is in the header.
    pub(crate) acknowledged: u64,
    /// Bytes that may be in flight and untaken.
    pub(crate) window: u64,
}

impl Hello {
    pub(crate) fn write(&self, kind: Kind, output: &mut Vec<u8>) {
        let progress = self.progress;
        output.extend(Header::control(kind, progress.acknowledged, HELLO_BYTES).write());
        output.extend(VERSION);
        output.extend(self.identity.0);
        output.extend(self.incarnation.0.to_le_bytes());
        output.extend(self.known_incarnation.0.to_le_bytes());
        let flag = |has_flag: bool, flag: u64| if has_flag { flag } else { 0 };
        let flags = flag(self.wants == Acknowledge::Taken, WANTS_TAKEN)
            | flag(self.wants == Acknowledge::Explicit, WANTS_EXPLICIT)
            | flag(self.has_finished, HAS_FINISHED)
            | flag(self.takes_names, TAKES_NAMES)
            | flag(self.sharing.takes, TAKES_SHARED)
            | flag(self.sharing.trusts, TRUSTS);
        let numbers = [
            progress.received,
            progress.taken,
            progress.window,
            self.oldest,
            self.message_bytes_max,
            flags,
        ];
        output.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }

    pub(crate) fn read(header: &Header, body: &[u8]) -> Result<Self, ProtocolError> {
        let body: &[u8; HELLO_BYTES] = body.try_into().map_err(|_| ProtocolError::Malformed)?;
        if body[..8] != VERSION {
            return Err(ProtocolError::WrongProtocol);
        }
        let mut identity = [0; 16];
        identity.copy_from_slice(&body[8..24]);
        let progress = Progress {
            received: read_u64(body, 56),
            taken: read_u64(body, 64),
            acknowledged: header.sequence,
            window: read_u64(body, 72),
        };
        let oldest = read_u64(body, 80);
        let wide = |at| {
            Incarnation(u128::from(read_u64(body, at + 8)) << 64 | u128::from(read_u64(body, at)))
        };
        let (incarnation, known_incarnation) = (wide(24), wide(40));
        let flags = read_u64(body, 96);
        let has_flag = |flag| flags & flag != 0;
        let wants = match (has_flag(WANTS_TAKEN), has_flag(WANTS_EXPLICIT)) {
            (false, false) => Acknowledge::Received,
            (true, false) => Acknowledge::Taken,
            (_, true) => Acknowledge::Explicit,
        };
        let is_received = progress.taken.max(progress.acknowledged) <= progress.received;
        if oldest == 0 || incarnation == Incarnation::UNKNOWN || !is_received {
            return Err(ProtocolError::Malformed);
        }
        Ok(Self {
            identity: Identity(identity),
            incarnation,
            known_incarnation,
            progress,
            oldest,
            message_bytes_max: read_u64(body, 88),
            wants,
            has_finished: has_flag(HAS_FINISHED),
            takes_names: has_flag(TAKES_NAMES),
            sharing: Sharing { takes: has_flag(TAKES_SHARED), trusts: has_flag(TRUSTS) },
        })
    }
}

impl Progress {
    pub(crate) fn write(&self, output: &mut Vec<u8>) {
        let header = Header::control(Kind::Acknowledge, self.acknowledged, PROGRESS_BYTES);
        output.extend(header.write());
        let numbers = [self.received, self.taken, self.window];
        output.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }

    pub(crate) fn read(header: &Header, body: &[u8]) -> Result<Self, ProtocolError> {
        let body: &[u8; PROGRESS_BYTES] = body.try_into().map_err(|_| ProtocolError::Malformed)?;
        Ok(Self {
            received: read_u64(body, 0),
            taken: read_u64(body, 8),
            acknowledged: header.sequence,
            window: read_u64(body, 16),
        })
    }
}

/// Reads a number at a position that every caller keeps within `bytes`.
#[inline]
pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut array = [0; 8];
    if let Some(slice) = bytes.get(at..at + 8) {
        array.copy_from_slice(slice);
    }
    u64::from_le_bytes(array)
}

/// A fault of the peer, for which its link is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It uses another protocol.
    WrongProtocol,
    /// An unknown kind of frame or encoding.
    Unknown,
    /// A frame whose body has a wrong length or wrong contents.
    Malformed,
    /// A frame out of place: a message before the handshake, or a second handshake.
    Unexpected,
    /// A message above the limit.
    TooLong,
    /// More messages than the window allows.
    WindowExceeded,
    /// A message with a wrong number, or an acknowledgement of a message that was not sent.
    OutOfOrder,
    /// This process has no memory for the message.
    OutOfMemory,
    /// Shared memory that does not match its frame or is not sealed.
    InvalidSharedMemory,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::WrongProtocol => "it speaks another protocol",
            Self::Unknown => "it sent a frame of an unknown kind",
            Self::Malformed => "it sent a malformed frame",
            Self::Unexpected => "it sent a frame that has no place there",
            Self::TooLong => "it sent a message longer than message_size",
            Self::WindowExceeded => "it sent more than it was given room for",
            Self::OutOfOrder => "it sent a number out of order",
            Self::OutOfMemory => "there is no memory for its message",
            Self::InvalidSharedMemory => "it sent shared memory that cannot be relied on",
        })
    }
}

impl std::error::Error for ProtocolError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_at_most_256_bytes_of_whole_characters() {
        let written = |reason: &str| {
            let mut output = Vec::new();
            write_reason(Kind::Rejected, 1, reason, &mut output);
            String::from_utf8(output.split_off(HEADER_BYTES)).unwrap()
        };
        for reason in ["", "short", &"x".repeat(256)] {
            assert_eq!(written(reason), reason);
        }
        assert_eq!(written(&"x".repeat(257)), "x".repeat(256));
        assert_eq!(
            written(&("x".to_owned() + &"é".repeat(200))),
            "x".to_owned() + &"é".repeat(127)
        );
    }

    #[test]
    fn headers_round_trip() {
        for kind in Kind::ALL {
            for encoding in [Encoding::Serialized, Encoding::Bytes, Encoding::Text] {
                let header = Header {
                    kind,
                    encoding,
                    repeated: true,
                    segments: 515,
                    sequence: u64::MAX - 1,
                    length: 1 << 40,
                };
                assert_eq!(Header::read(&header.write()), Ok(header));
            }
        }
    }

    #[test]
    fn handshakes_round_trip() {
        let hello = Hello {
            identity: Identity(*b"0123456789abcdef"),
            incarnation: Incarnation(u128::MAX - 7),
            known_incarnation: Incarnation(5),
            progress: Progress { received: 9, taken: 8, acknowledged: 6, window: 7 },
            oldest: 4,
            message_bytes_max: 3,
            wants: Acknowledge::Taken,
            has_finished: true,
            takes_names: true,
            sharing: Sharing { takes: true, trusts: false },
        };
        for wants in [Acknowledge::Received, Acknowledge::Taken, Acknowledge::Explicit] {
            let hello = Hello { wants, ..hello };
            let mut written = Vec::new();
            hello.write(Kind::Hello, &mut written);
            let (head, body) = written.split_first_chunk().unwrap();
            assert_eq!(Hello::read(&Header::read(head).unwrap(), body), Ok(hello));
        }
    }

    #[test]
    fn a_wrong_magic_is_the_wrong_protocol() {
        let mut bytes = Header::control(Kind::Ping, 0, 0).write();
        bytes[5] ^= 1;
        assert_eq!(Header::read(&bytes), Err(ProtocolError::WrongProtocol));
    }
}
