//! Echoes WebSocket messages, so that any conformance suite can test the frame layer:
//! `cargo run --release -p ucall-server --example ws_echo -- PORT`
//!
//! Each connection has a thread, because a suite opens few. The limits are those of Autobahn's
//! cases 9: messages of 16 MiB. Prints the port, which the system picks for port 0.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use ucall_proto::http1::{HeadLimits, parse_head};
use ucall_proto::websocket::{
    CloseCode, Event, MessageKind, MessageLimits, MessageReader, Opcode, Progress, Upgrade,
    WebSocketError, validate_text, write_close, write_frame,
};

const LIMITS: MessageLimits =
    MessageLimits { frame_bytes_max: 16 << 20, message_bytes_max: 16 << 20, frames_max: 1 << 20 };

/// The bytes of a connection that are received and not used yet.
struct Input {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Input {
    /// Receives more bytes; `false` at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        let mut room = [0; 64 << 10];
        let count = self.stream.read(&mut room)?;
        self.bytes.extend(room.iter().take(count));
        Ok(count > 0)
    }

    /// Reads the request for an upgrade, and appends the reply to `out`.
    fn upgrade(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            if let Some(head) =
                parse_head(&self.bytes, &HeadLimits::default()).map_err(io::Error::other)?
            {
                let upgrade = Upgrade::parse(&head).map_err(io::Error::other)?;
                let upgrade = upgrade.ok_or_else(|| io::Error::other("no upgrade"))?;
                upgrade.write_reply(out);
                let len = head.len();
                self.bytes.drain(..len);
                return Ok(());
            }
            if !self.receive()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Appends the reply to a frame; `false` after a Close frame.
fn echo(event: Event<'_>, out: &mut Vec<u8>) -> Result<bool, WebSocketError> {
    match event {
        Event::Message { kind, payload } => {
            if kind == MessageKind::Text {
                validate_text(&payload)?;
            }
            write_frame(out, kind.opcode(), &payload);
        }
        Event::Ping(payload) => write_frame(out, Opcode::Pong, payload),
        Event::Compressed { .. } | Event::Fragment { .. } | Event::Pong(_) => {}
        Event::Close(None) => {
            write_frame(out, Opcode::Close, b"");
            return Ok(false);
        }
        Event::Close(Some(close)) => {
            write_close(out, close.code, "");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Replies to all whole frames; returns `false` after the Close frame.
fn process(reader: &mut MessageReader, bytes: &mut Vec<u8>, out: &mut Vec<u8>) -> bool {
    let mut used = 0;
    while let Some(rest @ [_, ..]) = bytes.get_mut(used..) {
        let is_open = match reader.read(rest, &LIMITS) {
            Ok(Progress::Incomplete { .. }) => break,
            Ok(Progress::Frame { len, event }) => {
                used += len;
                echo(event, out)
            }
            Err(error) => Err(error),
        };
        match is_open {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                let code: CloseCode = error.code();
                write_close(out, code, &error.to_string());
                return false;
            }
        }
    }
    bytes.drain(..used);
    true
}

fn serve(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut out) = (Input { stream, bytes: Vec::new() }, Vec::new());
    let mut reader = MessageReader::default();
    input.upgrade(&mut out)?;
    loop {
        let is_open = process(&mut reader, &mut input.bytes, &mut out);
        input.stream.write_all(&out)?;
        out.clear();
        if !is_open {
            input.stream.shutdown(std::net::Shutdown::Write)?;
            while input.receive()? {
                input.bytes.clear();
            }
            return Ok(());
        }
        if !input.receive()? {
            return Ok(());
        }
    }
}

fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or_default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            if let Err(error) = serve(stream) {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}
