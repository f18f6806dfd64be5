//! The limits on frames and messages, each at its last allowed and its first rejected value, and
//! heads that no client may send.

use ucall_proto::websocket::{MessageLimits, MessageReader, Progress, WebSocketError};

use crate::model::{Item, decode, read};
use crate::{BINARY, CONTINUATION, FINAL, LIMITS, PING, TEXT, fragmented, frame, whole};

const SMALL: MessageLimits =
    MessageLimits { frame_bytes_max: 6, message_bytes_max: 10, frames_max: 3 };

/// The error of the first invalid frame.
fn refusal(stream: &[u8]) -> Option<WebSocketError> {
    let (mut reader, mut stream) = (MessageReader::default(), stream.to_vec());
    let mut rest = stream.as_mut_slice();
    loop {
        match reader.read(rest, &SMALL) {
            Err(error) => return Some(error),
            Ok(Progress::Incomplete { .. }) => return None,
            Ok(Progress::Frame { len, .. }) => rest = &mut rest[len..],
        }
    }
}

#[test]
fn each_limit_allows_its_value_and_names_itself_past_it() {
    let frame_too_large = WebSocketError::FrameTooLarge { limit: 6 };
    let message_too_large = WebSocketError::MessageTooLarge { limit: 10 };
    let too_many = WebSocketError::TooManyFrames { limit: 3 };
    for (allowed, rejected, error, option) in [
        (whole(TEXT, &[b'x'; 6]), whole(TEXT, &[b'x'; 7]), frame_too_large, "max_frame_bytes"),
        (
            fragmented(BINARY, &[b"12345", b"67890"]),
            fragmented(BINARY, &[b"12345", b"678901"]),
            message_too_large,
            "max_body_bytes",
        ),
        (
            fragmented(TEXT, &[b"", b"", b""]),
            fragmented(TEXT, &[b"", b"", b"", b""]),
            too_many,
            "max_message_frames",
        ),
    ] {
        assert_eq!(refusal(&allowed), None);
        assert_eq!(refusal(&rejected), Some(error));
        assert!(error.to_string().contains(option), "{error}");
        assert!(error.to_string().len() <= 123, "{error}");
        assert_eq!(error.code().get(), 1009);
    }
}

#[test]
fn a_limit_counts_one_message() {
    let messages = [fragmented(TEXT, &[b"12345", b"67890"]), whole(PING, &[b'x'; 100])].concat();
    assert_eq!(read([&*messages.repeat(3)], &SMALL).len(), 6);
}

#[test]
fn a_frame_past_a_limit_is_refused_before_its_payload_arrives() {
    let rejected = whole(TEXT, &[b'x'; 7]);
    assert_eq!(refusal(&rejected[..5]), None);
    assert!(refusal(&rejected[..6]).is_some());
}

#[test]
fn invalid_heads_are_refused() {
    let key = [1, 2, 3, 4];
    let with_length = |bytes: &[u8]| [&[FINAL | TEXT][..], bytes, &key, &[0; 200]].concat();
    for (stream, error) in [
        (vec![FINAL | TEXT, 1, b'x'], WebSocketError::Unmasked),
        (with_length(&[0xFE, 0, 125]), WebSocketError::LengthMalformed),
        (with_length(&[0xFF, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]), WebSocketError::LengthMalformed),
        (with_length(&[0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0]), WebSocketError::LengthMalformed),
        (vec![FINAL | PING, 0xFE, 0, 126], WebSocketError::ControlTooLarge),
        (vec![PING, 0x80], WebSocketError::ControlFragmented),
        (whole(CONTINUATION, b""), WebSocketError::ContinuationUnexpected),
        ([frame(TEXT, b""), frame(TEXT, b"")].concat(), WebSocketError::MessageInterrupted),
    ] {
        assert_eq!(refusal(&stream), Some(error));
        assert_eq!(error.code().get(), 1002);
        assert_eq!(decode(&stream, &LIMITS).last(), Some(&Item::Error(1002)));
    }
    // The largest length that the protocol has exceeds every limit.
    let largest = with_length(&[0xFF, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    let unlimited = MessageLimits { frame_bytes_max: usize::MAX, ..LIMITS };
    assert_eq!(read([&*largest], &unlimited), [Item::Error(1009)]);
}

#[test]
fn the_reader_asks_for_the_bytes_of_a_whole_frame() {
    let (mut reader, mut stream) = (MessageReader::default(), whole(TEXT, &[b'x'; 1000]));
    for len in 0..8 {
        let expected = Ok(Progress::Incomplete { bytes_needed: len + 1 });
        assert_eq!(reader.read(&mut stream[..len], &LIMITS), expected);
    }
    let expected = Ok(Progress::Incomplete { bytes_needed: 1008 });
    assert_eq!(reader.read(&mut stream[..8], &LIMITS), expected);
    assert_eq!(reader.read(&mut stream[..1007], &LIMITS), expected);
}

#[test]
fn a_reader_holds_memory_only_for_a_message_in_flight() {
    let mut reader = MessageReader::default();
    for (mut bytes, is_in_flight) in [
        (frame(BINARY, &[0; 5000]), true),
        (whole(PING, b""), true),
        (whole(CONTINUATION, b""), false),
        (whole(BINARY, &[0; 5000]), false),
    ] {
        reader.read(&mut bytes, &LIMITS).unwrap();
        assert_eq!(reader.has_fragments(), is_in_flight);
        assert_eq!(reader.held_bytes() >= 5000, is_in_flight);
    }
}

#[test]
fn each_limit_holds_for_short_messages() {
    let reader = MessageReader::default();
    let largest = |limits: &MessageLimits| {
        let is_read =
            |len: &usize| reader.read_short(&mut whole(TEXT, &vec![0; *len]), limits).is_some();
        (0..200).take_while(is_read).last()
    };
    assert_eq!(largest(&LIMITS), Some(125));
    assert_eq!(largest(&MessageLimits { frame_bytes_max: 6, ..LIMITS }), Some(6));
    assert_eq!(largest(&MessageLimits { message_bytes_max: 6, ..LIMITS }), Some(6));
    assert_eq!(largest(&MessageLimits { frames_max: 0, ..LIMITS }), None);
}
