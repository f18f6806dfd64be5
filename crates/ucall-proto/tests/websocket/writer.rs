//! Written frames, of a server and of a client.

use std::borrow::Cow;

use ucall_proto::websocket::{
    CloseCode, Event, FrameWriter, MessageKind, MessageLimits, MessageReader, Opcode, Progress,
    WebSocketError, write_client_frame, write_close, write_frame,
};

/// The payload of a server's frame, which is all of `frame`, and its first byte.
fn parse(frame: &[u8]) -> (u8, &[u8]) {
    let (len, payload) = match frame[1] {
        126 => (usize::from(u16::from_be_bytes([frame[2], frame[3]])), &frame[4..]),
        127 => (u64::from_be_bytes(frame[2..10].try_into().unwrap()) as usize, &frame[10..]),
        len => (usize::from(len), &frame[2..]),
    };
    assert_eq!(len, payload.len());
    let least = [0, 126, 65_536][usize::from(frame[1].saturating_sub(125))];
    assert!(len >= least, "the length is in the fewest bytes");
    (frame[0], payload)
}

#[test]
fn a_message_is_written_in_place_whatever_its_length_and_that_of_the_previous_one() {
    let lengths = [0, 1, 125, 126, 127, 65_535, 65_536, 100_000];
    let mut writer = FrameWriter::default();
    for before in lengths {
        for len in lengths {
            for payload in [vec![b'a'; before], vec![b'b'; len]] {
                let mut out = b"before".to_vec();
                let pending = writer.begin(&mut out);
                out.extend_from_slice(&payload);
                writer.end(&mut out, pending, Opcode::Text);
                assert_eq!(parse(out.strip_prefix(b"before").unwrap()), (0x81, &*payload));
            }
        }
    }
}

#[test]
fn an_aborted_message_leaves_nothing() {
    let writer = FrameWriter::default();
    let mut out = b"before".to_vec();
    let pending = writer.begin(&mut out);
    out.extend_from_slice(b"a part");
    writer.abort(&mut out, pending);
    assert_eq!(out, b"before");
}

#[test]
fn other_frames_are_written_whole() {
    for (opcode, first) in
        [(Opcode::Text, 0x81), (Opcode::Binary, 0x82), (Opcode::Ping, 0x89), (Opcode::Pong, 0x8A)]
    {
        let mut out = Vec::new();
        write_frame(&mut out, opcode, b"payload");
        assert_eq!(parse(&out), (first, &b"payload"[..]));
    }
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    for (reason, expected) in [
        ("bye".to_owned(), "bye".to_owned()),
        ("x".repeat(123), "x".repeat(123)),
        ("x".repeat(124), "x".repeat(123)),
        ("é".repeat(100), "é".repeat(61)),
    ] {
        let mut out = Vec::new();
        write_close(&mut out, CloseCode::GOING_AWAY, &reason);
        let expected = [b"\x03\xE9", expected.as_bytes()].concat();
        assert_eq!(parse(&out), (0x88, &*expected));
    }
}

#[test]
fn a_server_reads_what_a_client_writes_and_a_client_refuses_it() {
    let limits =
        MessageLimits { frame_bytes_max: 1 << 20, message_bytes_max: 1 << 20, frames_max: 1 };
    for len in [0, 1, 125, 126, 65_535, 65_536] {
        let payload = vec![b'x'; len];
        let mut frame = Vec::new();
        write_client_frame(&mut frame, Opcode::Text, &payload, *b"key!");
        assert!(len < 8 || !frame.ends_with(b"xxxxxxxx"), "the payload is masked");
        let mut copy = frame.clone();
        let refused = MessageReader::default().read_from_server(&mut copy, &limits);
        assert_eq!(refused, Err(WebSocketError::Masked));
        let frame_len = frame.len();
        let read = MessageReader::default().read(&mut frame, &limits);
        let event = Event::Message { kind: MessageKind::Text, payload: Cow::Owned(payload) };
        assert_eq!(read, Ok(Progress::Frame { len: frame_len, event }));
    }
}

#[test]
fn a_client_reads_what_a_server_writes_cut_at_every_byte() {
    let limits = MessageLimits { frame_bytes_max: 200, message_bytes_max: 200, frames_max: 1 };
    let (mut frame, payload) = (Vec::new(), vec![b'x'; 200]);
    write_frame(&mut frame, Opcode::Text, &payload);
    for end in 0..frame.len() {
        let read = MessageReader::default().read_from_server(&mut frame[..end], &limits);
        assert!(matches!(read, Ok(Progress::Incomplete { bytes_needed }) if bytes_needed > end));
    }
    let (len, event) =
        (frame.len(), Event::Message { kind: MessageKind::Text, payload: payload.into() });
    let read = MessageReader::default().read_from_server(&mut frame, &limits);
    assert_eq!(read, Ok(Progress::Frame { len, event }));
}
