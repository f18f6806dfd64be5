//! Packets out of bytes that come in any pieces.
//!
//! Of a publication only what comes before our own payload is kept; the payload is handed on as it
//! comes, from where it was received.
#![forbid(unsafe_code)]

use super::packet::Version;
use super::{HEADER_BYTES, Trouble, Word};

/// What else than publications may be as long.
const PACKET_BYTES_MAX: usize = 64 * 1024;
/// What a publication may have before its payload.
const HEAD_BYTES_MAX: usize = 256 * 1024;
const PUBLISH: u8 = 3;
const QOS: u8 = 0b0110;

/// What was read.
#[derive(Debug)]
pub(super) enum Found<'a> {
    /// A whole packet that is no publication.
    Packet(Vec<u8>),
    /// A publication begins, under this topic; what it is if it is long enough to tell.
    Begin(String, Option<Word>),
    /// More of its payload.
    Payload(&'a [u8]),
    /// It was whole.
    End,
}

#[derive(Debug)]
pub(super) struct Reader {
    version: Version,
    /// What came of a packet, up to a publication's payload.
    held: Vec<u8>,
    /// Bytes of the payload that did not come yet.
    left: Option<usize>,
}

enum Measured {
    /// So many bytes are needed to tell more.
    Needs(usize),
    Packet,
    /// The topic's place, where the payload begins, and its length.
    Publication(std::ops::Range<usize>, usize, usize),
}

impl Reader {
    pub(super) fn new(version: Version) -> Self {
        Self { version, held: Vec::new(), left: None }
    }

    /// Reads on from the front of `input`, which is moved on; `None` when it is used up.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Found<'a>>, Trouble> {
        if let Some(left) = self.left {
            return Ok(self.read_payload(left, input));
        }
        loop {
            match self.measure()? {
                Measured::Needs(count) => {
                    let missing = count - self.held.len();
                    let (taken, rest) = input.split_at(missing.min(input.len()));
                    self.held.extend_from_slice(taken);
                    *input = rest;
                    if self.held.len() < count {
                        return Ok(None);
                    }
                }
                Measured::Packet => {
                    return Ok(Some(Found::Packet(std::mem::take(&mut self.held))));
                }
                Measured::Publication(topic, begin, length) => {
                    let topic = self.held.get(topic).unwrap_or_default();
                    let topic =
                        String::from_utf8(topic.to_vec()).map_err(|_| Trouble::Malformed)?;
                    let word = self.held.get(begin..).and_then(Word::read);
                    self.left = Some(length - (self.held.len() - begin));
                    self.held.clear();
                    return Ok(Some(Found::Begin(topic, word)));
                }
            }
        }
    }

    fn read_payload<'a>(&mut self, left: usize, input: &mut &'a [u8]) -> Option<Found<'a>> {
        if left == 0 {
            self.left = None;
            return Some(Found::End);
        }
        if input.is_empty() {
            return None;
        }
        let (part, rest) = input.split_at(left.min(input.len()));
        *input = rest;
        self.left = Some(left - part.len());
        Some(Found::Payload(part))
    }

    fn measure(&self) -> Result<Measured, Trouble> {
        let held = &self.held;
        let Some(&first) = held.first() else { return Ok(Measured::Needs(2)) };
        let Some((remaining, mut at)) = number(held, 1)? else {
            return Ok(Measured::Needs(held.len() + 1));
        };
        let end = at + remaining;
        if first >> 4 != PUBLISH {
            return match held.len() < end {
                _ if end > PACKET_BYTES_MAX => Err(Trouble::Malformed),
                true => Ok(Measured::Needs(end)),
                false => Ok(Measured::Packet),
            };
        }
        // We have asked for no more, and could not answer it.
        if first & QOS != 0 {
            return Err(Trouble::Malformed);
        }
        let length = held.get(at..).and_then(<[u8]>::first_chunk);
        let Some(&length) = length else { return Ok(Measured::Needs(at + 2)) };
        let topic = at + 2..at + 2 + usize::from(u16::from_be_bytes(length));
        at = topic.end;
        if at > end {
            return Err(Trouble::Malformed);
        }
        if self.version == Version::Five {
            let Some((properties, behind)) = number(held, at)? else {
                return Ok(Measured::Needs((at + 1).max(held.len() + 1)));
            };
            at = behind + properties;
        }
        let payload = end.checked_sub(at).ok_or(Trouble::Malformed)?;
        let needed = at + if payload < HEADER_BYTES { 0 } else { HEADER_BYTES };
        match held.len() < needed {
            _ if needed > HEAD_BYTES_MAX => Err(Trouble::Malformed),
            true => Ok(Measured::Needs(needed)),
            false => Ok(Measured::Publication(topic, at, payload)),
        }
    }
}

/// A number of one to four bytes, and what is behind it; `None` when it is not whole.
fn number(bytes: &[u8], at: usize) -> Result<Option<(usize, usize)>, Trouble> {
    let mut value = 0;
    for index in 0..4 {
        let Some(&byte) = bytes.get(at + index) else { return Ok(None) };
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + index + 1)));
        }
    }
    Err(Trouble::Malformed)
}

#[cfg(test)]
mod tests {
    use super::super::packet;
    use super::*;

    /// All that is read of pieces, payloads joined.
    fn read<'a>(version: Version, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut reader = Reader::new(version);
        let (mut told, mut payload) = (Vec::new(), Vec::new());
        for mut input in pieces {
            while let Some(found) = reader.next(&mut input).unwrap() {
                match found {
                    Found::Payload(part) => payload.extend_from_slice(part),
                    Found::End => told.push(format!("payload {:?}", std::mem::take(&mut payload))),
                    other => told.push(format!("{other:?}")),
                }
            }
            assert!(input.is_empty());
        }
        told
    }

    fn stream(version: Version) -> Vec<u8> {
        let mut stream = vec![0xD0, 0x00];
        let word = b"\x00\x00\x00\x00\x00\x00\x00\x00\x07and more";
        for payload in [&b""[..], b"short", b"\xFFof a stranger", word] {
            stream.extend(packet::publish_head(version, "a/topic", payload.len()));
            stream.extend(payload);
        }
        stream.extend([0x20, 2, 0, 0]);
        stream
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut() {
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
    fn lengths_that_cannot_be_are_refused() {
        let hostile: [&[u8]; 5] = [
            // A length of five bytes.
            &[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
            // A topic longer than the packet.
            &[0x30, 4, 0, 200, b'x', b'x'],
            // A quality of service that nobody asked for.
            &[0x32, 5, 0, 1, b'x', 0, 1],
            // Properties of 256 MiB.
            &[0x30, 0xFF, 0xFF, 0xFF, 0x7F, 0, 1, b'x', 0xF0, 0xFF, 0xFF, 0x7F],
            // A long packet that is no publication.
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
