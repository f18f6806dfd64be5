//! Bodies in gzip and zstd, and messages in deflate.

use ucall_proto::coding::{Coding, DecodeError, Decoder};

use crate::random::Random;

/// More of a body is not decoded.
const BYTES_MAX: usize = 1 << 20;

/// A body is the same, or an error, however it was cut and whatever room there is for it; a decoder
/// fills the memory that it is given and no more. Which error may differ: zstd decodes a frame that
/// arrives whole without checking its window.
///
/// # Panics
/// When it is not.
pub fn run(input: &[u8]) {
    let (mut random, body) = Random::of_input(input);
    let decoders: [fn() -> Option<Decoder>; 3] =
        [|| Decoder::new(Coding::Gzip), || Decoder::new(Coding::Zstd), Decoder::of_deflate];
    for new in decoders {
        let whole = decode(new, &[body], 64 << 10);
        let pieces = random.pieces(body);
        let room = 1 + random.below(5_000);
        let cut = decode(new, &pieces, room);
        let is_long = |it: &Result<Vec<u8>, _>| it.as_ref().is_ok_and(|it| it.len() >= BYTES_MAX);
        if !is_long(&whole) && !is_long(&cut) {
            assert!(whole.ok() == cut.ok(), "{:?}: cuts change the body", new());
        }
    }
}

fn decode(
    new: fn() -> Option<Decoder>,
    pieces: &[&[u8]],
    room: usize,
) -> Result<Vec<u8>, DecodeError> {
    let mut decoder = new().expect("there is memory");
    let mut body = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let mut out = Vec::with_capacity(room);
            let capacity = out.capacity();
            let decoded = decoder.decode(rest, &mut out)?;
            assert_eq!(out.capacity(), capacity, "a decoder does not grow its output");
            rest = &rest[decoded.used..];
            body.extend_from_slice(&out);
            if body.len() >= BYTES_MAX {
                return Ok(body);
            }
            if rest.is_empty() && !decoded.has_more {
                break;
            }
            assert!(decoded.used > 0 || !out.is_empty(), "a decoder goes on");
        }
    }
    Ok(body)
}
