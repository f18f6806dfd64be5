//! Messages of a WebSocket that are compressed (RFC 7692, section 7.2.2).
//!
//! A few bytes may expand to many. As for [bodies](super::pieces), a step decodes one piece of a
//! message; if more of it is left, the connection reads nothing until the next turn has decoded
//! another piece. The limits are those of bodies.

use std::borrow::Cow;
use std::sync::Arc;

use super::calls::{RequestContext, run_outlined};
use super::pieces::{CodedBody, PIECE_BYTES};
use super::{Drain, Environment, PlainConnection, Protocol};
use crate::Limits;
use crate::coding::Decoder;
use crate::http1::HttpError;
use crate::rpc::{DocumentOutline, Service};
use crate::websocket::{Event, MESSAGE_TAIL, MessageKind, WebSocketError};

/// A last block without data. A decoder is at its end after it, and after the end of a message, if
/// it was between blocks before. In a message that was cut within one, these are some of its data.
const LAST_BLOCK: [u8; 5] = [1, 0, 0, 0xff, 0xff];

/// A message that has arrived, and is not decoded.
#[derive(Debug)]
pub(super) struct InflatingMessage {
    kind: MessageKind,
    coded: CodedBody,
    payload: Vec<u8>,
    /// The requests of a long message.
    outline: DocumentOutline,
}

impl InflatingMessage {
    fn new(kind: MessageKind, encoded: Vec<u8>) -> Option<Self> {
        Decoder::of_deflate().map(|decoder| {
            let coded = CodedBody::of(decoder, encoded);
            Self { kind, coded, payload: Vec::new(), outline: DocumentOutline::default() }
        })
    }

    /// The bytes of the message that have arrived.
    pub(super) fn received_len(&self) -> usize {
        self.coded.received_len()
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.coded.held_bytes() + self.payload.capacity() + self.outline.held_bytes()
    }

    /// Decodes a piece. Returns whether it was the last.
    fn decode(&mut self, limits: &Limits) -> Result<bool, WebSocketError> {
        self.decode_piece(limits)?;
        if self.coded.has_undecoded() {
            return Ok(false);
        }
        if !self.coded.is_at_end() {
            let len = self.payload.len();
            self.coded.push(&MESSAGE_TAIL);
            self.coded.push(&LAST_BLOCK);
            self.decode_piece(limits)?;
            if self.payload.len() > len || !self.coded.is_at_end() {
                return Err(WebSocketError::CompressionMalformed);
            }
        }
        Ok(true)
    }

    fn decode_piece(&mut self, limits: &Limits) -> Result<(), WebSocketError> {
        let bytes_max = limits.body_bytes_max;
        self.coded.decode(&mut self.payload, bytes_max, limits).map_err(|error| match error {
            HttpError::DecodedBodyTooLarge { .. } => {
                WebSocketError::MessageTooLarge { limit: bytes_max }
            }
            HttpError::BodyRatioTooLarge { .. } => {
                WebSocketError::MessageRatioTooLarge { limit: limits.body_ratio_max }
            }
            _ => WebSocketError::CompressionMalformed,
        })?;
        if self.kind == MessageKind::Text && self.payload.len() > limits.long_bytes_min {
            self.outline.scan_framed(&self.payload, limits);
        }
        Ok(())
    }
}

impl PlainConnection {
    /// Decodes the first piece of a message, which runs if that is all of it.
    #[cold]
    pub(super) fn inflate_message<S: Service>(
        &mut self,
        kind: MessageKind,
        encoded: Vec<u8>,
        environment: &mut Environment<'_, S>,
    ) {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return };
        match InflatingMessage::new(kind, encoded) {
            Some(message) => socket.begin_inflating(message),
            None => return self.refuse_for_memory(environment),
        }
        if socket.inflated < PIECE_BYTES {
            self.inflate_piece(environment);
        }
    }

    /// Decodes the first piece of a turn.
    pub(super) fn inflate_further<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return };
        socket.inflated = 0;
        if self.inflate_piece(environment) && environment.drain == Drain::Refusing {
            self.write_read_count(environment.out);
            self.go_away(environment.out);
        }
    }

    /// Decodes the next piece of a message. Returns whether it was the last one, and the message
    /// ran.
    fn inflate_piece<S: Service>(&mut self, environment: &mut Environment<'_, S>) -> bool {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return false };
        let Some(message) = &mut socket.inflating else { return false };
        let before = message.payload.len();
        let decoded = message.decode(environment.limits);
        socket.inflated += message.payload.len() - before;
        match decoded {
            Err(error) => {
                self.violate(&error, environment);
                false
            }
            Ok(false) => false,
            Ok(true) => {
                let message = socket.take_inflated();
                message.into_iter().for_each(|message| self.run_inflated(*message, environment));
                true
            }
        }
    }

    fn run_inflated<S: Service>(
        &mut self,
        message: InflatingMessage,
        environment: &mut Environment<'_, S>,
    ) {
        let InflatingMessage { kind, payload, outline, .. } = message;
        if outline.has_requests() {
            let document = Arc::new(payload);
            environment.service.share(Some(&document));
            let run = |context: RequestContext<'_>, environment: &mut _| {
                run_outlined(&document, &outline, context, environment)
            };
            self.run_message_with(kind, &document, environment, run);
            environment.service.share(None);
        } else {
            self.handle_frame(Event::Message { kind, payload: Cow::Owned(payload) }, environment);
        }
    }
}
