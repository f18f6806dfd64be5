//! What the connections of a worker share, and what a step of one borrows of it.

use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{Engine, EngineClock, release_freed_memory};
use ucall_proto::http1::ReplyWriter;
use ucall_proto::tls::TlsError;
use ucall_proto::{Attachment, Connection, Drain, Environment, LoadState, MemoryBudget, Scratch};

use crate::caller::Caller;
use crate::config::WorkerConfig;
use crate::connections::Entry;
use crate::dispatch::{Availability, Dispatch, Dispatcher};
use crate::freed_memory::FreedMemory;
use crate::handler::Handler;
use crate::native::NativeLimits;
use crate::procedures::Procedures;
use crate::tls::TlsChecks;

/// Of what a worker may hold, the part that it keeps at most for large messages to come.
const KEPT_SHARE: usize = 16;

/// The parts of a worker that all of its connections use.
pub(crate) struct WorkerContext<H: Handler> {
    pub(crate) config: WorkerConfig,
    pub(crate) dispatcher: Dispatcher<H>,
    /// When this turn began.
    pub(crate) now: Instant,
    clock: EngineClock,
    availability: Availability,
    replies: ReplyWriter,
    scratch: Scratch,
    tls_checks: TlsChecks,
    freed: FreedMemory,
}

impl<H: Handler> WorkerContext<H> {
    pub(crate) fn new(
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: WorkerConfig,
        clock: EngineClock,
    ) -> Self {
        let mut replies = ReplyWriter::default();
        if let Some(challenge) = &config.challenge {
            replies.set_challenge(challenge.clone());
        }
        Self {
            now: clock.now(),
            availability: Availability::default(),
            replies,
            scratch: new_scratch(handler.memory_budget(), &config),
            tls_checks: TlsChecks::default(),
            freed: FreedMemory::default(),
            dispatcher: Dispatcher::new(handler, procedures, &config, &clock),
            config,
            clock,
        }
    }

    /// The connections that may be open, beside the sockets of native procedures.
    pub(crate) fn connections_max(&self) -> usize {
        let sockets = self.dispatcher.natives.sockets();
        self.config.connections_max.min(self.config.sockets_max.saturating_sub(sockets))
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        self.scratch.budget()
    }

    /// Takes what is sent between the bytes of the output of the last step.
    #[inline]
    pub(crate) fn take_attachments(&mut self) -> Option<Vec<Attachment>> {
        self.scratch.has_attachments().then(|| self.scratch.take_attachments())
    }

    /// Whether there is memory for more requests, as of [`WorkerContext::update_load`].
    #[inline]
    pub(crate) fn load(&self) -> LoadState {
        self.availability.load
    }

    /// Whether all calls are refused just now.
    pub(crate) fn is_rejecting(&self) -> bool {
        self.availability.rejection().is_some()
    }

    /// Compares what is reserved with the limit. Threads of other languages may release
    /// reservations at any time, so each turn begins with an update.
    #[inline]
    pub(crate) fn update_load(&mut self) {
        let is_exceeded = self.scratch.budget().bytes() > self.config.limits.held_bytes_max;
        let load = if is_exceeded { LoadState::Overloaded } else { LoadState::Normal };
        if load != self.availability.load {
            self.set_availability(Availability { load, ..self.availability });
        }
    }

    /// Has health checks report a drain, which is about to begin.
    pub(crate) fn announce_drain(&mut self) {
        self.set_availability(Availability { is_draining: true, ..self.availability });
    }

    pub(crate) fn set_drain(&mut self, drain: Drain) {
        self.set_availability(Availability { drain, ..self.availability });
    }

    #[cold]
    fn set_availability(&mut self, availability: Availability) {
        self.availability = availability;
        self.dispatcher.set_availability(&self.config, availability, &self.clock);
    }

    /// Begins a turn, whose wait has ended by `now`.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.update_load();
        if self.dispatcher.begin_turn(now) {
            self.set_availability(self.availability);
        }
    }

    /// All calls of a turn have begun. Returns whether the next wait has to poll for the end of a
    /// send.
    #[inline(always)]
    pub(crate) fn end_calls(&mut self, engine: &mut impl Engine, connections: usize) -> bool {
        self.dispatcher.handler.turn_ended(self.now);
        self.dispatcher.natives.are_used() && self.end_native_calls(engine, connections)
    }

    #[inline(never)]
    fn end_native_calls(&mut self, engine: &mut impl Engine, connections: usize) -> bool {
        let limits = NativeLimits {
            held_bytes_max: self.config.limits.held_bytes_max,
            sockets_max: self.config.sockets_max.saturating_sub(connections),
        };
        let Dispatcher { handler, natives, .. } = &mut self.dispatcher;
        natives.end_turn(self.now, engine, &limits);
        for line in natives.take_warnings() {
            handler.warn(&line);
        }
        natives.take_poll()
    }

    /// Begins a sweep: sets the date of replies, reads TLS files that have changed, and releases
    /// memory that no request has used since the last sweep.
    pub(crate) fn begin_sweep(&mut self, unix_time_s: u64) {
        self.replies.set_time(unix_time_s);
        self.scratch.release_unused();
        if self.freed.is_much(self.scratch.budget().take_peak()) {
            release_freed_memory();
        }
        self.check_tls();
    }

    /// Whether a sweep may have memory to return to the system.
    pub(crate) fn may_have_freed(&self) -> bool {
        let budget = self.scratch.budget();
        self.freed.may_be_much(budget.peak(), budget.bytes())
    }

    /// Whether memory of large messages is kept, or will be, until a sweep releases it.
    pub(crate) fn has_kept_memory(&self) -> bool {
        self.scratch.has_kept_memory()
    }

    /// Reads TLS files that have changed since they were checked last, more than a second ago.
    pub(crate) fn check_tls(&mut self) {
        let Some(tls) = &self.config.tls else { return };
        for problem in self.tls_checks.check(tls, self.now, || self.clock.unix_time()) {
            self.dispatcher.handler.warn(&format!("TLS: {problem}"));
        }
    }

    /// Has a handshake that begins use the files as they are now; `false` if it cannot begin.
    #[inline(never)]
    pub(crate) fn begin_handshake(&mut self, connection: &mut Connection) -> bool {
        self.check_tls();
        let renewed = self.config.tls.as_ref().map(|tls| tls.renew(connection));
        self.has_begun(renewed.unwrap_or(Ok(()))).is_some()
    }

    /// The protocol state of a new connection; `None` if TLS cannot begin.
    pub(crate) fn new_connection(&mut self) -> Option<Connection> {
        let WorkerConfig { limits, tls, .. } = &self.config;
        let Some(tls) = tls else { return Some(Connection::new(self.now, limits)) };
        let accepted = tls.accept().map(|tls| Connection::with_tls(self.now, limits, tls));
        self.has_begun(accepted)
    }

    fn has_begun<T>(&mut self, begun: Result<T, TlsError>) -> Option<T> {
        let warn = |error: &TlsError| {
            let line = format!("TLS: cannot begin on a new connection: {error}");
            self.dispatcher.handler.warn(&line);
        };
        begun.inspect_err(warn).ok()
    }

    /// Runs a step of a connection, which appends its output to `out`. Inlined, as a call is one
    /// step; it is too long for `#[inline]`.
    #[inline(always)]
    pub(crate) fn step<T>(
        &mut self,
        entry: &mut Entry,
        out: &mut Vec<u8>,
        step: impl FnOnce(&mut Connection, &mut Environment<'_, Dispatch<'_, H>>) -> T,
    ) -> T {
        let Entry { proto, caller, outgoing, .. } = entry;
        self.run(caller, out, outgoing.reply_bytes(), |environment| step(proto, environment))
    }

    /// Runs calls that have come without a connection, whose reply is appended to `out`.
    #[inline(never)]
    pub(crate) fn with_datagram<T>(
        &mut self,
        caller: &Caller,
        out: &mut Vec<u8>,
        run: impl FnOnce(&mut Environment<'_, Dispatch<'_, H>>) -> T,
    ) -> T {
        self.run(&mut caller.clone(), out, 0, run)
    }

    #[inline(always)]
    fn run<T>(
        &mut self,
        caller: &mut Caller,
        out: &mut Vec<u8>,
        queued_bytes: usize,
        run: impl FnOnce(&mut Environment<'_, Dispatch<'_, H>>) -> T,
    ) -> T {
        run(&mut Environment {
            limits: &self.config.limits,
            access: &self.config.access,
            now: self.now,
            replies: &mut self.replies,
            service: &mut Dispatch { dispatcher: &mut self.dispatcher, caller },
            scratch: &mut self.scratch,
            out,
            queued_bytes,
            drain: self.availability.drain,
            load: self.availability.load,
        })
    }
}

fn new_scratch(budget: MemoryBudget, config: &WorkerConfig) -> Scratch {
    budget.pool().set_bytes_max(config.limits.held_bytes_max / KEPT_SHARE);
    Scratch::new(budget)
}

#[cfg(test)]
mod tests {
    use ucall_proto::http1::AccessRules;
    use ucall_proto::{Call, CallOutcome, Reply, Reservation};

    use super::*;
    use crate::dispatch::RejectionReason;

    struct Silent;

    impl Handler for Silent {
        type Procedure = ();

        fn call(&mut self, (): &(), _: &Call<'_>, _: &Caller, _: &mut Reply<'_>) -> CallOutcome {
            CallOutcome::Done
        }
    }

    #[test]
    fn a_sixteenth_of_what_may_be_held_is_kept_for_large_messages() {
        let mut config = WorkerConfig::new(AccessRules::new(true, &[], &[]).expect("no rules"));
        config.limits.held_bytes_max = 16 * 100_000 + 15;
        let procedures = Arc::new(Procedures::new());
        let context = WorkerContext::new(Silent, procedures, config, EngineClock::stopped());
        let pool = context.budget().pool();
        for (bytes, kept) in [(100_000, 100_000), (100_001, 0)] {
            assert!(pool.take(bytes).is_none());
            pool.put(Vec::with_capacity(bytes));
            assert_eq!(pool.bytes(), kept);
            assert_eq!(pool.take(bytes).is_some(), kept > 0);
        }
    }

    #[test]
    fn the_load_follows_the_budget_and_a_drain_that_refuses_comes_first() {
        let mut config = WorkerConfig::new(AccessRules::new(true, &[], &[]).expect("no rules"));
        config.limits.held_bytes_max = 100;
        let procedures = Arc::new(Procedures::new());
        let mut context = WorkerContext::new(Silent, procedures, config, EngineClock::stopped());
        let (mut held, budget) = (Reservation::default(), context.budget().clone());
        for (bytes, drain, load, rejection) in [
            (100, Drain::No, LoadState::Normal, None),
            (101, Drain::No, LoadState::Overloaded, Some(RejectionReason::Overload)),
            (101, Drain::Serving, LoadState::Overloaded, Some(RejectionReason::Overload)),
            (101, Drain::Refusing, LoadState::Overloaded, Some(RejectionReason::Drain)),
            (0, Drain::Refusing, LoadState::Normal, Some(RejectionReason::Drain)),
        ] {
            held.resize(bytes, &budget);
            context.update_load();
            context.set_drain(drain);
            assert_eq!((context.load(), context.availability.rejection()), (load, rejection));
        }
    }
}
