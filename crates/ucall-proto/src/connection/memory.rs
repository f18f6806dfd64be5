//! What a connection reserves of its worker's [`MemoryBudget`], and what it does without memory.
//!
//! A connection reserves requests that are incomplete, and replies that wait for others. A request
//! that arrives whole and is answered at once reserves nothing. The layer that holds the sockets
//! reserves output that is being sent and the params of deferred calls, of the same budget.
//!
//! | a request | while the budget is below its limit | above it |
//! |---|---|---|
//! | that arrived whole | is served | is refused, see [`LoadState`](super::LoadState) |
//! | that begins | is received | is refused |
//! | that has begun | is received | waits, as long as its time allows |
//!
//! Only memory that was filled, or is about to be, is counted and reserved: a length is a claim,
//! and many of them would keep others out at no cost to their peer. The memory of one large request
//! is kept for the next, which then is received in one go.

use std::mem;

use ucall_buffer::Target;

use super::{Awaits, Closing, Environment, MemoryBudget, PlainConnection, Protocol, Scratch, raw};
use crate::Limits;
use crate::http1::{HttpError, Method};
use crate::rpc::Service;

/// What is still to come of a body is received straight to its place from this size on.
const TARGET_BYTES_MIN: usize = 64 << 10;

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

    /// Whether memory is kept for the next large request.
    pub fn keeps_memory(&self) -> bool {
        !self.input.is_empty()
    }

    /// Lets go of it, if no large request was answered since the last call.
    pub fn tidy(&mut self) {
        self.input.tidy();
    }

    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.budget.bytes() > limits.held_bytes_max
    }
}

impl PlainConnection {
    /// See [`Connection::target`](super::Connection::target).
    pub(super) fn target<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Option<Target> {
        if !mem::take(&mut self.fills) {
            return None;
        }
        self.use_spare(environment);
        let room = self.input.capacity() - self.input.len();
        let len = self.missing_bytes().min(self.input.len().max(TARGET_BYTES_MIN).max(room));
        if self.input.try_reserve_exact(len).is_err() {
            self.refuse_overloaded(environment, out);
            self.note_awaits(environment);
            return None;
        }
        self.reserved.resize(self.input.capacity(), &environment.scratch.budget);
        self.is_filling = true;
        Some(Target::from_vec(mem::take(&mut self.input), len))
    }

    /// Goes on in memory that is there for all of the request, if there is some.
    fn use_spare<S>(&mut self, environment: &mut Environment<'_, S>) {
        let total = self.input.len() + self.missing_bytes();
        if self.input.capacity() < total
            && let Some(mut memory) = environment.scratch.input.take(total)
        {
            memory.extend_from_slice(&self.input);
            self.input = memory;
        }
    }

    /// Whether a place from [`Connection::target`] is not back yet.
    pub fn is_filling(&self) -> bool {
        self.is_filling
    }

    /// Whether it waits for memory, to go on by [`Connection::proceed`].
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// See [`Connection::allow_over_budget`](super::Connection::allow_over_budget).
    pub(super) fn allow_over_budget(&mut self) {
        self.may_exceed_budget = true;
    }

    /// Whether [`Connection::allow_over_budget`] is still in force.
    pub fn may_exceed_budget(&self) -> bool {
        self.may_exceed_budget
    }

    /// The bytes that the connection has reserved.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved.bytes()
    }

    #[cold]
    pub(super) fn count_held<S>(&mut self, awaits: Awaits, environment: &mut Environment<'_, S>) {
        if self.is_filling {
            return;
        }
        let chunked = match &self.protocol {
            Protocol::Http(http) => http.held_bytes(),
            _ => 0,
        };
        let holds = self.input.capacity() + chunked + self.exchanges.held_bytes();
        self.reserved.resize(holds, &environment.scratch.budget);
        let receives = matches!(awaits, Awaits::Body { .. });
        self.may_exceed_budget &= receives;
        let is_full = environment.scratch.is_full(environment.limits);
        self.is_starved = receives && is_full && !self.may_exceed_budget;
        self.fills = receives
            && !self.is_starved
            && self.session.is_none()
            && self.missing_bytes() >= TARGET_BYTES_MIN;
    }

    /// How much is to come of a body whose length is known.
    fn missing_bytes(&self) -> usize {
        match &self.protocol {
            Protocol::Http(http) => http.bytes_needed().saturating_sub(self.input.len()),
            _ => 0,
        }
    }

    /// Says that there is no memory for a request, and that the peer may come again.
    #[cold]
    pub(super) fn refuse_overloaded<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        debug_assert!(self.closing == Closing::Open, "nothing is kept once nothing is read");
        match self.protocol {
            Protocol::Http(_) => {
                self.refuse_http(&HttpError::Overloaded, Method::Other, environment, out);
            }
            _ => {
                raw::write_overloaded(out);
                self.stop_reading();
            }
        }
    }
}
