//! The native procedures of one worker: its handlers, and the calls that they have deferred.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use ucall_engine::{Engine, EngineClock, Id};
use ucall_proto::{Call, CallOutcome, MemoryBudget, Reply, Reservation, RpcError};

use super::{NativeCall, NativeHandler, NativeLimits, NativeModule, NativeOutcome, NativeSockets};
use crate::access_log::LoggedCall;
use crate::caller::{CallId, Caller};
use crate::deadline::Deadline;
use crate::deferred_calls::{DeferredCalls, RunLimit, RunPermit, Token};
use crate::handler::Polled;
use crate::mailbox::Mailbox;
use crate::metrics::{CallMetrics, RunningCall, SeriesIndex};
use crate::overflow::Overflow;

/// The deferred calls of native procedures.
pub(super) type NativeCalls = DeferredCalls<DeferredCall, NativeOutcome>;

/// A deferred call of a native procedure.
#[derive(Debug)]
pub(super) struct DeferredCall {
    pub(super) module: usize,
    /// If the server has metrics.
    pub(super) running: Option<RunningCall>,
    /// If the call is in the access log.
    pub(super) logged: Option<LoggedCall>,
    pub(super) _permit: RunPermit,
    pub(super) _reserved: Reservation,
}

impl DeferredCall {
    /// Records and logs the end of the call.
    fn end(self, outcome: &Result<Vec<u8>, RpcError>, clock: &EngineClock) {
        let error = outcome.as_ref().err().map(|error| error.code);
        if let Some(running) = self.running {
            running.record(error, clock.now());
        }
        if let Some(logged) = self.logged {
            logged.end(error, outcome.as_ref().map_or(0, Vec::len));
        }
    }
}

/// The native procedures in one version of the table of procedures.
#[derive(Clone, Debug, Default)]
pub(crate) struct NativeTable {
    /// In the order of their registration. None is ever removed, so an index stays valid.
    modules: Vec<Module>,
    /// What calls find.
    names: NativeNames,
    /// In place of that, once hooks are around them.
    hooked: Option<NativeNames>,
}

/// The names of native procedures.
#[derive(Clone, Debug, Default)]
struct NativeNames {
    indices: HashMap<Box<[u8]>, NativeIndex, FixedState>,
    /// The names that end in `*`, without that, the longest first.
    prefixes: Vec<(Box<[u8]>, NativeIndex)>,
}

#[derive(Clone, Debug)]
struct Module {
    module: Arc<dyn NativeModule>,
    timeout: Option<Duration>,
}

/// Finds a native procedure.
#[derive(Clone, Copy, Debug)]
struct NativeIndex {
    module: usize,
    procedure: usize,
}

impl NativeTable {
    /// Adds the procedures of a module, in place of others of their names. `timeout` limits the
    /// duration of its calls.
    pub(crate) fn insert(&mut self, module: Arc<dyn NativeModule>, timeout: Option<Duration>) {
        let names = self.hooked.as_mut().unwrap_or(&mut self.names);
        for (procedure, described) in module.procedures().iter().enumerate() {
            let index = NativeIndex { module: self.modules.len(), procedure };
            match described.name.strip_suffix('*') {
                Some(prefix) => names.insert_prefix(prefix.as_bytes(), index),
                None => drop(names.indices.insert(described.name.as_bytes().into(), index)),
            }
        }
        self.modules.push(Module { module, timeout });
    }

    /// Has calls find no native procedure, but hooks around these.
    pub(crate) fn set_hooked(&mut self) {
        if self.hooked.is_none() {
            self.hooked = Some(std::mem::take(&mut self.names));
        }
    }

    /// Whether hooks are around a procedure of this name.
    pub(crate) fn is_hooked(&self, name: &[u8]) -> bool {
        self.find_hooked(name).is_some()
    }

    fn find_hooked(&self, name: &[u8]) -> Option<NativeIndex> {
        self.hooked.as_ref()?.find(name)
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        let names = self.hooked.as_mut().unwrap_or(&mut self.names);
        names.indices.remove(name);
    }

    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        self.names.find(name).is_some() || self.is_hooked(name)
    }
}

impl NativeNames {
    fn insert_prefix(&mut self, prefix: &[u8], index: NativeIndex) {
        self.prefixes.retain(|(known, _)| known.as_ref() != prefix);
        self.prefixes.push((prefix.into(), index));
        self.prefixes.sort_by_key(|(known, _)| std::cmp::Reverse(known.len()));
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<NativeIndex> {
        self.indices.get(name).copied().or_else(|| self.find_prefix(name))
    }

    /// The methods of the protocol and of the server itself have exact names only.
    fn find_prefix(&self, name: &[u8]) -> Option<NativeIndex> {
        if name.starts_with(b"$/") || name.starts_with(b"rpc.") {
            return None;
        }
        let found = self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix));
        found.map(|(_, index)| *index)
    }
}

/// The handlers of one worker, by the index of their modules, and their deferred calls.
pub(crate) struct NativeHandlers {
    handlers: Vec<Box<dyn NativeHandler>>,
    calls: NativeCalls,
    /// The call that was deferred last.
    deferred: Option<Token>,
    metrics: Option<Arc<CallMetrics>>,
    /// The series of each procedure of each module, if there are metrics.
    series: Vec<Vec<SeriesIndex>>,
    sockets: NativeSockets,
    /// Connections whose clients read slowly, so that their streams pause.
    slow: HashSet<Id, FixedState>,
    clock: EngineClock,
    /// When this turn began.
    now: Instant,
}

impl NativeHandlers {
    /// Without handlers. Their calls count against the limit and the budget of the worker's own
    /// handler.
    pub(crate) fn new(
        limit: RunLimit,
        budget: MemoryBudget,
        metrics: Option<Arc<CallMetrics>>,
        clock: EngineClock,
    ) -> Self {
        Self {
            handlers: Vec::new(),
            calls: NativeCalls::with_limit(limit, budget),
            deferred: None,
            metrics,
            series: Vec::new(),
            sockets: NativeSockets::default(),
            slow: HashSet::default(),
            now: clock.now(),
            clock,
        }
    }

    pub(crate) fn set_mailbox(&self, mailbox: Mailbox) {
        self.calls.outcomes().set_mailbox(mailbox);
    }

    /// Makes the handlers of new modules.
    pub(crate) fn update(&mut self, table: &NativeTable) {
        for Module { module, .. } in table.modules.iter().skip(self.handlers.len()) {
            self.handlers.push(module.handler(self.calls.outcomes().clone(), self.now));
            if let Some(metrics) = &self.metrics {
                let procedures = module.procedures().iter();
                self.series.push(procedures.map(|it| metrics.register(&it.name)).collect());
            }
        }
    }

    /// Whether there are native procedures.
    #[inline]
    pub(crate) fn are_used(&self) -> bool {
        !self.handlers.is_empty()
    }

    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.now = now;
    }

    /// See [`NativeHandler::share`].
    pub(crate) fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.handlers.iter_mut().for_each(|handler| handler.share(document));
    }

    /// Runs a call; `None` if `name` is no native procedure.
    pub(crate) fn call(
        &mut self,
        table: &NativeTable,
        name: &[u8],
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        let index = table.names.find(name)?;
        self.call_at(index, table, call, caller, reply)
    }

    /// [`NativeHandlers::call`] of a procedure with hooks, which have run.
    #[cold]
    pub(crate) fn call_hooked(
        &mut self,
        table: &NativeTable,
        name: &[u8],
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        let index = table.find_hooked(name)?;
        self.call_at(index, table, call, caller, reply)
    }

    #[inline(always)]
    fn call_at(
        &mut self,
        NativeIndex { module, procedure }: NativeIndex,
        table: &NativeTable,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        let handler = self.handlers.get_mut(module)?;
        let timeout = table.modules.get(module)?.timeout;
        let series = self.series.get(module).and_then(|series| series.get(procedure)).copied();
        let deadline = Deadline::of(call, timeout, self.now);
        let outcome = match deadline.filter(|it| it.has_passed(self.clock.now())) {
            Some(deadline) => {
                reply.error(&deadline.error());
                CallOutcome::Done
            }
            None => {
                let (now, calls, deferred) = (self.now, &mut self.calls, &mut self.deferred);
                let measured = self.metrics.as_ref().zip(series);
                let request = call;
                let call = NativeCall {
                    request,
                    caller,
                    deadline,
                    now,
                    module,
                    calls,
                    measured,
                    deferred,
                };
                handler.call(procedure, call, reply)
            }
        };
        if let (Some(metrics), Some(series), CallOutcome::Done) = (&self.metrics, series, outcome) {
            let duration = self.clock.now().saturating_duration_since(self.now);
            metrics.record(series, duration, reply.error_code());
        }
        if outcome == CallOutcome::Stream && !self.slow.is_empty() {
            self.pause_if_slow();
        }
        Some(outcome)
    }

    /// Has the call that was deferred last logged at its end.
    pub(crate) fn set_logged(&mut self, logged: LoggedCall) {
        if let Some(call) = self.deferred.and_then(|token| self.calls.find(token)) {
            call.logged = Some(logged);
        }
    }

    /// Ends a turn: replies to calls whose deadline has passed, and notifies all handlers.
    #[inline(never)]
    pub(crate) fn end_turn(
        &mut self,
        now: Instant,
        engine: &mut impl Engine,
        limits: &NativeLimits,
    ) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            self.end_early(token, deadline.error(), now);
        }
        let (budget, metrics) = (self.calls.budget(), self.metrics.as_ref());
        for (module, handler) in self.handlers.iter_mut().enumerate() {
            let mut context = self.sockets.context(module, engine, budget, limits, metrics);
            handler.turn_ended(now, &mut context);
        }
    }

    /// The sockets of all handlers.
    pub(crate) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// The lines that handlers have logged in this turn.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        self.sockets.take_warnings()
    }

    /// Whether output of a handler waits for the end of a send. True once.
    pub(crate) fn take_poll(&mut self) -> bool {
        self.sockets.take_poll()
    }

    /// Whether the socket is of a handler.
    pub(crate) fn owns(&self, socket: Id) -> bool {
        self.sockets.module_of(socket).is_some()
    }

    /// Passes what has arrived on a socket to its handler. Returns `false` if the socket has ended.
    pub(crate) fn received(&mut self, socket: Id, received: io::Result<&mut [u8]>) -> bool {
        let module = self.sockets.module_of(socket);
        let Some(handler) = module.and_then(|module| self.handlers.get_mut(module)) else {
            return true;
        };
        match received {
            Ok([]) => handler.disconnected(socket, io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                handler.received(socket, bytes, self.now);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) => handler.disconnected(socket, error),
        }
        self.sockets.remove(socket);
        false
    }

    /// A send on a socket has ended.
    pub(crate) fn sent(&mut self, socket: Id) {
        if let Some(module) = self.sockets.sent(socket)
            && let Some(handler) = self.handlers.get_mut(module)
        {
            handler.sent(socket);
        }
    }

    /// A send on a socket has failed, which ends the socket.
    pub(crate) fn send_failed(&mut self, socket: Id, error: io::Error) {
        self.received(socket, Err(error));
    }

    /// A socket that connects is ready.
    pub(crate) fn ready(&mut self, attempt: Id, engine: &mut impl Engine) {
        if let Some((module, socket)) = self.sockets.finish_connect(attempt, engine)
            && let Some(handler) = self.handlers.get_mut(module)
        {
            handler.connected(attempt, socket);
        }
    }

    /// When [`NativeHandlers::end_turn`] is due, even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let handlers = self.handlers.iter().filter_map(|handler| handler.deadline());
        handlers.chain(self.calls.next_deadline()).min()
    }

    /// The limit on running calls, which counts those of the worker's own handler, too.
    pub(crate) fn limit(&self) -> &RunLimit {
        self.calls.limit()
    }

    /// The next reply to a deferred call or item of a stream, whose text goes to `text`.
    pub(crate) fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        loop {
            let (token, outcome) = match self.calls.next_outcome()? {
                (token, NativeOutcome::Reply(outcome)) => (token, outcome),
                (token, NativeOutcome::Item(item)) => {
                    let Some(caller) = self.calls.caller_of(token) else { continue };
                    *text = item;
                    return Some((caller, Polled::Item(Overflow::Pause)));
                }
            };
            let Some((caller, call)) = self.calls.finish(token, self.now) else { continue };
            call.end(&outcome, &self.clock);
            if let Some(caller) = caller {
                return Some((caller, outcome.map(|result| *text = result).into()));
            }
        }
    }

    /// Pauses the stream that has begun last if its client reads slowly.
    #[cold]
    fn pause_if_slow(&mut self) {
        let Some(token) = self.deferred else { return };
        let caller = self.calls.caller_of(token);
        if caller.is_some_and(|call| self.slow.contains(&call.connection))
            && let Some((token, handler)) = self.handler_of(token)
        {
            handler.set_paused(token, true);
        }
    }

    /// Cancels the calls of a connection that has closed.
    pub(crate) fn cancel_connection(&mut self, connection: Id) {
        self.slow.remove(&connection);
        for token in self.calls.of_connection(connection) {
            self.cancel_token(token);
        }
    }

    /// Cancels a call, if it is a native one.
    pub(crate) fn cancel_call(&mut self, call: CallId) {
        if let Some(token) = self.calls.token_of(call) {
            self.cancel_token(token);
        }
    }

    /// Pauses or resumes all streams of a connection: the items of each would fill its output.
    pub(crate) fn set_slow(&mut self, connection: Id, is_slow: bool) {
        let has_changed = match is_slow {
            true => self.slow.insert(connection),
            false => self.slow.remove(&connection),
        };
        if !has_changed {
            return;
        }
        for token in self.calls.of_connection(connection) {
            if let Some((token, handler)) = self.handler_of(token) {
                handler.set_paused(token, is_slow);
            }
        }
    }

    fn cancel_token(&mut self, token: Token) {
        self.notify_handler(token, self.now);
        self.calls.remove(token);
    }

    /// Answers all calls with an error.
    pub(crate) fn abandon(&mut self) {
        let error = RpcError::new(RpcError::ABORTED, "Aborted").expected("the server stops");
        for token in self.calls.all() {
            self.end_early(token, error.clone(), self.now);
        }
    }

    fn end_early(&mut self, token: Token, error: RpcError, now: Instant) {
        self.notify_handler(token, now);
        // In front of an outcome that may have come since.
        self.calls.push_front(std::iter::once((token, NativeOutcome::Reply(Err(error)))));
        self.calls.outcomes().wake();
    }

    fn notify_handler(&mut self, token: Token, now: Instant) {
        if let Some((token, handler)) = self.handler_of(token) {
            handler.cancel(token, now);
        }
    }

    fn handler_of(&mut self, token: Token) -> Option<(Token, &mut Box<dyn NativeHandler>)> {
        let module = self.calls.find(token)?.module;
        self.handlers.get_mut(module).map(|handler| (token, handler))
    }
}
