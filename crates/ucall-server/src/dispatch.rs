//! Dispatch: finds and runs the procedures of the calls in a step of a connection.
//!
//! [`WorkerContext`] is the state that all connections of a worker share, such as its handler and
//! its procedures. A step borrows it as [`Dispatch`], the [`Service`] of the connection.

use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{Engine, EngineClock, Id, OwningProcess};
use ucall_proto::http1::{Head, Methods, ReplyWriter};
use ucall_proto::json::Text;
use ucall_proto::tls::{TlsError, TlsSession};
use ucall_proto::{
    AuthenticationError, CANCEL_REQUEST, Call, CallNumber, CallOutcome, CallerIdentity, Connection,
    Drain, Environment, LoadState, MemoryBudget, Reply, RpcError, Scratch, Service,
};

use crate::caller::{CallId, Caller, Transport};
use crate::config::WorkerConfig;
use crate::connections::Entry;
use crate::deferred_calls::RunLimit;
use crate::handler::{Handler, Polled};
use crate::health;
use crate::mailbox::Mailbox;
use crate::native::{NativeHandlers, NativeLimits};
use crate::procedures::{ProcedureCache, Procedures};
use crate::routes::{Route, RouteAccess, RouteTarget};
use crate::tls::TlsChecks;
use diversion::{Diversion, Rejection, rejection_error};

/// The state that all connections of a worker share.
pub(crate) struct WorkerContext<H: Handler> {
    handler: H,
    config: WorkerConfig,
    procedures: ProcedureCache<H::Procedure>,
    replies: ReplyWriter,
    now: Instant,
    calls: u64,
    drain: Drain,
    load: LoadState,
    /// Whether a drain is in progress or about to begin.
    is_draining: bool,
    /// Derived from `drain` and `load`.
    rejection: Option<Rejection>,
    /// `None` while calls go straight to their procedures.
    diversion: Option<Box<Diversion>>,
    scratch: Scratch,
    tls_checks: TlsChecks,
    /// The serving process. A child that a function has forked does not serve.
    process: OwningProcess,
}

impl<H: Handler> WorkerContext<H> {
    pub(crate) fn new(
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: WorkerConfig,
        clock: EngineClock,
    ) -> Self {
        let now = clock.now();
        let mut replies = ReplyWriter::default();
        if let Some(challenge) = &config.challenge {
            replies.set_challenge(challenge);
        }
        let natives = NativeHandlers::new(
            handler.run_limit(),
            handler.memory_budget(),
            handler.metrics(),
            clock.clone(),
        );
        Self {
            scratch: Scratch::new(handler.memory_budget()),
            diversion: Diversion::of(&config, None, false, &clock),
            handler,
            config,
            procedures: ProcedureCache::new(procedures, natives),
            replies,
            now,
            calls: 0,
            drain: Drain::No,
            load: LoadState::Normal,
            is_draining: false,
            rejection: None,
            tls_checks: TlsChecks::default(),
            process: OwningProcess::current(),
        }
    }

    /// Ends this process if it is a child that a function has forked.
    #[inline]
    pub(crate) fn end_child(&self) {
        self.process.end_child();
    }

    #[inline]
    pub(crate) fn handler(&mut self) -> &mut H {
        &mut self.handler
    }

    /// Sets the mailbox that the outcomes of native calls wake the worker by.
    pub(crate) fn set_mailbox(&self, mailbox: Mailbox) {
        self.procedures.natives().set_mailbox(mailbox);
    }

    /// When the handler needs a turn.
    pub(crate) fn handler_deadline(&self) -> Option<Instant> {
        self.handler.deadline()
    }

    /// Whether there are native procedures.
    #[inline]
    pub(crate) fn has_natives(&self) -> bool {
        self.procedures.natives().are_used()
    }

    /// When a native procedure needs a turn.
    pub(crate) fn native_deadline(&self) -> Option<Instant> {
        self.procedures.natives().deadline()
    }

    pub(crate) fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// The connections that may be open, beside the sockets of native procedures.
    pub(crate) fn connections_max(&self) -> usize {
        let sockets = self.procedures.natives().sockets();
        self.config.connections_max.min(self.config.sockets_max.saturating_sub(sockets))
    }

    /// When this turn began.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Calls so far.
    #[inline]
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        self.scratch.budget()
    }

    /// Whether procedures need the peers of their callers.
    #[inline]
    pub(crate) fn wants_peers(&self) -> bool {
        self.procedures.wants_peers
    }

    /// Whether there is memory for more requests, as of [`WorkerContext::update_load`].
    #[inline]
    pub(crate) fn load(&self) -> LoadState {
        self.load
    }

    /// Compares what is reserved with the limit. Threads of other languages may release
    /// reservations at any time, so each turn begins with an update.
    #[inline]
    pub(crate) fn update_load(&mut self) {
        let is_exceeded = self.scratch.budget().bytes() > self.config.limits.held_bytes_max;
        let load = if is_exceeded { LoadState::Overloaded } else { LoadState::Normal };
        if load != self.load {
            self.load = load;
            self.update_refusal();
        }
    }

    /// Has health checks report a drain, which is about to begin.
    pub(crate) fn announce_drain(&mut self) {
        self.is_draining = true;
        self.update_refusal();
    }

    pub(crate) fn set_drain(&mut self, drain: Drain) {
        self.drain = drain;
        self.update_refusal();
    }

    #[cold]
    fn update_refusal(&mut self) {
        self.rejection = match (self.drain, self.load) {
            (Drain::Refusing, _) => Some(Rejection::Drain),
            (_, LoadState::Overloaded) => Some(Rejection::Overload),
            _ => None,
        };
        let clock = self.procedures.natives().clock();
        self.diversion = Diversion::of(&self.config, self.rejection, self.is_draining, clock);
    }

    /// Begins a turn, whose wait has ended by `now`.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
        self.update_load();
        self.handler.turn_began(now);
        self.procedures.natives_mut().begin_turn(now);
        self.procedures.refresh();
    }

    /// All calls of a turn have begun. Returns whether the next wait has to poll for the end of a
    /// send.
    #[inline(always)]
    pub(crate) fn end_calls(&mut self, engine: &mut impl Engine, connections: usize) -> bool {
        self.handler.turn_ended(self.now);
        self.has_natives() && self.end_native_calls(engine, connections)
    }

    #[inline(never)]
    fn end_native_calls(&mut self, engine: &mut impl Engine, connections: usize) -> bool {
        let limits = NativeLimits {
            held_bytes_max: self.config.limits.held_bytes_max,
            sockets_max: self.config.sockets_max.saturating_sub(connections),
        };
        let natives = self.procedures.natives_mut();
        natives.end_turn(self.now, engine, &limits);
        for line in natives.take_warnings() {
            self.handler.warn(&line);
        }
        self.procedures.natives_mut().take_poll()
    }

    #[inline]
    pub(crate) fn natives_mut(&mut self) -> &mut NativeHandlers {
        self.procedures.natives_mut()
    }

    /// The next reply to a deferred call, or item of a stream; see [`Handler::poll_reply`].
    #[inline(always)]
    pub(crate) fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        if let Some(polled) = self.handler.poll_reply(text) {
            return Some(polled);
        }
        let natives = self.procedures.natives_mut();
        if natives.are_used() { natives.poll_reply(text) } else { None }
    }

    /// Cancels the deferred calls of a connection that has closed.
    pub(crate) fn cancel(&mut self, connection: Id) {
        self.handler.cancel(connection);
        self.procedures.natives_mut().cancel_connection(connection);
    }

    /// The number of running deferred calls.
    pub(crate) fn running(&self) -> usize {
        self.procedures.natives().limit().running()
    }

    /// Answers all deferred calls with an error: the server ends without waiting for them.
    pub(crate) fn abandon(&mut self) {
        self.handler.abandon();
        self.procedures.natives_mut().abandon();
    }

    /// Begins a sweep: sets the date of replies, reads TLS files that have changed, and releases
    /// memory that no request has used since the last sweep.
    pub(crate) fn begin_sweep(&mut self, unix_time_s: u64) {
        self.replies.set_time(unix_time_s);
        self.scratch.release_unused();
        self.check_tls();
    }

    /// Reads TLS files that have changed since they were checked last, more than a second ago.
    pub(crate) fn check_tls(&mut self) {
        let Some(tls) = &self.config.tls else { return };
        let clock = self.procedures.natives().clock();
        for problem in self.tls_checks.check(tls, self.now, || clock.unix_time()) {
            self.handler.warn(&format!("TLS: {problem}"));
        }
    }

    /// Has a handshake that begins use the files as they are now; `false` if it cannot begin.
    #[inline(never)]
    pub(crate) fn begin_handshake(&mut self, connection: &mut Connection) -> bool {
        self.check_tls();
        let renewed = self.config.tls.as_ref().map(|tls| tls.renew(connection));
        self.has_begun(renewed.unwrap_or(Ok(()))).is_some()
    }

    fn has_begun<T>(&mut self, begun: Result<T, TlsError>) -> Option<T> {
        let warn = |error: &TlsError| {
            self.handler.warn(&format!("TLS: cannot begin on a new connection: {error}"));
        };
        begun.inspect_err(warn).ok()
    }

    /// Whether memory of a large request is cached, until a sweep releases it.
    pub(crate) fn has_cached_memory(&self) -> bool {
        self.scratch.has_cached_memory()
    }

    /// The protocol state of a new connection; `None` if TLS cannot begin.
    pub(crate) fn new_connection(&mut self) -> Option<Connection> {
        let WorkerConfig { limits, tls, .. } = &self.config;
        let Some(tls) = tls else { return Some(Connection::new(self.now, limits)) };
        let accepted = tls.accept().map(|tls| Connection::with_tls(self.now, limits, tls));
        self.has_begun(accepted)
    }

    /// Whether all calls are refused just now.
    pub(crate) fn is_rejecting(&self) -> bool {
        self.rejection.is_some()
    }

    /// Runs the calls of a datagram, whose reply is appended to `out`.
    #[inline(never)]
    pub(crate) fn with_datagram<T>(
        &mut self,
        caller: &Caller,
        out: &mut Vec<u8>,
        run: impl FnOnce(&mut Environment<'_, Dispatch<'_, H>>) -> T,
    ) -> T {
        let mut caller = *caller;
        let mut service = Dispatch {
            procedures: &mut self.procedures,
            handler: &mut self.handler,
            caller: &mut caller,
            diversion: self.diversion.as_deref_mut(),
            calls: &mut self.calls,
            process: self.process,
        };
        run(&mut Environment {
            limits: &self.config.limits,
            access: &self.config.access,
            now: self.now,
            replies: &mut self.replies,
            service: &mut service,
            scratch: &mut self.scratch,
            out,
            queued_bytes: 0,
            drain: self.drain,
            load: self.load,
        })
    }

    /// Runs a step of a connection, which appends its output to `out`. Inlined, as a call is one
    /// step; it is too long for `#[inline]`.
    #[inline(always)]
    pub(crate) fn step(
        &mut self,
        entry: &mut Entry,
        out: &mut Vec<u8>,
        step: impl FnOnce(&mut Connection, &mut Environment<'_, Dispatch<'_, H>>),
    ) {
        let mut service = Dispatch {
            procedures: &mut self.procedures,
            handler: &mut self.handler,
            caller: &mut entry.caller,
            diversion: self.diversion.as_deref_mut(),
            calls: &mut self.calls,
            process: self.process,
        };
        let mut environment = Environment {
            limits: &self.config.limits,
            access: &self.config.access,
            now: self.now,
            replies: &mut self.replies,
            service: &mut service,
            scratch: &mut self.scratch,
            out,
            queued_bytes: entry.outgoing.reply_bytes(),
            drain: self.drain,
            load: self.load,
        };
        step(&mut entry.proto, &mut environment);
    }
}

/// Finds and runs the procedures that one connection calls.
pub(crate) struct Dispatch<'a, H: Handler> {
    procedures: &'a mut ProcedureCache<H::Procedure>,
    handler: &'a mut H,
    caller: &'a mut Caller,
    diversion: Option<&'a mut Diversion>,
    calls: &'a mut u64,
    process: OwningProcess,
}

impl<H: Handler> Dispatch<'_, H> {
    /// Whether a call of this method may run twice.
    pub(crate) fn is_idempotent(&self, method: Text<'_>) -> bool {
        let procedure = find_escaped(self.procedures, method);
        procedure.is_some_and(|procedure| self.handler.is_idempotent(procedure))
    }

    /// The limit on running calls.
    pub(crate) fn run_limit(&self) -> &RunLimit {
        self.procedures.natives().limit()
    }

    #[cold]
    fn handle_unknown(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        if call.id.is_none() && call.method.raw() == CANCEL_REQUEST {
            return CallOutcome::CancelRequest;
        }
        let error = method_not_found(call.method);
        self.handler.call_rejected(None, &error);
        reply.error(&error);
        CallOutcome::Done
    }
}

impl<H: Handler> Service for Dispatch<'_, H> {
    const NEEDS_MEMBERS: bool = H::NEEDS_MEMBERS;

    #[inline(always)]
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        *self.calls += 1;
        if self.diversion.is_some()
            && let Some(rejected) = self.begin_diverted(call, reply)
        {
            return rejected;
        }
        let found = match call.method.is_escaped() {
            false => self.procedures.find(call.method.raw()),
            true => find_escaped(self.procedures, call.method),
        };
        let outcome = match found {
            Some(procedure) => {
                let outcome = self.handler.call(procedure, call, self.caller, reply);
                self.process.end_child();
                outcome
            }
            None => self.call_native(call, reply),
        };
        if self.diversion.is_some() {
            self.end_diverted(outcome, reply);
        }
        outcome
    }

    #[cold]
    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.procedures.natives_mut().share(document);
    }

    #[inline]
    fn requires_authentication(&self) -> bool {
        self.handler.requires_authentication()
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let peer = self.set_client(head);
        let admitted = self.handler.authenticate(head, session, self.caller);
        self.caller.peer = peer;
        self.process.end_child();
        admitted
    }

    fn upgrading(&mut self, head: &Head<'_>) {
        self.set_client(Some(head));
        self.caller.transport = Transport::WebSocket;
    }

    fn route_methods(&self, path: &[u8]) -> Methods {
        self.procedures.routes().methods(path)
    }

    fn is_public(&self, head: &Head<'_>) -> bool {
        self.route(head).is_some_and(|route| route.access != RouteAccess::Authenticated)
    }

    fn is_health_check(&self, head: &Head<'_>) -> bool {
        self.route(head).is_some_and(|route| route.target.is_health_check())
    }

    fn respond(&mut self, call: &Call<'_>, body: &[u8], reply: &mut Reply<'_>) -> CallOutcome {
        let peer = self.set_client(call.head);
        let outcome = self.run_route(call, body, reply);
        self.caller.peer = peer;
        outcome
    }

    fn cancel(&mut self, number: CallNumber) {
        let call = CallId { connection: self.caller.connection, number };
        self.handler.cancel_call(call);
        self.procedures.natives_mut().cancel_call(call);
    }

    fn set_identity(&mut self, identity: &CallerIdentity) {
        self.handler.set_identity(identity);
    }
}

impl<H: Handler> Dispatch<'_, H> {
    fn run_route(&mut self, call: &Call<'_>, body: &[u8], reply: &mut Reply<'_>) -> CallOutcome {
        let procedures = &*self.procedures;
        let find = |head: &Head<'_>| procedures.routes().find(call.method.raw(), head.method());
        let Some(route) = call.head.and_then(find) else {
            reply.error(&method_not_found(call.method));
            return CallOutcome::Done;
        };
        let caller = &*self.caller;
        let outcome = match (&*route.target, self.rejection()) {
            (RouteTarget::Live, _) => answer(reply, &health::liveness()),
            (RouteTarget::Ready(checks), _) => match (self.problem(), checks) {
                (None, Some(checks)) => self.handler.check_ready(checks, call, caller, reply),
                (problem, _) => answer(reply, &health::readiness(problem)),
            },
            (_, Some(cause)) => {
                *self.calls += 1;
                reply.error(&rejection_error(cause));
                CallOutcome::Done
            }
            (RouteTarget::Procedure(procedure), None) => {
                *self.calls += 1;
                self.handler.respond(procedure, call, body, caller, reply)
            }
            (RouteTarget::Metrics(reader), None) => {
                *self.calls += 1;
                answer(reply, &reader.response(call.head))
            }
        };
        self.process.end_child();
        outcome
    }

    /// Runs a call of a native procedure, if it is one.
    #[inline(never)]
    fn call_native(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let Some(outcome) = self.procedures.call_native(call, self.caller, reply) else {
            return self.handle_unknown(call, reply);
        };
        if matches!(outcome, CallOutcome::Deferred | CallOutcome::Stream)
            && let Some(logged) = self.diversion.as_deref_mut().and_then(|it| it.logged.take())
        {
            self.procedures.natives_mut().set_logged(logged);
        }
        outcome
    }

    fn route(&self, head: &Head<'_>) -> Option<&Route<H::Procedure>> {
        let (path, _) = head.path_and_query();
        self.procedures.routes().find(path, head.method())
    }
}

#[cold]
fn find_escaped<'v, P>(procedures: &'v ProcedureCache<P>, name: Text<'_>) -> Option<&'v P> {
    procedures.find(&name.unescaped())
}

/// Replies with a whole response.
fn answer(reply: &mut Reply<'_>, response: &[u8]) -> CallOutcome {
    reply.response().extend_from_slice(response);
    CallOutcome::Done
}

#[cold]
fn method_not_found(name: Text<'_>) -> RpcError {
    const SHOWN_MAX: usize = 64;
    let name = name.unescaped();
    let name = String::from_utf8_lossy(&name);
    let shown: String = name.chars().take(SHOWN_MAX).collect();
    RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found")
        .expected(&format!("there is no method {shown:?}"))
}

mod diversion;
#[cfg(test)]
mod tests;
