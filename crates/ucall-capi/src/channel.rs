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
    /// Whether the client gets messages of the server: not over HTTP and UDP.
    pub(crate) takes_messages: bool,
}

impl Channel {
    /// Sends a notification; `false` without messages.
    pub(crate) fn notify(&self, message: ServerMessage) -> bool {
        if self.takes_messages {
            self.publisher.notify(self.connection, message);
        }
        self.takes_messages
    }

    /// Subscribes to a topic; `false` without messages and above the limits.
    pub(crate) fn subscribe(&self, topic: &str, overflow: Overflow) -> bool {
        self.takes_messages && self.publisher.subscribe(self.connection, topic, overflow).is_ok()
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
