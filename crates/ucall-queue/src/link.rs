//! One link: what carries a session's bytes just now.
#![forbid(unsafe_code)]

use std::time::Instant;

use bytes::Bytes;

use crate::decoder::Decoder;
use crate::frame::Sharing;
use crate::identity::Incarnation;
use crate::outbox::Outbox;
use crate::session::Session;
use crate::shared::SharedMemory;

/// Whether the other side of a link is alive, which looks whole from here: asked on behalf of a
/// newcomer who says to have the same id.
///
/// | now | what happens | next |
/// |---|---|---|
/// | nothing was asked, or somebody else was answered | a newcomer | asked for it |
/// | asked | the pong with its number | answered for it |
#[derive(Debug, Default)]
pub(crate) struct LivenessCheck {
    new_incarnation: Incarnation,
    number: u64,
    is_answered: bool,
}

impl LivenessCheck {
    /// The number of the ping to send, unless one is on its way.
    pub(crate) fn ping(&mut self, new_incarnation: Incarnation) -> Option<u64> {
        if self.number > 0 && !self.is_answered {
            return None;
        }
        *self = Self { new_incarnation, number: self.number + 1, is_answered: false };
        Some(self.number)
    }

    /// Takes a pong of this number.
    pub(crate) fn handle_pong(&mut self, number: u64) {
        self.is_answered |= number > 0 && number == self.number;
    }

    /// Whether the other side has shown to be alive since this newcomer came.
    pub(crate) fn is_answered_since(&self, new_incarnation: Incarnation) -> bool {
        self.is_answered && self.new_incarnation.constant_time_eq(new_incarnation)
    }
}

/// Which side of the link speaks first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// We made it.
    Dialed,
    /// The other side did.
    Accepted,
}

pub(crate) struct Link {
    pub(crate) role: Role,
    pub(crate) decoder: Decoder,
    /// What it has beside its stream, if it has.
    pub(crate) shared: Option<SharedMemory>,
    /// The session, once the handshake told which. For a dialed one that is known at once.
    pub(crate) session: Option<u32>,
    pub(crate) is_open: bool,
    /// Whom the other side's certificate names, if it had to show one.
    pub(crate) certificate_name: Option<Box<[u8]>>,
    /// Frames that are not messages, in line before those.
    pub(crate) control: Vec<u8>,
    /// The number of the last ping that was not answered, however many came: a flood of them takes
    /// no memory.
    pub(crate) pong_due: Option<u64>,
    /// What the other side is to show because somebody else has its id.
    pub(crate) liveness: LivenessCheck,
    pub(crate) opened: Instant,
    pub(crate) received_at: Instant,
    pub(crate) sent_at: Instant,
    /// It is on the list of links with something to send.
    pub(crate) is_queued: bool,
    /// [`Kind::Finish`] was said on it.
    pub(crate) has_finished: bool,
    /// It is closed once what it has to say is said.
    pub(crate) is_closing: bool,
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
        }
    }

    /// The parts of what a session sends next, if that goes into the output that is being written.
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

    /// What it has to say of shared memory.
    pub(crate) fn sharing(&self) -> Sharing {
        self.shared.as_ref().map(SharedMemory::sharing).unwrap_or_default()
    }

    pub(crate) fn begin_output(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.begin_output();
        }
    }

    /// Has the next output tell the peer that it may write to a slot again.
    pub(crate) fn release_slot(&mut self, slot: usize) {
        if let Some(shared) = &mut self.shared {
            shared.give_back(slot);
        }
    }

    /// Whether a message is being copied into shared memory.
    pub(crate) fn is_copying(&self) -> bool {
        self.shared.as_ref().is_some_and(SharedMemory::is_copying)
    }
}
