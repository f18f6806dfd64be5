//! Reads packets from bytes that arrive in any pieces.
//!
//! The bytes of a publication before our payload are kept until they are complete. The payload is
//! passed on as it arrives, from the receive buffer.
#![forbid(unsafe_code)]

use super::packet::Version;
use super::{BrokerError, HEADER_BYTES, PieceHeader};

/// The longest packet that is not a publication.
const PACKET_BYTES_MAX: usize = 64 * 1024;
/// The most bytes of a publication before its payload.
const HEAD_BYTES_MAX: usize = 256 * 1024;
const PUBLISH: u8 = 3;
const QOS: u8 = 0b0110;

/// An event of the reader.
#[derive(Debug)]
pub(super) enum ReadEvent<'a> {
    /// A whole packet that is not a publication.
    Packet(Vec<u8>),
    /// The start of a publication: its topic, and its header if it is long enough for one.
    Begin(String, Option<PieceHeader>),
    /// The next bytes of its payload.
    Payload(&'a [u8]),
    /// The end of its payload.
    End,
}

#[derive(Debug)]
pub(super) struct Reader {
    version: Version,
    /// The bytes of an incomplete packet, up to a publication's payload.
    buffered: Vec<u8>,
    /// Bytes of the payload that are missing.
    left: Option<usize>,
}

enum PacketStart {
    /// This number of bytes is needed.
    Needs(usize),
    Packet,
    /// The range of the topic, the start of the payload, and its length.
    Publication(std::ops::Range<usize>, usize, usize),
}

impl Reader {
    pub(super) fn new(version: Version) -> Self {
        Self { version, buffered: Vec::new(), left: None }
    }

    /// Removes the next event from the front of `input`; `None` once that is used up.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<ReadEvent<'a>>, BrokerError> {
        if let Some(left) = self.left {
            return Ok(self.read_payload(left, input));
        }
        loop {
            match self.parse_start()? {
                PacketStart::Needs(count) => {
                    let missing = count - self.buffered.len();
                    let (taken, rest) = input.split_at(missing.min(input.len()));
                    self.buffered.extend_from_slice(taken);
                    *input = rest;
                    if self.buffered.len() < count {
                        return Ok(None);
                    }
                }
                PacketStart::Packet => {
                    return Ok(Some(ReadEvent::Packet(std::mem::take(&mut self.buffered))));
                }
                PacketStart::Publication(topic, begin, length) => {
                    let topic = self.buffered.get(topic).unwrap_or_default();
                    let topic =
                        String::from_utf8(topic.to_vec()).map_err(|_| BrokerError::Malformed)?;
                    let header = self.buffered.get(begin..).and_then(PieceHeader::read);
                    self.left = Some(length - (self.buffered.len() - begin));
                    self.buffered.clear();
                    return Ok(Some(ReadEvent::Begin(topic, header)));
                }
            }
        }
    }

    fn read_payload<'a>(&mut self, left: usize, input: &mut &'a [u8]) -> Option<ReadEvent<'a>> {
        if left == 0 {
            self.left = None;
            return Some(ReadEvent::End);
        }
        if input.is_empty() {
            return None;
        }
        let (part, rest) = input.split_at(left.min(input.len()));
        *input = rest;
        self.left = Some(left - part.len());
        Some(ReadEvent::Payload(part))
    }

    fn parse_start(&self) -> Result<PacketStart, BrokerError> {
        let buffered = &self.buffered;
        let Some(&first) = buffered.first() else { return Ok(PacketStart::Needs(2)) };
        let Some((remaining, mut at)) = number(buffered, 1)? else {
            return Ok(PacketStart::Needs(buffered.len() + 1));
        };
        let end = at + remaining;
        if first >> 4 != PUBLISH {
            return match buffered.len() < end {
                _ if end > PACKET_BYTES_MAX => Err(BrokerError::Malformed),
                true => Ok(PacketStart::Needs(end)),
                false => Ok(PacketStart::Packet),
            };
        }
        // Our subscriptions are at QoS 0, and there is no answer to others.
        if first & QOS != 0 {
            return Err(BrokerError::Malformed);
        }
        let length = buffered.get(at..).and_then(<[u8]>::first_chunk);
        let Some(&length) = length else { return Ok(PacketStart::Needs(at + 2)) };
        let topic = at + 2..at + 2 + usize::from(u16::from_be_bytes(length));
        at = topic.end;
        if at > end {
            return Err(BrokerError::Malformed);
        }
        if self.version == Version::Five {
            let Some((properties, tail)) = number(buffered, at)? else {
                return Ok(PacketStart::Needs((at + 1).max(buffered.len() + 1)));
            };
            at = tail + properties;
        }
        let payload = end.checked_sub(at).ok_or(BrokerError::Malformed)?;
        let needed = at + if payload < HEADER_BYTES { 0 } else { HEADER_BYTES };
        match buffered.len() < needed {
            _ if needed > HEAD_BYTES_MAX => Err(BrokerError::Malformed),
            true => Ok(PacketStart::Needs(needed)),
            false => Ok(PacketStart::Publication(topic, at, payload)),
        }
    }
}

/// A number of one to four bytes, and the bytes after it; `None` if it is incomplete.
fn number(bytes: &[u8], at: usize) -> Result<Option<(usize, usize)>, BrokerError> {
    let mut value = 0;
    for index in 0..4 {
        let Some(&byte) = bytes.get(at + index) else { return Ok(None) };
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + index + 1)));
        }
    }
    Err(BrokerError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::super::packet;
    use super::*;

    /// All events of these pieces, with payloads joined.
    fn read<'a>(version: Version, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut reader = Reader::new(version);
        let (mut events, mut payload) = (Vec::new(), Vec::new());
        for mut input in pieces {
            while let Some(found) = reader.next(&mut input).unwrap() {
                match found {
                    ReadEvent::Payload(part) => payload.extend_from_slice(part),
                    ReadEvent::End => {
                        events.push(format!("payload {:?}", std::mem::take(&mut payload)))
                    }
                    other => events.push(format!("{other:?}")),
                }
            }
            assert!(input.is_empty());
        }
        events
    }

    fn stream(version: Version) -> Vec<u8> {
        let mut stream = vec![0xD0, 0x00];
        let header = b"\x00\x00\x00\x00\x00\x00\x00\x00\x07and more";
        for payload in [&b""[..], b"short", b"\xFFof a stranger", header] {
            stream.extend(packet::publish_head(version, "a/topic", payload.len()));
            stream.extend(payload);
        }
        stream.extend([0x20, 2, 0, 0]);
        stream
    }

    #[test]
    fn a_stream_reads_the_same_at_every_split() {
        for version in [Version::Five, Version::ThreeOneOne] {
            let stream = stream(version);
            let whole = read(version, [&stream[..]]);
            assert_eq!(whole.len(), 10, "{whole:?}");
            assert_eq!(read(version, stream.chunks(1)), whole);
            for cut in 0..=stream.len() {
                assert_eq!(read(version, [&stream[..cut], &stream[cut..]]), whole, "cut at {cut}");
            }
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let hostile: [&[u8]; 5] = [
            // A length of five bytes.
            &[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
            // A topic longer than the packet.
            &[0x30, 4, 0, 200, b'x', b'x'],
            // A QoS that was not subscribed to.
            &[0x32, 5, 0, 1, b'x', 0, 1],
            // Properties of 256 MiB.
            &[0x30, 0xFF, 0xFF, 0xFF, 0x7F, 0, 1, b'x', 0xF0, 0xFF, 0xFF, 0x7F],
            // A long packet that is not a publication.
            &[0x90, 0x81, 0x80, 0x04],
        ];
        for mut input in hostile {
            let mut reader = Reader::new(Version::Five);
            let mut long = vec![b'x'; 300];
            long.splice(..0, input.iter().copied());
            input = &long;
            assert!(reader.next(&mut input).is_err(), "{input:?}");
        }
    }
}
