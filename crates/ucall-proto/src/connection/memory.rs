//! What a connection reserves of its worker's [`MemoryBudget`], and what it does without memory.
//!
//! A connection reserves incomplete requests, and replies that wait for others. A request that
//! arrives whole and is answered at once reserves nothing. The layer that owns the sockets reserves
//! queued output and the params of deferred calls from the same budget.
//!
//! | a request | while the budget is below its limit | above it |
//! |---|---|---|
//! | that arrived whole | is served | is refused, see [`LoadState`](super::LoadState) |
//! | that begins | is received | is refused |
//! | that has begun | is received | waits, within its time limit |
//!
//! Only memory that is filled, or is about to be filled, is reserved. A `Content-Length` is only a
//! claim: reserving it would let a peer exhaust the budget at no cost. The memory of large requests
//! is kept for the next ones, which are received in one piece.

use std::mem;

use ucall_buffer::Target;

use super::{
    Destination, Environment, MemoryBudget, PlainConnection, Protocol, ReadEvent, Reading, Scratch,
    WaitState, raw,
};
use crate::Limits;
use crate::http1::HttpError;
use crate::rpc::Service;
use crate::rpc::frame::Attachment;

/// The rest of a body is received directly into its target from this size on.
const TARGET_BYTES_MIN: usize = 64 << 10;
/// More of a body is received in several turns.
const TARGET_BYTES_MAX: usize = 256 << 10;

impl Scratch {
    /// Memory for connections that reserve of this budget.
    pub fn new(budget: MemoryBudget) -> Self {
        Self { budget, ..Self::default() }
    }

    /// What its connections reserve of.
    #[inline]
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Whether bytes are to be sent between those of the output.
    #[inline]
    pub fn has_attachments(&self) -> bool {
        !self.attachments.is_empty()
    }

    /// Takes what is to be sent between the bytes of the output, in order. An output with any has
    /// more than [`MemoryBudget::UNRESERVED_BYTES`].
    pub fn take_attachments(&mut self) -> Vec<Attachment> {
        mem::take(&mut self.attachments)
    }

    /// Whether memory is kept for the next large messages, or will be.
    pub fn has_kept_memory(&self) -> bool {
        self.budget.pool().is_active()
    }

    /// Releases the memory of large messages that no other one has used since the last call.
    pub fn release_unused(&mut self) {
        self.budget.pool().release_unused();
    }

    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.budget.bytes() > limits.held_bytes_max
    }
}

impl PlainConnection {
    /// See [`Connection::poll_target`](super::Connection::poll_target).
    pub(super) fn target<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
    ) -> Option<Target> {
        if !matches!(self.reading, Reading::Open { destination: Destination::Target, .. }) {
            return None;
        }
        if let Some(tail) = &mut self.tail {
            let filled = tail.memory.len();
            let target = tail.target();
            let holds = self.input.capacity() + filled + target.room();
            self.reserved.resize(holds, &environment.scratch.budget);
            self.reading.handle(ReadEvent::TargetPolled);
            return Some(target);
        }
        self.use_kept_memory(environment);
        let room = self.input.capacity() - self.input.len();
        let grown =
            self.remaining_body_bytes().min(self.input.len().max(TARGET_BYTES_MIN).max(room));
        // A turn scans all bytes that it receives.
        let len = grown.min(TARGET_BYTES_MAX);
        if room < len && self.input.try_reserve_exact(grown).is_err() {
            self.refuse_overloaded(environment);
            self.update_wait_state(environment);
            return None;
        }
        self.reserved.resize(self.input.capacity(), &environment.scratch.budget);
        self.reading.handle(ReadEvent::TargetPolled);
        Some(Target::from_vec(mem::take(&mut self.input), len))
    }

    /// Takes the first bytes of a large body to where the rest will be received, if that is known,
    /// so that they are copied once. Returns those that belong to the input, which is empty.
    pub(super) fn begin_large_body<'a, S>(
        &mut self,
        bytes: &'a [u8],
        environment: &Environment<'_, S>,
    ) -> &'a [u8] {
        let total = self.remaining_body_bytes();
        if total.saturating_sub(bytes.len()) < TARGET_BYTES_MIN {
            return bytes;
        }
        if let Some(front_len) = self.copy_tail(bytes, environment) {
            return bytes.get(..front_len).unwrap_or_default();
        }
        if let Some(memory) = environment.scratch.budget.pool().take(total) {
            self.input = memory;
        }
        bytes
    }

    /// Moves the input to kept memory that fits the whole request, if there is any.
    fn use_kept_memory<S>(&mut self, environment: &mut Environment<'_, S>) {
        let total = self.input.len() + self.remaining_body_bytes();
        if self.input.capacity() < total
            && let Some(mut memory) = environment.scratch.budget.pool().take(total)
        {
            memory.extend_from_slice(&self.input);
            self.input = memory;
        }
    }

    /// Whether a target from [`Connection::poll_target`] has not been returned yet.
    pub fn is_filling(&self) -> bool {
        self.reading.is_filling()
    }

    /// Whether the connection waits for memory, until [`Connection::resume`].
    pub fn is_waiting_for_memory(&self) -> bool {
        matches!(self.reading, Reading::Open { destination: Destination::NoMemory, .. })
    }

    /// See [`Connection::allow_over_budget`](super::Connection::allow_over_budget).
    pub(super) fn allow_over_budget(&mut self) {
        self.reading.handle(ReadEvent::Exempt);
    }

    /// Whether [`Connection::allow_over_budget`] is still in force.
    pub fn may_exceed_budget(&self) -> bool {
        matches!(self.reading, Reading::Open { is_exempt: true, .. })
    }

    /// The bytes that the connection has reserved.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved.bytes()
    }

    #[cold]
    pub(super) fn recount_held_bytes<S>(
        &mut self,
        wait_state: WaitState,
        environment: &mut Environment<'_, S>,
    ) {
        if self.reading.is_filling() {
            return;
        }
        if matches!(wait_state, WaitState::Body { .. }) && self.is_large_body() {
            self.begin_tail(environment);
        }
        let apart = match &self.protocol {
            Protocol::Http(http) => http.body.held_bytes(),
            Protocol::WebSocket(socket) => socket.held_bytes(),
            Protocol::Raw(raw) => raw.held_bytes(),
            _ => 0,
        };
        let tail = self.tail.as_ref().map_or(0, |tail| tail.memory.len());
        let holds = self.input.capacity() + tail + apart + self.exchanges.held_bytes();
        self.reserved.resize(holds, &environment.scratch.budget);
        self.reading.handle(match wait_state {
            WaitState::Body { .. } if self.is_decoding() => {
                let is_full = environment.scratch.is_full(environment.limits);
                ReadEvent::CountedUndecoded { is_full }
            }
            WaitState::Body { .. } => ReadEvent::CountedPartial {
                is_full: environment.scratch.is_full(environment.limits),
                is_large: self.session.is_none() && self.is_large_body() && !self.awaits_tail(),
            },
            _ => ReadEvent::CountedWhole,
        });
    }

    /// Whether much of a body is missing.
    fn is_large_body(&self) -> bool {
        self.remaining_body_bytes() >= TARGET_BYTES_MIN
    }

    /// The bytes that are missing of a body whose length is known.
    fn remaining_body_bytes(&self) -> usize {
        if let Some(tail) = &self.tail {
            return tail.missing();
        }
        let bytes_needed = match &self.protocol {
            Protocol::Http(http) => http.body.bytes_needed(),
            Protocol::WebSocket(socket) if socket.inflating.is_some() => 0,
            Protocol::WebSocket(socket) => socket.bytes_needed(),
            Protocol::Raw(raw) => raw.frame_bytes,
            Protocol::Unknown => 0,
        };
        bytes_needed.saturating_sub(self.input.len())
    }

    /// Replies that there is no memory for a request; the client may retry.
    #[cold]
    pub(super) fn refuse_overloaded<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        debug_assert!(self.reading.takes_requests(), "nothing is kept once nothing is read");
        match &self.protocol {
            Protocol::Http(http) if http.body.is_none() => {
                self.refuse_head(&HttpError::Overloaded, environment);
            }
            Protocol::Http(_) => {
                self.refuse_body(&HttpError::Overloaded, environment);
            }
            Protocol::WebSocket(_) => self.refuse_for_memory(environment),
            _ => {
                raw::write_overloaded(environment.out);
                self.discard_input();
            }
        }
    }
}
