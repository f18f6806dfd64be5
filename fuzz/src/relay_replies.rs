//! What a hostile upstream of relayed calls sends.

use ucall_proto::json::validate;
use ucall_relay::{HttpReplyReader, ReplyReader, UpstreamReply};
use ucall_server::NativeOutcome;

use crate::random::Random;

const NESTING_MAX: usize = ucall_proto::Limits::NESTING_MAX;
const BYTES_MAX: usize = 256;
/// Ids below this are of calls that wait; the others end the connection.
const IDS: u32 = 4;

/// The replies and items, and whether they end the connection, are the same however the bytes are
/// split, over raw TCP and over HTTP. All results, items and data are valid JSON, and no longer
/// than the limit.
///
/// # Panics
/// If they are not.
pub fn run(input: &[u8]) {
    let (mut random, bytes) = Random::of_input(input);
    for read in [raw_replies, http_replies] {
        let whole = read(&[bytes]);
        assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), whole);
        assert_eq!(read(&random.pieces(bytes)), whole);
        whole.0.iter().for_each(check);
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

/// Of one call, whose connection ends with it. A line break ends each input, because the reader
/// judges a head when one of its lines is complete.
fn http_replies(pieces: &[&[u8]]) -> (Vec<UpstreamReply>, bool) {
    let (mut reader, mut replies) = (HttpReplyReader::new(BYTES_MAX), Vec::new());
    reader.begin(false);
    for piece in pieces.iter().copied().chain([&b"\n"[..]]) {
        let read = reader.read(piece, |reply| {
            replies.push(reply);
            true
        });
        if read.is_err() {
            return (replies, true);
        }
    }
    (replies, false)
}
