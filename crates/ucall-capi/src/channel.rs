//! The connection of a call, for messages that answer no call.

use std::sync::Arc;

use ucall_engine::Id;
use ucall_proto::{Limits, json};
use ucall_server::{Overflow, Publisher, ServerMessage};

/// The connection of a call. It outlives the worker, after which messages are dropped.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) connection: Id,
    /// Whether the call came over HTTP, which has no messages of the server.
    pub(crate) is_http: bool,
}

impl Channel {
    /// Sends a notification; `false` over HTTP.
    pub(crate) fn notify(&self, message: ServerMessage) -> bool {
        if !self.is_http {
            self.publisher.notify(self.connection, message);
        }
        !self.is_http
    }

    /// Subscribes to a topic; `false` over HTTP and above the limits.
    pub(crate) fn subscribe(&self, topic: &str, overflow: Overflow) -> bool {
        !self.is_http && self.publisher.subscribe(self.connection, topic, overflow).is_ok()
    }

    pub(crate) fn unsubscribe(&self, topic: &str) {
        self.publisher.unsubscribe(self.connection, topic);
    }
}

/// A message whose params are JSON text; `None` if they are no array or object.
pub(crate) fn message(topic: &str, method: &str, params: Option<&[u8]>) -> Option<ServerMessage> {
    let Some(params) = params else { return Some(ServerMessage::new(topic, method, None)) };
    let is_structured = matches!(params.trim_ascii_start().first(), Some(b'[' | b'{'));
    if !is_structured || json::validate(params, Limits::NESTING_MAX).is_err() {
        return None;
    }
    // A newline would end the message over raw TCP; strings have none.
    let is_newline = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let line: Vec<u8> =
        params.iter().map(|byte| if is_newline(byte) { b' ' } else { *byte }).collect();
    Some(ServerMessage::new(topic, method, Some(&line)))
}
