//! A second decoder of frames, written to be simple: one byte at a time, with all payloads copied.
//! The tests and the fuzz target compare the reader with it.

use ucall_proto::websocket::{
    CloseCode, Event, MessageKind, MessageLimits, MessageReader, Progress, WebSocketError,
    validate_text,
};

/// What a stream of frames amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    /// The code and the reason of a Close frame.
    Close(Option<(u16, String)>),
    /// The stream is refused with this code.
    Error(u16),
}

/// Takes bytes from the front of a stream; `None` if there are too few.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        (0..bytes).try_fold(0, |number, _| Some(number << 8 | u64::from(self.byte()?)))
    }
}

/// The items of a client's stream, up to its end, an error or a Close frame.
pub fn decode(stream: &[u8], limits: &MessageLimits) -> Vec<Item> {
    let (mut source, mut items, mut message) = (Source(stream), Vec::new(), None);
    loop {
        match frame(&mut source, limits, &mut message) {
            None => return items,
            Some(Err(code)) => {
                items.push(Item::Error(code));
                return items;
            }
            Some(Ok(None)) => {}
            Some(Ok(Some(item))) => {
                let is_last = matches!(item, Item::Close(_));
                items.push(item);
                if is_last {
                    return items;
                }
            }
        }
    }
}

/// A message in progress: whether it is text, its bytes, its frames.
type Message = Option<(bool, Vec<u8>, usize)>;

fn frame(
    source: &mut Source<'_>,
    limits: &MessageLimits,
    message: &mut Message,
) -> Option<Result<Option<Item>, u16>> {
    let first = source.byte()?;
    let (is_final, opcode) = (first >> 7 == 1, first & 15);
    let is_control = opcode >= 8;
    if first >> 4 & 7 != 0 || ![0, 1, 2, 8, 9, 10].contains(&opcode) || is_control && !is_final {
        return Some(Err(1002));
    }
    let second = source.byte()?;
    if second < 128 || is_control && second > 128 + 125 {
        return Some(Err(1002));
    }
    let (extra, least) = match second - 128 {
        126 => (2, 126),
        127 => (8, 1 << 16),
        _ => (0, 0),
    };
    let number = source.number(extra)?;
    let len = if extra == 0 { u64::from(second - 128) } else { number };
    if len < least || len >> 63 == 1 {
        return Some(Err(1002));
    }
    let key = [source.byte()?, source.byte()?, source.byte()?, source.byte()?];
    if !is_control {
        let is_new = opcode != 0;
        if is_new == message.is_some() {
            return Some(Err(1002));
        }
        let (held, frames) =
            message.as_ref().map_or((0, 0), |(_, held, frames)| (held.len(), *frames));
        let is_large = len > limits.frame_bytes_max as u64
            || len + held as u64 > limits.message_bytes_max as u64;
        if is_large || frames == limits.frames_max {
            return Some(Err(1009));
        }
    }
    if (source.0.len() as u64) < len {
        return None;
    }
    let payload: Vec<u8> = (0..len as usize)
        .map(|at| source.byte().map(|byte| byte ^ key[at % 4]))
        .collect::<Option<_>>()?;
    Some(match opcode {
        8 => close(&payload).map(|close| Some(Item::Close(close))),
        9 => Ok(Some(Item::Ping(payload))),
        10 => Ok(Some(Item::Pong(payload))),
        _ => data(opcode, is_final, payload, message),
    })
}

fn close(payload: &[u8]) -> Result<Option<(u16, String)>, u16> {
    if payload.is_empty() {
        return Ok(None);
    }
    let code = payload.iter().take(2).fold(0, |code, &byte| code << 8 | u16::from(byte));
    let is_registered = (1000..1015).contains(&code) && ![1004, 1005, 1006].contains(&code);
    if payload.len() < 2 || !(is_registered || (3000..5000).contains(&code)) {
        return Err(1002);
    }
    let reason = String::from_utf8(payload[2..].to_vec()).map_err(|_| 1007u16)?;
    Ok(Some((code, reason)))
}

fn data(
    opcode: u8,
    is_final: bool,
    payload: Vec<u8>,
    message: &mut Message,
) -> Result<Option<Item>, u16> {
    let (is_text, mut bytes, frames) = message.take().unwrap_or((opcode == 1, Vec::new(), 0));
    bytes.extend(payload);
    if is_text
        && let Err(error) = std::str::from_utf8(&bytes)
        && (is_final || error.error_len().is_some())
    {
        return Err(1007);
    }
    if !is_final {
        *message = Some((is_text, bytes, frames + 1));
        return Ok(None);
    }
    Ok(Some(if is_text { Item::Text(bytes) } else { Item::Binary(bytes) }))
}

/// The items that the reader finds when the stream arrives in these pieces.
pub fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: &MessageLimits) -> Vec<Item> {
    let (mut reader, mut input, mut items) = (MessageReader::default(), Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let used = match step(&mut reader, &mut input, limits) {
                Ok(None) => break,
                Ok(Some((used, item))) => {
                    items.extend(item);
                    used
                }
                Err(error) => {
                    items.push(Item::Error(error.code().get()));
                    return items;
                }
            };
            if matches!(items.last(), Some(Item::Close(_))) {
                return items;
            }
            input.drain(..used);
        }
    }
    items
}

/// Reads one frame; returns its length and what it means. `None` if it is incomplete.
fn step(
    reader: &mut MessageReader,
    input: &mut [u8],
    limits: &MessageLimits,
) -> Result<Option<(usize, Option<Item>)>, WebSocketError> {
    let (before, present) = (input.to_vec(), input.len());
    let mut copy = before.clone();
    let short = reader.read_short(&mut copy, limits).map(|(payload, len)| (payload.to_vec(), len));
    let progress = reader.read(input, limits);
    if let Some((payload, len)) = short {
        let event = Event::Message { kind: MessageKind::Text, payload: payload.into() };
        assert_eq!(progress, Ok(Progress::Frame { len, event }), "both read the same message");
    } else {
        assert_eq!(copy, before, "a frame that is not read stays masked");
    }
    match progress? {
        Progress::Incomplete { bytes_needed } => {
            assert!(bytes_needed > present, "{bytes_needed} bytes are there already");
            assert_eq!(input, before, "an incomplete frame stays masked");
            Ok(None)
        }
        Progress::Frame { len, event } => Ok(Some((len, item(event)?))),
    }
}

fn item(event: Event<'_>) -> Result<Option<Item>, WebSocketError> {
    Ok(Some(match event {
        Event::Fragment { .. } | Event::Compressed { .. } => return Ok(None),
        Event::Message { kind: MessageKind::Text, payload } => {
            validate_text(&payload)?;
            Item::Text(payload.into_owned())
        }
        Event::Message { kind: MessageKind::Binary, payload } => Item::Binary(payload.into_owned()),
        Event::Ping(payload) => Item::Ping(payload.to_vec()),
        Event::Pong(payload) => Item::Pong(payload.to_vec()),
        Event::Close(close) => Item::Close(close.map(|close| {
            let code: CloseCode = close.code;
            (code.get(), close.reason.to_owned())
        })),
    }))
}
