//! The end of the peer's side of the stream, after which it may still read.
//!
//! A peer that has shut down its sending side looks like one that has closed its socket, until it
//! answers bytes with a reset. The layer that owns the socket notices the reset, closes the
//! connection and so cancels its calls.
//!
//! | protocol | the calls that run | the bytes |
//! |---|---|---|
//! | HTTP/1.1, before the reply has begun | go on | an interim response (RFC 9110, section 15.2) |
//! | HTTP/1.1, server-sent events | go on | a comment |
//! | HTTP, within a body that is passed on while it arrives | are cancelled | |
//! | other HTTP | are cancelled | |
//! | raw TCP | go on | those of the replies |
//! | WebSocket | are cancelled | |

use super::raw;
use super::{Environment, PlainConnection, Protocol, ReadEvent, WaitState};
use crate::http1::HttpError;
use crate::rpc::Service;

/// Pieces of 64 KiB that are decoded at once at the end of the input.
const PIECES_AT_END_MAX: usize = 16;

impl PlainConnection {
    /// The peer has shut down its side: answers the input. The calls of HTTP go on if the peer can
    /// be probed. It is truncated without the close_notify of TLS.
    pub(super) fn handle_eof<S: Service>(
        &mut self,
        is_truncated: bool,
        environment: &mut Environment<'_, S>,
    ) {
        if self.waits_for_application() {
            self.end_mounted_input();
            self.process_input(environment);
        }
        self.decode_at_end(environment);
        if matches!(self.protocol, Protocol::Http(_))
            && !self.exchanges.is_empty()
            // Without a close_notify the end of a stream under TLS may be forged.
            && (is_truncated
                || self.awaits_body(environment.limits)
                || !self.probe_half_closed(environment))
        {
            self.cancel();
        }
        self.end_input(environment);
    }

    /// Decodes the bodies that the input ends with. No turn follows that could decode more, so a
    /// longer one is refused. One that is passed on is decoded as the service has room.
    pub(super) fn decode_at_end<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        // The calls of a WebSocket are cancelled then.
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            socket.discard();
        }
        let mut pieces = 0;
        while self.is_decoding() && !self.streams_body() {
            if pieces == PIECES_AT_END_MAX || environment.scratch.is_full(environment.limits) {
                self.refuse_body(&HttpError::Overloaded, environment);
                return;
            }
            self.decode_piece(environment);
            pieces += 1;
        }
    }

    /// Nothing follows the input.
    pub(super) fn end_input<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        match &self.protocol {
            Protocol::Raw(_) if !self.input.is_empty() && !self.reading.is_paused() => {
                raw::refuse_truncated(environment.limits, environment.out);
                self.input = Vec::new();
            }
            Protocol::Raw(_) => {}
            Protocol::Http(_)
                if self.wait_state == WaitState::Head && self.exchanges.is_empty() =>
            {
                self.refuse_partial_head(environment);
            }
            Protocol::Http(_) => {}
            // The layer that owns the socket cancels their handlers when it closes the connection.
            _ => self.exchanges.cancel(),
        }
        if !self.reading.is_paused() {
            self.discard_input();
        }
        self.reading.handle(ReadEvent::End);
        self.update_wait_state(environment);
    }

    /// Writes something that the peer of HTTP ignores. Returns `false` if it may not, or if there
    /// is nothing of that kind.
    fn probe_half_closed<S>(&mut self, environment: &mut Environment<'_, S>) -> bool {
        let framing = self.exchanges.first_framing();
        framing.is_some_and(|it| it.write_probe(environment))
    }
}
