//! A notification that the server sends, framed once for all of its receivers.
//!
//! One buffer has the frame of a WebSocket and the line of raw TCP, which share the JSON text:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | the length of the frame's head |
//! | 2 | the length of the topic, little-endian |
//! | | the topic; empty for a message to one connection |
//! | | the head of the frame, the JSON text, and a newline |
//!
//! Worker processes of one server send each other the whole buffer, so a message is never copied
//! for a subscriber, and is framed only by its publisher.

use bytes::Bytes;
use ucall_proto::json::write_string;
use ucall_proto::websocket::{Opcode, write_frame};
use ucall_proto::{MemoryBudget, MessageFraming, Reservation};

/// The bytes before the topic.
const LENGTHS: usize = 3;

/// A notification of the server to its clients. Clones share their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMessage {
    bytes: Bytes,
    frame_at: usize,
    json_at: usize,
}

impl ServerMessage {
    /// A notification for the subscribers of `topic`, of at most 65,535 bytes. `params` is the JSON
    /// text of an array or an object.
    pub fn new(topic: &str, method: &str, params: Option<&[u8]>) -> Self {
        let mut json = br#"{"jsonrpc":"2.0","method":"#.to_vec();
        write_string(&mut json, method);
        if let Some(params) = params {
            json.extend_from_slice(br#","params":"#);
            json.extend_from_slice(params);
        }
        json.push(b'}');
        Self::of_json(topic, &json)
    }

    fn of_json(topic: &str, json: &[u8]) -> Self {
        let topic_len = u16::try_from(topic.len()).unwrap_or(u16::MAX);
        let topic = topic.as_bytes().get(..usize::from(topic_len)).unwrap_or_default();
        let mut bytes = vec![0; LENGTHS];
        bytes.extend_from_slice(topic);
        let frame_at = bytes.len();
        write_frame(&mut bytes, Opcode::Text, json);
        let json_at = bytes.len() - json.len();
        bytes.push(b'\n');
        let [low, high] = topic_len.to_le_bytes();
        // A head of a frame has at most 10 bytes.
        if let Some(lengths) = bytes.first_chunk_mut() {
            *lengths = [(json_at - frame_at) as u8, low, high];
        }
        Self { bytes: bytes.into(), frame_at, json_at }
    }

    /// Reads what [`ServerMessage::bytes`] of another process has returned; `None` if it is cut.
    pub fn parse(bytes: Bytes) -> Option<Self> {
        let &[head_len, low, high] = bytes.first_chunk()?;
        let frame_at = LENGTHS + usize::from(u16::from_le_bytes([low, high]));
        let json_at = frame_at + usize::from(head_len);
        (json_at < bytes.len()).then_some(Self { bytes, frame_at, json_at })
    }

    /// The whole buffer, for another process.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The topic; `None` if it is not UTF-8.
    pub fn topic(&self) -> Option<&str> {
        str::from_utf8(self.bytes.get(LENGTHS..self.frame_at)?).ok()
    }

    /// Its JSON text.
    pub fn text(&self) -> &[u8] {
        self.bytes.get(self.json_at..self.bytes.len() - 1).unwrap_or_default()
    }

    /// A WebSocket's frame, or the line of raw TCP.
    pub(crate) fn framed(&self, framing: MessageFraming) -> Bytes {
        match framing {
            MessageFraming::Frame => self.bytes.slice(self.frame_at..self.bytes.len() - 1),
            MessageFraming::Line => self.bytes.slice(self.json_at..),
        }
    }

    /// The same message, whose bytes count towards `budget` as long as anything refers to them.
    pub(crate) fn reserved(&self, budget: &MemoryBudget) -> Self {
        let mut reservation = Reservation::default();
        reservation.resize(self.bytes.len(), budget);
        let bytes = ReservedBytes { bytes: self.bytes.clone(), _reservation: reservation };
        Self { bytes: Bytes::from_owner(bytes), ..*self }
    }
}

struct ReservedBytes {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_and_a_line_share_their_memory() {
        for length in [0, 100, 70_000] {
            let params = format!("[\"{}\"]", "x".repeat(length));
            let message = ServerMessage::new("news", "changed", Some(params.as_bytes()));
            let json = format!(r#"{{"jsonrpc":"2.0","method":"changed","params":{params}}}"#);
            let mut frame = Vec::new();
            write_frame(&mut frame, Opcode::Text, json.as_bytes());
            let framed = [MessageFraming::Frame, MessageFraming::Line].map(|it| message.framed(it));
            assert_eq!(framed[0], frame);
            assert_eq!(framed[1], format!("{json}\n"));
            assert_eq!(message.topic(), Some("news"));
            let memory = message.bytes().as_ptr_range();
            assert!(framed.iter().all(|part| memory.contains(&part.as_ptr())));
        }
    }

    #[test]
    fn a_reserved_message_counts_once_until_its_last_receiver_has_it() {
        let (budget, message) = (MemoryBudget::default(), ServerMessage::new("t", "m", None));
        let reserved = message.reserved(&budget);
        assert_eq!(reserved, message);
        let framed = [MessageFraming::Frame, MessageFraming::Line].map(|it| reserved.framed(it));
        let [first, last] = framed;
        drop((reserved, message, first));
        assert_eq!(budget.bytes(), ServerMessage::new("t", "m", None).bytes().len());
        drop(last);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn a_message_of_another_process_is_the_same_and_a_cut_one_is_none() {
        let message = ServerMessage::new("a topic", "m", None);
        let bytes = message.bytes().clone();
        assert_eq!(ServerMessage::parse(bytes.clone()), Some(message.clone()));
        for len in 0..=message.json_at {
            assert_eq!(ServerMessage::parse(bytes.slice(..len)), None, "{len}");
        }
    }
}
