//! The frames of a WebSocket client, against a second decoder.

use ucall_proto::websocket::{FrameWriter, MessageLimits, Opcode};

use crate::random::Random;
use crate::websocket_model::{Item, decode, read};

/// Both decoders find the same messages, control frames and close code however the stream is cut,
/// and what the writer writes of them, once masked, is read as the same.
///
/// # Panics
/// If they do not.
pub fn run(input: &[u8]) {
    let (mut random, stream) = Random::of_input(input);
    let pieces = random.pieces(stream);
    let large =
        MessageLimits { frame_bytes_max: 1 << 20, message_bytes_max: 1 << 20, frames_max: 1 << 20 };
    let small = MessageLimits {
        frame_bytes_max: random.below(200),
        message_bytes_max: random.below(300),
        frames_max: 1 + random.below(4),
    };
    for limits in [large, small] {
        let items = decode(stream, &limits);
        assert_eq!(read(pieces.iter().copied(), &limits), items);
        assert_eq!(read([stream], &limits), items);
    }
    check_written(&decode(stream, &large), &large);
}

/// Writes the items as a server, and reads them as a client's, with a mask that changes nothing.
fn check_written(items: &[Item], limits: &MessageLimits) {
    let (mut stream, mut writer) = (Vec::new(), FrameWriter::default());
    let mut expected = Vec::new();
    for item in items {
        let (opcode, payload) = match item {
            Item::Text(payload) => (Opcode::Text, payload),
            Item::Binary(payload) => (Opcode::Binary, payload),
            Item::Ping(payload) => (Opcode::Ping, payload),
            Item::Pong(payload) => (Opcode::Pong, payload),
            Item::Close(_) | Item::Error(_) => continue,
        };
        let mut out = Vec::new();
        let pending = writer.begin(&mut out);
        out.extend_from_slice(payload);
        writer.end(&mut out, pending, opcode);
        let head_len = out.len() - payload.len();
        out[1] |= 0x80;
        out.splice(head_len..head_len, [0; 4]);
        stream.extend(out);
        expected.push(item.clone());
    }
    assert_eq!(decode(&stream, limits), expected);
    assert_eq!(read([&*stream], limits), expected);
}
