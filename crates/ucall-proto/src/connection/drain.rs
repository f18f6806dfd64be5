//! The end of a connection that refuses requests because the server drains.

use super::{Drain, MessageFraming, PlainConnection};
use crate::websocket::{Opcode, write_frame};

/// The method of the notification of a server that drains.
pub const DRAIN: &str = "$/drain";

impl PlainConnection {
    /// Over raw TCP, announces a drain that has begun before the first request.
    pub(super) fn announce_drain(&self, drain: Drain, out: &mut Vec<u8>) {
        if drain == Drain::Serving && self.is_raw() {
            out.extend_from_slice(format!(r#"{{"jsonrpc":"2.0","method":"{DRAIN}"}}"#).as_bytes());
            out.push(b'\n');
        }
    }

    /// Over raw TCP, a request that was refused in a drain is the last one.
    #[inline]
    pub(super) fn end_if_refusing(&mut self, drain: Drain, out: &mut Vec<u8>) {
        if drain == Drain::Refusing && self.is_raw() {
            self.write_read_count(out);
            self.discard_input();
        }
    }

    /// Appends the notification that says how many requests were read: no later one was.
    #[cold]
    pub(super) fn write_read_count(&self, out: &mut Vec<u8>) {
        let (method, read) = (DRAIN, self.requests);
        let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"read":{read}}}}}"#);
        match self.message_framing() {
            Some(MessageFraming::Frame) => write_frame(out, Opcode::Text, text.as_bytes()),
            Some(MessageFraming::Line) => {
                out.extend_from_slice(text.as_bytes());
                out.push(b'\n');
            }
            None => {}
        }
    }
}
