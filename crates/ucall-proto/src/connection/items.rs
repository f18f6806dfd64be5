//! Frames the items of streams, and the replies that were deferred.
//!
//! | protocol | an item is | the reply after the last |
//! |---|---|---|
//! | WebSocket, raw TCP | a message | is a message |
//! | WebSocket of an application | frames | is the payload of a Close frame |
//! | HTTP | an event or a line in a chunk of its own | is the last of them |
//!
//! Over HTTP a stream is the first exchange: its request has waited for the replies before it.

use std::time::Instant;

use super::exchange::ExchangeReply;
use super::websocket::WebSocket;
use super::{Environment, PlainConnection, Protocol};
use crate::rpc::CallNumber;
use crate::websocket::{Opcode, write_head};

impl PlainConnection {
    /// Appends an item of a stream, whose value is JSON text. Returns `false` if nothing waits for
    /// it any more.
    pub(super) fn write_item<S>(
        &mut self,
        number: CallNumber,
        value: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> bool {
        let Some((framing, token)) = self.exchanges.stream(number) else { return false };
        match &mut self.protocol {
            Protocol::Http(http) if framing.response.is_some() => match http.take_accepted(value) {
                None => framing.write_part(value, environment),
                Some(head) => {
                    environment.out.extend_from_slice(&head);
                    self.protocol = Protocol::WebSocket(WebSocket::mounted(number));
                }
            },
            Protocol::Http(_) => {
                framing.write_item(token, value, environment);
            }
            Protocol::WebSocket(socket) if socket.is_closed() => return false,
            Protocol::WebSocket(socket) if socket.mounted_by().is_some() => {
                environment.out.extend_from_slice(value);
            }
            Protocol::WebSocket(_) => {
                write_head(environment.out, Opcode::Text, token.item_len(value));
                token.write_item(environment.out, value);
            }
            Protocol::Raw(_) | Protocol::Unknown => {
                token.write_item(environment.out, value);
                environment.out.push(b'\n');
            }
        }
        true
    }

    /// When a comment is due to the reader of events.
    pub(super) fn comment_due(&self) -> Option<Instant> {
        self.exchanges.peek_framing()?.items.as_ref()?.comment_due()
    }

    pub(super) fn write_comment<S>(&mut self, environment: &mut Environment<'_, S>) {
        if let Some(framing) = self.exchanges.first_framing() {
            framing.write_comment(environment);
        }
    }

    /// Moves replies to the output that are whole after this call: in order, or its own.
    pub(super) fn flush_completed<S>(
        &mut self,
        number: CallNumber,
        environment: &mut Environment<'_, S>,
    ) {
        if matches!(self.protocol, Protocol::Http(_)) {
            return self.flush_in_order(environment);
        }
        if let Some((_, reply)) = self.exchanges.pop_whole(number.request)
            && !reply.is_empty()
        {
            if let ExchangeReply::WithParts(frame) = reply {
                self.write_frame_message(*frame, environment);
            } else if self.is_websocket() {
                self.write_message(&reply, environment.out);
            } else {
                reply.write(environment.out);
                environment.out.push(b'\n');
            }
        }
        self.end_after_replies(environment.out);
    }
}
