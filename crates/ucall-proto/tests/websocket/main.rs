//! The frame layer of WebSocket, without I/O.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod autobahn;
mod bench;
mod limits;
mod model;
mod properties;
mod upgrade;
mod writer;

use ucall_proto::websocket::{MessageLimits, unmask};

/// The limits of a server's default configuration.
const LIMITS: MessageLimits =
    MessageLimits { frame_bytes_max: 16 << 20, message_bytes_max: 16 << 20, frames_max: 1024 };

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FINAL: u8 = 0x80;

/// A client's frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..126 => frame.push(0x80 | len as u8),
        len @ 126..65536 => {
            frame.push(0x80 | 126);
            frame.extend((len as u16).to_be_bytes());
        }
        len => {
            frame.push(0x80 | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    frame.extend(key);
    let start = frame.len();
    frame.extend(payload);
    unmask(&mut frame[start..], key);
    frame
}

/// A whole message, or a control frame.
fn whole(opcode: u8, payload: &[u8]) -> Vec<u8> {
    frame(FINAL | opcode, payload)
}

/// A message in frames with these payloads.
fn fragmented(opcode: u8, payloads: &[&[u8]]) -> Vec<u8> {
    let last = payloads.len() - 1;
    let frames = payloads.iter().enumerate().map(|(index, payload)| {
        let opcode = if index == 0 { opcode } else { CONTINUATION };
        frame(if index == last { FINAL | opcode } else { opcode }, payload)
    });
    frames.collect::<Vec<_>>().concat()
}

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    whole(CLOSE, &[&code.to_be_bytes(), reason].concat())
}
