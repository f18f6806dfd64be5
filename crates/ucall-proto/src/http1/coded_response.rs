//! The body of a response in a content coding, decoded piece by piece.
//!
//! A few bytes may be decoded to many. So a body as a whole has a limit, which applies after each
//! piece. Of a body that its reader takes in parts, such as a stream, the limit is that of what was
//! received at once, or 100 times its length if that is more.

use std::mem;

use super::response_head::ResponseError;
use crate::coding::{Coding, DecodeError, Decoder};

/// The most that a step decodes.
const PIECE_BYTES: usize = 64 << 10;
/// What is received of a stream at once may be decoded to this much, times its length.
const STREAM_RATIO_MAX: usize = 100;

/// A body in a coding.
#[derive(Debug)]
pub(super) struct CodedResponse {
    decoder: Decoder,
    encoded: Vec<u8>,
    /// How many of the encoded bytes are decoded.
    used: usize,
    /// Whether the decoder has a part that did not fit into the last piece.
    has_more: bool,
    /// Whether no more is received.
    has_ended: bool,
    /// Whether nothing was received.
    is_empty: bool,
    decoded: Vec<u8>,
    /// The bytes that were decoded since encoded ones were appended.
    decoded_at_once: usize,
}

impl CodedResponse {
    pub(super) fn new(coding: Coding) -> Option<Self> {
        Some(Self {
            decoder: Decoder::new(coding)?,
            encoded: Vec::new(),
            used: 0,
            has_more: false,
            has_ended: false,
            is_empty: true,
            decoded: Vec::new(),
            decoded_at_once: 0,
        })
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.encoded.capacity() + self.decoded.capacity() + self.decoder.held_bytes()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn has_undecoded(&self) -> bool {
        self.has_more || self.used < self.encoded.len()
    }

    pub(super) fn has_decoded(&self) -> bool {
        !self.decoded.is_empty()
    }

    /// Adds what was received, after all before it is decoded.
    pub(super) fn append(&mut self, encoded: &[u8], has_ended: bool) {
        self.encoded.clear();
        self.encoded.extend_from_slice(encoded);
        (self.used, self.decoded_at_once) = (0, 0);
        self.has_ended = has_ended;
        self.is_empty &= encoded.is_empty();
    }

    /// Decodes a piece.
    ///
    /// # Errors
    /// It is no data of its coding, or there is more of it than the limit.
    pub(super) fn decode_piece(
        &mut self,
        bytes_max: usize,
        is_stream: bool,
    ) -> Result<(), ResponseError> {
        let before = self.decoded.len();
        self.decoded.reserve_exact(PIECE_BYTES);
        let rest = self.encoded.get(self.used..).unwrap_or_default();
        let decoded =
            self.decoder.decode(rest, &mut self.decoded).map_err(|error| match error {
                DecodeError::Malformed => malformed(),
                DecodeError::WindowTooLarge => {
                    ResponseError::Invalid("zstd with a window of more than 8 MiB".to_owned())
                }
            })?;
        let piece = self.decoded.len() - before;
        if decoded.used == 0 && piece == 0 && !rest.is_empty() {
            return Err(malformed());
        }
        self.used += decoded.used;
        self.has_more = decoded.has_more;
        self.decoded_at_once += piece;
        let is_too_large = match is_stream {
            true => {
                let allowed = self.encoded.len().saturating_mul(STREAM_RATIO_MAX);
                self.decoded_at_once > allowed.max(bytes_max)
            }
            false => self.decoded.len() > bytes_max,
        };
        if is_too_large { Err(ResponseError::BodyTooLarge(bytes_max)) } else { Ok(()) }
    }

    pub(super) fn take_decoded(&mut self) -> Vec<u8> {
        mem::take(&mut self.decoded)
    }

    /// The body, after all that was received is decoded. One without any bytes is empty.
    ///
    /// # Errors
    /// It is not whole.
    pub(super) fn finish(self) -> Result<Vec<u8>, ResponseError> {
        match self.is_empty || (self.decoder.is_at_end() && !self.has_undecoded()) {
            true => Ok(self.decoded),
            false => Err(malformed()),
        }
    }
}

#[cold]
fn malformed() -> ResponseError {
    ResponseError::Invalid("HTTP with a compressed body that is no whole data".to_owned())
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use super::super::{ResponsePart, ResponseReader};
    use super::*;
    use crate::coding::{Encoder, Flush};

    const LIMIT: usize = 300_000;

    fn encoded(coding: Coding, parts: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(mut encoder) = Encoder::of_stream(coding) else { panic!("no memory") };
        parts.iter().for_each(|part| encoder.encode(part, Flush::Item, &mut out));
        encoder.encode(b"", Flush::End, &mut out);
        out
    }

    fn response(coding: Coding, framing: &str, body: &[u8]) -> Vec<u8> {
        let name = coding.name();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {name}\r\n{framing}\r\n");
        [head.as_bytes(), body].concat()
    }

    fn sized(coding: Coding, body: &[u8]) -> Vec<u8> {
        response(coding, &format!("Content-Length: {}\r\n", body.len()), body)
    }

    /// The bodies of responses that are received in such pieces, and the error after them.
    fn read(pieces: &[&[u8]], is_stream: bool) -> (Vec<Vec<u8>>, Option<ResponseError>) {
        let mut reader = ResponseReader::new(LIMIT).accepting_codings();
        let (mut bodies, mut body) = (Vec::new(), Vec::new());
        for mut piece in pieces.iter().copied() {
            loop {
                let (used, part) = match reader.read(piece) {
                    Ok(read) => read,
                    Err(error) => return (bodies, Some(error)),
                };
                piece = &piece[used..];
                match part {
                    Some(ResponsePart::Head(_)) if is_stream => reader.lift_limit(),
                    Some(ResponsePart::Head(_)) => {}
                    Some(ResponsePart::Body(end)) => {
                        body.extend_from_slice(&end);
                        bodies.push(mem::take(&mut body));
                    }
                    None => match if is_stream { reader.take_part() } else { Vec::new() } {
                        part if part.is_empty() && piece.is_empty() => break,
                        part => {
                            assert!(part.len() <= PIECE_BYTES);
                            body.extend_from_slice(&part);
                        }
                    },
                }
            }
        }
        match reader.end() {
            Ok(end) => bodies.extend(end),
            Err(error) => return (bodies, Some(error)),
        }
        (bodies, None)
    }

    fn text() -> Vec<u8> {
        (0..40_000).flat_map(|number: u32| format!("{number} ").into_bytes()).collect()
    }

    #[test]
    fn bodies_in_codings_are_decoded_however_they_are_split() {
        let text = text();
        let bodies: [&[u8]; 3] = [b"", b"short", &text];
        for coding in [Coding::Gzip, Coding::Zstd] {
            let sent: Vec<_> = bodies.iter().map(|body| encoded(coding, &[body])).collect();
            let all: Vec<_> = sent.iter().flat_map(|body| sized(coding, body)).collect();
            for len in [1, 7, 4_000, all.len()] {
                let pieces: Vec<_> = all.chunks(len).collect();
                for is_stream in [false, true] {
                    let (read, error) = read(&pieces, is_stream);
                    assert_eq!((read, error), (bodies.map(<[u8]>::to_vec).to_vec(), None));
                }
            }
        }
    }

    #[test]
    fn chunks_and_the_end_of_the_connection_end_a_body() {
        let body = encoded(Coding::Gzip, &[b"one ", b"two"]);
        let (front, back) = body.split_at(5);
        let mut chunked = format!("{:x}\r\n", front.len()).into_bytes();
        chunked.extend_from_slice(front);
        chunked.extend_from_slice(format!("\r\n{:x}\r\n", back.len()).as_bytes());
        chunked.extend_from_slice(back);
        chunked.extend_from_slice(b"\r\n0\r\n\r\n");
        let chunked = response(Coding::Gzip, "Transfer-Encoding: chunked\r\n", &chunked);
        let until_close = response(Coding::Gzip, "", &body);
        for sent in [chunked, until_close] {
            for len in [1, sent.len()] {
                let pieces: Vec<_> = sent.chunks(len).collect();
                assert_eq!(read(&pieces, false), (vec![b"one two".to_vec()], None));
            }
        }
    }

    #[test]
    fn a_body_without_bytes_is_empty() {
        assert_eq!(read(&[&sized(Coding::Zstd, b"")], false), (vec![Vec::new()], None));
    }

    #[test]
    fn broken_and_incomplete_bodies_are_refused() {
        let whole = encoded(Coding::Gzip, &[b"text"]);
        for body in [&whole[..whole.len() - 1], b"text", &[&whole[..], b"x"].concat()] {
            for sent in [sized(Coding::Gzip, body), response(Coding::Gzip, "", body)] {
                assert_eq!(read(&[&sent], false), (Vec::new(), Some(malformed())));
            }
        }
    }

    #[test]
    fn a_body_is_decoded_to_its_limit() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let sent = |len| sized(coding, &encoded(coding, &[&vec![b'x'; len]]));
            let (bodies, error) = read(&[&sent(LIMIT)], false);
            assert_eq!((bodies.len(), error), (1, None));
            let too_large = Some(ResponseError::BodyTooLarge(LIMIT));
            for len in [LIMIT + 1, 100 * LIMIT] {
                assert_eq!(read(&[&sent(len)], false), (Vec::new(), too_large.clone()));
            }
        }
    }

    #[test]
    fn a_stream_is_limited_by_what_is_received_at_once() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let item = vec![b'x'; LIMIT];
            let sent = sized(coding, &encoded(coding, &[&item, &item, &item]));
            let pieces: Vec<_> = sent.chunks(1).collect();
            let (bodies, error) = read(&pieces, true);
            assert_eq!((bodies.concat().len(), error), (3 * LIMIT, None));
            let (bodies, error) = read(&[&sent], true);
            assert_eq!((bodies.len(), error), (0, Some(ResponseError::BodyTooLarge(LIMIT))));
        }
    }

    #[test]
    fn codings_are_refused_unless_they_are_accepted() {
        let body = encoded(Coding::Gzip, &[b"text"]);
        let sent = sized(Coding::Gzip, &body);
        assert!(ResponseReader::new(LIMIT).read(&sent).is_err());
        let both = response(Coding::Gzip, "Content-Encoding: zstd\r\n", &body);
        assert!(ResponseReader::new(LIMIT).accepting_codings().read(&both).is_err());
    }
}
