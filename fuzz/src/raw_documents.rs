//! Documents one after another over raw TCP, against `serde_json`'s own way of cutting them.

use serde_json::value::RawValue;
use ucall_proto::{FRAME_BYTE, NextAction};

use crate::random::Random;
use crate::reference::{self, Expected};
use crate::rpc_document;

/// Documents are answered one after another, however the stream was cut, until one breaks.
///
/// # Panics
/// When they are not.
pub fn run(input: &[u8]) {
    let (mut random, stream) = Random::of_input(input);
    let Some(b'{' | b'[') = stream.first() else { return };
    if reference::is_unsupported(stream) {
        return;
    }
    let whole = answer([stream], usize::MAX);
    let long_bytes_min = random.below(100);
    assert_eq!(answer(random.pieces(stream), long_bytes_min), whole);
    let (replies, next_action) = whole;
    let mut written = replies.as_slice();
    let mut documents = serde_json::Deserializer::from_slice(stream).into_iter::<&RawValue>();
    let mut start = 0;
    while let Some(Ok(document)) = documents.next() {
        let text = document.get().as_bytes();
        let is_container = matches!(text, [b'{' | b'[', ..]);
        let answer = if is_container { reference::expected(text) } else { refused() };
        written = check_line(written, &answer);
        start = documents.byte_offset();
        if !is_container || answer == refused() {
            assert_eq!((next_action, written), (NextAction::DiscardInput, &b""[..]));
            return;
        }
    }
    if stream[start..].trim_ascii_start().first() == Some(&FRAME_BYTE) {
        return;
    }
    // No document, or an incomplete or invalid one.
    let blank = stream[start..].iter().all(|byte| b" \t\r\n".contains(byte));
    if next_action == NextAction::DiscardInput {
        written = check_line(written, &refused());
        assert!(!blank);
    }
    assert_eq!(written, b"");
}

fn refused() -> Expected {
    reference::expected(b"")
}

/// The output of a connection for `pieces`, and its next action. Documents of more than
/// `long_bytes_min` bytes are scanned while they arrive.
fn answer<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    long_bytes_min: usize,
) -> (Vec<u8>, NextAction) {
    let mut driver = rpc_document::driver();
    driver.limits.long_bytes_min = long_bytes_min;
    for piece in pieces {
        driver.receive(piece);
    }
    (driver.out, driver.connection.next_action())
}

/// Checks the reply that `written` starts with; returns what follows it.
fn check_line<'a>(written: &'a [u8], answer: &Expected) -> &'a [u8] {
    if *answer == Expected::Nothing {
        return written;
    }
    // The text of params may hold line feeds of its own.
    let mut replies = serde_json::Deserializer::from_slice(written).into_iter::<&RawValue>();
    let reply = replies.next().expect("a reply").expect("JSON").get();
    rpc_document::check(reply.as_bytes(), answer);
    let rest = &written[replies.byte_offset()..];
    rest.strip_prefix(b"\n").expect("a line feed behind each reply")
}
