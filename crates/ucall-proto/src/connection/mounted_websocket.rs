//! WebSockets of mounted applications, whose messages the service takes one by one.
//!
//! | the connection | bytes of the client | the service sends |
//! |---|---|---|
//! | HTTP, asked for an upgrade | wait | a response: WebSocket with status 101, else the end |
//! | WebSocket | are messages, while the service has room | frames, as items of the request |
//! | the same | Ping: Pong; Close: the end | the payload of a Close frame, as its result: the end |
//!
//! Pings, limits and the end of a connection are those of the WebSockets of calls (`websocket.rs`).
//! While the service has no room, messages wait in the input, in which control frames are found
//! (`cancellation.rs`); what precedes a Close frame reaches the service, whatever its room. Above a
//! limit the connection receives no more. Pongs are not read then, so it ends if the service takes
//! nothing for the time of a silent peer.

use super::exchange::ExchangeReply;
use super::http::Http;
use super::http_body::Body;
use super::streamed_body::{StreamedBody, StreamedContent};
use super::websocket::{SERVER_CLOSES, message_limits};
use super::{Drain, Environment, PlainConnection, Protocol, ReadEvent, Step, http_route};
use crate::http1::{ErrorBody, Head, HttpError};
use crate::rpc::{CallNumber, Service};
use crate::websocket::{
    CloseCode, Event, Handshake, MessageKind, Opcode, Progress, WebSocketError, validate_text,
    write_frame,
};

/// What the response of an application begins with that accepts a WebSocket.
const ACCEPTED: &[u8] = b"HTTP/1.1 101 \r\n";

/// Stands for the code of a Close frame without one (RFC 6455, section 7.4.1).
const NO_CODE: u16 = 1005;

impl Http {
    /// The head of the reply, if `part` accepts the WebSocket that was asked for.
    pub(super) fn take_accepted(&mut self, part: &[u8]) -> Option<Vec<u8>> {
        let Body::Streamed(body) = &mut self.body else { return None };
        let StreamedContent::Upgrade { accepted_head } = &mut body.content else { return None };
        let rest = part.strip_prefix(ACCEPTED)?;
        accepted_head.extend_from_slice(rest);
        Some(std::mem::take(accepted_head))
    }
}

impl PlainConnection {
    /// Has an application answer a GET that asks for a WebSocket. Returns `None` for any other one.
    pub(super) fn upgrade_mounted<S: Service>(
        &mut self,
        head: &Head<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Option<Step> {
        if !http_route::is_mounted(head, environment.service) {
            return None;
        }
        let mut accepted_head = Vec::new();
        match Handshake::parse(head) {
            Ok(None) => return None,
            Ok(Some(handshake)) => handshake.write_accepted(&mut accepted_head),
            Err(error) => return Some(self.refuse_http(&error, ErrorBody::Text, environment)),
        }
        if environment.drain != Drain::No {
            return Some(self.refuse_http(&HttpError::Draining, ErrorBody::Text, environment));
        }
        // A response that denies it is the last one.
        let reply_headers = match self.check_or_refuse(head, true, environment) {
            Ok(reply_headers) => reply_headers,
            Err(step) => return Some(step),
        };
        // The response follows those to earlier requests.
        if !self.exchanges.is_empty() {
            self.reading.handle(ReadEvent::Wait);
            return Some(Step::Incomplete);
        }
        let number = CallNumber { request: self.requests + 1, item: 0 };
        let (content, awaits_room) = (StreamedContent::Upgrade { accepted_head }, false);
        let (is_last, allowed_origin) = (true, None);
        self.set_body(StreamedBody { number, content, awaits_room, is_last, allowed_origin });
        self.run_streamed_route(head, &reply_headers, environment);
        if self.exchanges.is_empty() {
            self.discard_input();
        }
        Some(Step::Consumed(head.len()))
    }

    /// Whether an application has not answered yet whether it accepts a WebSocket.
    pub(super) fn asks_for_upgrade(&self) -> bool {
        let Protocol::Http(http) = &self.protocol else { return false };
        let Body::Streamed(body) = &http.body else { return false };
        matches!(body.content, StreamedContent::Upgrade { .. })
    }

    /// Whether the connection is a WebSocket of an application.
    pub fn is_mounted_websocket(&self) -> bool {
        let Protocol::WebSocket(socket) = &self.protocol else { return false };
        socket.mounted_by().is_some()
    }

    /// Passes on the messages that `bytes` starts with; returns the length of their frames.
    #[cold]
    #[inline(never)]
    pub(super) fn process_mounted_frames<S: Service>(
        &mut self,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) -> usize {
        let mut used = 0;
        while let Some(rest @ [_, ..]) = bytes.get_mut(used..)
            && self.reading.takes_requests()
            && let Step::Consumed(count) = self.step_mounted_frame(rest, environment)
        {
            used += count;
        }
        if used > 0
            && let Protocol::WebSocket(socket) = &mut self.protocol
        {
            socket.pings = 0;
        }
        if used > 0 && environment.drain == Drain::Refusing && self.reading.takes_requests() {
            self.close_websocket(CloseCode::GOING_AWAY, SERVER_CLOSES, environment);
        }
        used
    }

    /// Handles the frame that `rest` starts with, if it is complete and there is room for it.
    fn step_mounted_frame<S: Service>(
        &mut self,
        rest: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let is_full = self.is_output_full(environment);
        let Protocol::WebSocket(socket) = &mut self.protocol else { return Step::Incomplete };
        let Some(number) = socket.mounted_by() else { return Step::Incomplete };
        if rest.len() < socket.bytes_needed {
            return Step::Incomplete;
        }
        let has_room = !is_full && environment.service.takes_body(number);
        if !has_room && !socket.is_ending {
            self.reading.handle(ReadEvent::Wait);
            return Step::Incomplete;
        }
        self.read_mounted_frame(rest, environment)
    }

    /// Handles the frame that `rest` starts with, if it is complete.
    pub(super) fn read_mounted_frame<S: Service>(
        &mut self,
        rest: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return Step::Incomplete };
        let Some(number) = socket.mounted_by() else { return Step::Incomplete };
        let had_head = std::mem::take(&mut socket.bytes_needed) > 0;
        match socket.reader.read(rest, &message_limits(environment.limits)) {
            Ok(Progress::Frame { len, event }) => {
                self.handle_mounted_frame(number, event, environment);
                Step::Consumed(len)
            }
            Ok(Progress::Incomplete { bytes_needed }) => {
                socket.bytes_needed = bytes_needed;
                if !had_head && !socket.reader.has_fragments() {
                    self.close_if_full(environment);
                }
                Step::Incomplete
            }
            Err(error) => {
                self.violate(&error, environment);
                Step::Incomplete
            }
        }
    }

    fn handle_mounted_frame<S: Service>(
        &mut self,
        number: CallNumber,
        event: Event<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        match event {
            Event::Message { kind: MessageKind::Text, payload }
                if validate_text(&payload).is_err() =>
            {
                self.violate(&WebSocketError::TextNotUtf8, environment);
            }
            Event::Message { kind, payload } => {
                environment.service.take_message(number, kind, &payload);
            }
            Event::Fragment { is_first: true } => self.close_if_full(environment),
            // It is declined: the reader takes it for reserved bits.
            Event::Compressed { .. } => self.violate(&WebSocketError::ReservedBits, environment),
            Event::Fragment { .. } | Event::Pong(_) => {}
            Event::Ping(payload) => write_frame(environment.out, Opcode::Pong, payload),
            Event::Close(close) => {
                let (code, reason) = close.map_or((NO_CODE, ""), |it| (it.code.get(), it.reason));
                environment.service.end_messages(number, code, reason);
                let answer = close.map_or(CloseCode::NORMAL, |close| close.code);
                self.close_websocket(answer, "", environment);
            }
        }
    }

    /// The client sends no more messages: passes the buffered ones to the application, even without
    /// room.
    pub(super) fn end_mounted_input(&mut self) {
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            socket.is_ending = socket.mounted_by().is_some();
        }
    }

    /// Whether buffered messages are passed to the application even without room.
    pub(super) fn is_mounted_ending(&self) -> bool {
        matches!(&self.protocol, Protocol::WebSocket(socket) if socket.is_ending)
    }

    /// Whether messages of an application wait, because it has no room.
    pub(super) fn waits_for_application(&self) -> bool {
        self.reading.is_paused() && self.is_mounted_websocket()
    }

    /// Tells the application of an open WebSocket that the server closes it.
    pub(super) fn report_closing<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let Protocol::WebSocket(socket) = &self.protocol else { return };
        if let Some(number) = socket.mounted_by() {
            let code = CloseCode::GOING_AWAY.get();
            environment.service.end_messages(number, code, SERVER_CLOSES);
        }
    }

    /// The application has ended its WebSocket: the reply is the payload of the Close frame, or an
    /// error.
    pub(super) fn end_mounted(&mut self, reply: &ExchangeReply, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        reply.write(&mut payload);
        let (code, reason) = match payload.split_first_chunk() {
            Some((code, reason)) => (CloseCode::new(u16::from_be_bytes(*code)), reason),
            None => (None, &[][..]),
        };
        // The text of an error has no code.
        let reason = std::str::from_utf8(reason).ok().filter(|_| code.is_some());
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            let code = code.unwrap_or(CloseCode::INTERNAL_ERROR);
            socket.close(code, reason.unwrap_or_default(), out);
        }
        self.discard_input();
    }
}
