//! What a hostile server sends to a client, or to a relay of calls.

use ucall_proto::http1::{ResponseBodyLength, ResponsePart, ResponseReader};
use ucall_proto::json::validate;
use ucall_relay::{ReplyReader, UpstreamReply};
use ucall_server::NativeOutcome;

use crate::random::Random;

const NESTING_MAX: usize = ucall_proto::Limits::NESTING_MAX;
const BYTES_MAX: usize = 256;
/// Ids below this are of calls that wait; the others end the connection.
const IDS: u32 = 4;

/// Responses over HTTP are the same however the bytes are split, and wherever they are received. So
/// are the replies and items that a relay finds in raw documents, and whether they end the
/// connection. All results, items and data are valid JSON, and no longer than the limit.
///
/// # Panics
/// If they are not.
pub fn run(input: &[u8]) {
    let (mut random, bytes) = Random::of_input(input);
    let (raw, http) = (raw_replies(&[bytes]), responses(&[bytes], false, false));
    let decoded = responses(&[bytes], false, true);
    raw.0.iter().for_each(check);
    for pieces in [bytes.chunks(1).collect(), random.pieces(bytes)] {
        assert_eq!(raw_replies(&pieces), raw);
        assert_eq!(responses(&pieces, false, false), http);
        assert_eq!(responses(&pieces, true, false), http);
        assert_eq!(responses(&pieces, false, true), decoded);
    }
}

fn check(reply: &UpstreamReply) {
    let text = match &reply.outcome {
        NativeOutcome::Reply(Err(error)) => error.data.as_ref(),
        NativeOutcome::Reply(Ok(text)) | NativeOutcome::Item(text) => Some(text),
    };
    let Some(text) = text else { return };
    assert_eq!(validate(text, NESTING_MAX), Ok(()));
    assert!(text.len() <= BYTES_MAX);
}

fn raw_replies(pieces: &[&[u8]]) -> (Vec<UpstreamReply>, bool) {
    let (mut reader, mut replies) = (ReplyReader::new(BYTES_MAX), Vec::new());
    for piece in pieces {
        let read = reader.read(piece, |reply| {
            let is_known = reply.id < IDS;
            replies.push(reply);
            is_known
        });
        if read.is_err() {
            return (replies, true);
        }
    }
    (replies, false)
}

/// The statuses and bodies of responses, and whether they end in an error. A line break ends each
/// input, because the reader judges a head when one of its lines is complete.
fn responses(
    pieces: &[&[u8]],
    takes_parts: bool,
    accepts_codings: bool,
) -> (Vec<(u16, Vec<u8>)>, bool) {
    let (mut reader, mut buffer) = (ResponseReader::new(BYTES_MAX), Vec::new());
    if accepts_codings {
        reader = reader.accepting_codings();
    }
    let (mut found, mut status, mut body, mut is_open) = (Vec::new(), 0, Vec::new(), false);
    for mut piece in pieces.iter().copied().chain([&b"\n"[..]]) {
        while !piece.is_empty() {
            let (target, bytes_max) = reader.space(&mut buffer);
            let (now, later) = piece.split_at(bytes_max.min(piece.len()));
            target.extend_from_slice(now);
            piece = later;
            let mut taken = 0;
            loop {
                let Ok((used, part)) = reader.read(&buffer[taken..]) else { return (found, true) };
                taken += used;
                match part {
                    Some(ResponsePart::Head(head)) => {
                        (status, is_open) =
                            (head.status, head.body == ResponseBodyLength::UntilClose);
                    }
                    Some(ResponsePart::Body(end)) => {
                        body.extend_from_slice(&end);
                        assert!(body.len() <= BYTES_MAX);
                        found.push((status, std::mem::take(&mut body)));
                    }
                    None if takes_parts && !is_open => break body.extend(reader.take_part()),
                    None => break,
                }
            }
            buffer.drain(..taken);
        }
    }
    let Ok(end) = reader.end() else { return (found, true) };
    if let Some(end) = end {
        body.extend_from_slice(&end);
        found.push((status, body));
    }
    (found, false)
}
