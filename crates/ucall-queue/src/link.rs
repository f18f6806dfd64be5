//! One link, the stream that carries a session's bytes until it breaks.
#![forbid(unsafe_code)]

use std::time::Instant;

use bytes::Bytes;

use crate::decoder::Decoder;
use crate::frame::Sharing;
use crate::identity::Incarnation;
use crate::outbox::Outbox;
use crate::session::Session;
use crate::shared::SharedMemory;

/// Checks whether the peer of an open link is alive, when another communicator claims its id.
///
/// | state | event | next state |
/// |---|---|---|
/// | no ping, or one answered for another incarnation | a handshake with the same id | ping sent |
/// | ping sent | the pong with its number | answered for that incarnation |
#[derive(Debug, Default)]
pub(crate) struct LivenessCheck {
    new_incarnation: Incarnation,
    number: u64,
    is_answered: bool,
}

impl LivenessCheck {
    /// The number of the ping to send, unless one is in flight.
    pub(crate) fn ping(&mut self, new_incarnation: Incarnation) -> Option<u64> {
        if self.number > 0 && !self.is_answered {
            return None;
        }
        *self = Self { new_incarnation, number: self.number + 1, is_answered: false };
        Some(self.number)
    }

    /// Handles the pong of this number.
    pub(crate) fn handle_pong(&mut self, number: u64) {
        self.is_answered |= number > 0 && number == self.number;
    }

    /// Whether the peer has answered a ping that was sent for this incarnation.
    pub(crate) fn is_answered_since(&self, new_incarnation: Incarnation) -> bool {
        self.is_answered && self.new_incarnation.constant_time_eq(new_incarnation)
    }
}

/// Which side made the link, and sends the first handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// This side.
    Dialed,
    /// The peer.
    Accepted,
}

pub(crate) struct Link {
    pub(crate) role: Role,
    pub(crate) decoder: Decoder,
    /// Its shared memory, if it has any.
    pub(crate) shared: Option<SharedMemory>,
    /// The session: of a dialed link from the start, of an accepted one after the handshake.
    pub(crate) session: Option<u32>,
    pub(crate) is_open: bool,
    /// The name in the peer's certificate, if one was required.
    pub(crate) certificate_name: Option<Box<[u8]>>,
    /// Frames that are sent before messages.
    pub(crate) control: Vec<u8>,
    /// The number of the last ping that is not answered. One number, so that a flood of pings takes
    /// no memory.
    pub(crate) pong_due: Option<u64>,
    /// The check whether the peer is alive, when another communicator claims its id.
    pub(crate) liveness: LivenessCheck,
    pub(crate) opened: Instant,
    pub(crate) received_at: Instant,
    pub(crate) sent_at: Instant,
    /// It is on the list of links that may have output.
    pub(crate) is_queued: bool,
    /// [`Kind::Finish`] was sent on it.
    pub(crate) has_finished: bool,
    /// It is closed after its output is sent.
    pub(crate) is_closing: bool,
    /// Why it is about to be closed, if the stream does not just end.
    pub(crate) close_reason: Option<String>,
}

impl Link {
    pub(crate) fn new(role: Role, decoder: Decoder, now: Instant) -> Self {
        Self {
            role,
            decoder,
            shared: None,
            session: None,
            is_open: false,
            certificate_name: None,
            control: Vec::new(),
            pong_due: None,
            liveness: LivenessCheck::default(),
            opened: now,
            received_at: now,
            sent_at: now,
            is_queued: false,
            has_finished: false,
            is_closing: false,
            close_reason: None,
        }
    }

    /// The parts of the session's next batch, if that fits the output that is being written.
    pub(crate) fn next_batch(
        &mut self,
        session: &mut Session,
        outbox: &Outbox,
    ) -> Option<Vec<Bytes>> {
        match &mut self.shared {
            Some(shared) => shared.next_batch(|| session.next_batch(outbox)),
            None => session.next_batch(outbox),
        }
    }

    /// Its part of the handshake about shared memory.
    pub(crate) fn sharing(&self) -> Sharing {
        self.shared.as_ref().map(SharedMemory::sharing).unwrap_or_default()
    }

    pub(crate) fn begin_output(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.begin_output();
        }
    }

    /// Whether a message is being copied into shared memory.
    pub(crate) fn is_copying(&self) -> bool {
        self.shared.as_ref().is_some_and(SharedMemory::is_copying)
    }
}
