//! Runs Python functions for a worker: the `Handler` of this language.
//!
//! Plain functions run here. `deferred` starts all others, including tasks that are done at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ucall_engine::Id;
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::{AuthenticationError, Call, CallOutcome, CallerIdentity, Reply, RpcError};
use ucall_server::{
    CallId, CallMetrics, Caller, Deadline, DrainReport, Handler, LoggedCall, Mailbox, MemoryBudget,
    Polled, Publisher, RunLimit, SeriesIndex, Token, Turn,
};

use crate::arguments::{self, Failure};
use crate::asyncio::tasks::Tasks;
use crate::attachment::{Attachment, DropAttached};
use crate::background::CallState;
use crate::batch::{BatchSizes, Batches};
use crate::callbacks::Callbacks;
use crate::calls::{Calls, Entry};
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::ffi::variables;
use crate::keys::{KeyTable, Keys};
use crate::log::Interrupted;
use crate::options::CallLimits;
use crate::outcomes::Outcomes;
use crate::pool::Pool;
use crate::procedure::{CallMode, Procedure};
use crate::report::Report;
use crate::session::Sessions;
use crate::streams::{StreamContext, StreamIo};

/// The interpreter as one worker uses it, on a thread that is detached when a turn begins.
pub(crate) struct Interpreter {
    pub(crate) attachment: Attachment,
    pub(crate) report: Arc<Report>,
    pub(crate) call_limits: CallLimits,
    pub(crate) calls: Calls,
    /// The call that was deferred last.
    pub(crate) last_call: Option<Token>,
    pub(crate) outcomes: Arc<Outcomes>,
    pub(crate) batches: Batches,
    pub(crate) streams: StreamIo,
    /// Starts async functions, once there is an event loop.
    pub(crate) tasks: Option<Tasks>,
    /// Threads for blocking functions.
    pub(crate) pool: Pool,
    /// Set when the worker is made.
    pub(crate) sessions: Option<Arc<Sessions>>,
    pub(crate) callbacks: Callbacks,
    /// The program's function that identifies callers.
    pub(crate) auth: Option<Py<PyAny>>,
    /// Whether the log says that `auth` has returned a falsy value for a user.
    pub(crate) has_warned_of_falsy_user: bool,
    /// The keys that callers are checked against without Python, if `auth` is by keys.
    keys: Option<Arc<KeyTable>>,
    /// The user that `auth` returned for the current request.
    pub(crate) identity: Option<CallerIdentity>,
    /// The `contextvars.Context` that each call copies. Plain functions without a context run in
    /// the thread's own variables.
    variables: Py<PyAny>,
    /// Scratch memory for strings while their escapes are decoded.
    pub(crate) scratch: Vec<u8>,
    /// When this turn began, after its wait.
    pub(crate) turn_began: Instant,
    /// Precise if calls are measured.
    pub(crate) clock: Clock,
    /// When the last function returned, or the turn began.
    pub(crate) last_return: Moment,
    pub(crate) attached_at: Moment,
    /// The beginning of the first turn that was attached from its start, since the thread was
    /// attached.
    pub(crate) first_attached_turn: Option<Instant>,
    /// Waits for the interpreter's lock so far, if calls are measured.
    pub(crate) lock_waits: u32,
    /// `None` if calls are not measured.
    pub(crate) metrics: Option<Arc<CallMetrics>>,
    /// Whether a Ctrl-C arrived while Python code ran.
    interrupted: bool,
    /// Whether a plain function runs, which a Ctrl-C interrupts.
    is_in_function: Arc<AtomicBool>,
}

impl Interpreter {
    /// The interpreter of the server with that number.
    pub(crate) fn new(
        py: Python<'_>,
        server: u64,
        debug: bool,
        auth: Option<Py<PyAny>>,
        call_limits: CallLimits,
        sizes: Arc<BatchSizes>,
        metrics: Option<Arc<CallMetrics>>,
    ) -> PyResult<Self> {
        let now = Instant::now();
        let clock = if metrics.is_some() { Clock::PRECISE } else { Clock::COARSE };
        let calls = Calls::new(call_limits.running_max, "max_running_calls");
        let outcomes = Arc::new(Outcomes::new(calls.outcomes().clone()));
        let report = Arc::new(Report::import(py, debug)?);
        let (threads_max, reply_bytes_max) = (call_limits.threads_max, call_limits.reply_bytes_max);
        let pool =
            Pool::new(server, threads_max, outcomes.clone(), report.clone(), reply_bytes_max);
        let streams = StreamContext {
            outcomes: outcomes.clone(),
            report: report.clone(),
            budget: calls.budget().clone(),
            reply_bytes_max,
            is_local: true,
        };
        Ok(Self {
            attachment: Attachment::new(py),
            report,
            call_limits,
            outcomes,
            calls,
            last_call: None,
            batches: Batches::new(sizes, metrics.clone()),
            streams: StreamIo::new(streams, now),
            tasks: None,
            pool,
            sessions: None,
            callbacks: Callbacks::default(),
            keys: auth.as_ref().and_then(|auth| Keys::table_of(auth.bind(py))),
            auth,
            has_warned_of_falsy_user: false,
            identity: None,
            variables: variables::copy_current(py)?.unbind(),
            scratch: Vec::new(),
            turn_began: now,
            clock,
            last_return: clock.now(),
            attached_at: clock.now(),
            first_attached_turn: None,
            lock_waits: 0,
            metrics,
            interrupted: false,
            is_in_function: Arc::default(),
        })
    }

    /// Makes the current variables of this thread the ones that calls start with.
    pub(crate) fn take_variables(&mut self, py: Python<'_>) -> PyResult<()> {
        self.variables = variables::copy_current(py)?.unbind();
        Ok(())
    }

    /// Whether the last turn has taken items of streams.
    #[inline]
    pub(crate) fn sends_items(&self) -> bool {
        self.streams.sends_items(self.turn_began)
    }

    /// Copies the variables for one call.
    pub(crate) fn own_variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        variables::copy(self.variables.bind(py))
    }

    /// Takes the flag of a Ctrl-C.
    pub(crate) fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.interrupted)
    }

    /// A flag, readable from any thread, that is set while a plain function runs.
    pub(crate) fn is_in_function(&self) -> Arc<AtomicBool> {
        self.is_in_function.clone()
    }

    /// Calls `work`, which calls a plain function that a Ctrl-C interrupts.
    #[inline]
    pub(crate) fn in_function<T>(&self, work: impl FnOnce() -> T) -> T {
        self.is_in_function.store(true, Ordering::Relaxed);
        let value = work();
        self.is_in_function.store(false, Ordering::Relaxed);
        value
    }

    /// Begins a call that may end after its turn.
    fn call_deferred(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let begun = self.begin(py, procedure, call, caller, None, reply);
        if let Some(series) = procedure.series {
            match &begun {
                Ok(CallOutcome::Deferred | CallOutcome::Stream) => {}
                Ok(_) => self.record_since_receipt(series, None),
                Err(error) => self.record_since_receipt(series, Some(error.code)),
            }
        }
        answer(begun, reply)
    }

    /// Whether [`Interpreter::next_deadline`] may have one: a test without a call, twice a turn.
    #[inline]
    fn may_have_deadline(&self) -> bool {
        self.streams.is_due()
            || self.calls.next_deadline().is_some()
            || !self.batches.is_empty()
            || self.callbacks.deadline().is_some()
    }

    #[inline(never)]
    fn next_deadline(&self) -> Option<Instant> {
        if self.streams.is_due() {
            return Some(self.turn_began);
        }
        let callbacks = self.callbacks.deadline();
        let deadlines = [self.calls.next_deadline(), self.batches.deadline(), callbacks];
        deadlines.into_iter().flatten().min()
    }

    #[inline(never)]
    fn next_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        if let Some(item) = self.streams.next_item(text) {
            return Some(item);
        }
        if !self.calls.has_outcomes() {
            return None;
        }
        let py = self.attach();
        self.next_outcome(py, text)
    }

    /// Replies to a call whose deadline passed before it began.
    #[cold]
    fn expire(
        &mut self,
        procedure: &Procedure,
        deadline: Deadline,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let error = deadline.error();
        if let Some(series) = procedure.series {
            self.record_since_receipt(series, Some(error.code));
        }
        answer(Err(error), reply)
    }

    /// Calls a plain function and writes its result into the reply.
    #[inline]
    fn run(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let result = match &procedure.signature {
            Some(signature) if signature.context.is_some() => {
                return self.run_with_context(py, procedure, call, caller, reply);
            }
            _ => arguments::call(py, procedure, call.params, None, &mut self.scratch)?,
        };
        self.write(procedure, &result, reply)
    }

    /// Writes a result into the reply, unless the call is a notification.
    #[inline]
    pub(crate) fn write(
        &self,
        procedure: &Procedure,
        result: &Bound<'_, PyAny>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        if reply.is_notification() {
            return Ok(());
        }
        let len_max = reply.len_max();
        procedure.write(reply.result(), len_max, result).map_err(Failure::Result)
    }

    /// Calls a function that takes its context, with variables of its own.
    #[cold]
    fn run_with_context(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let deadline = self.deadline_of(procedure, call);
        let user = self.user();
        let channel =
            self.channel(py, caller.connection, call.head.is_some(), Some(&procedure.encode));
        let state = Arc::new(CallState::new());
        let context = Context::new(py, call, caller, user, deadline, state.clone(), channel);
        let context = Some(Bound::new(py, context)?.into_any());
        let variables = self.own_variables(py)?;
        let scratch = &mut self.scratch;
        let result = variables::run_in(&variables, || {
            arguments::call(py, procedure, call.params, context, scratch)
        });
        let written = result.and_then(|result| self.write(procedure, &result, reply));
        self.end_state(procedure, &state, written.is_ok());
        written
    }

    #[inline(always)]
    pub(crate) fn deadline_of(&self, procedure: &Procedure, call: &Call<'_>) -> Option<Deadline> {
        Deadline::of(call, procedure.timeout, self.turn_began)
    }

    /// The error to reply with. Errors of the function itself are logged.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        failure: Failure,
        len_max: usize,
    ) -> RpcError {
        let (error, logged) = self.report.fail(py, procedure, failure, len_max);
        self.note_interrupt(logged);
        error
    }

    pub(crate) fn note_interrupt(&mut self, logged: Result<(), Interrupted>) {
        self.interrupted |= logged.is_err();
    }

    /// Logs a function that held up all other calls, once. Called after Python code has run.
    /// Returns how many nanoseconds it ran.
    #[inline]
    pub(crate) fn warn_if_slow(&mut self, py: Python<'_>, procedure: &Procedure) -> u64 {
        let now = self.clock.now();
        let nanos = now.nanos_since(self.last_return);
        self.last_return = now;
        if u128::from(nanos) >= self.call_limits.slow.as_nanos() {
            self.warn_slow(py, procedure, Duration::from_nanos(nanos));
        }
        nanos
    }

    #[cold]
    fn warn_slow(&mut self, py: Python<'_>, procedure: &Procedure, elapsed: Duration) {
        if procedure.is_logged_as_slow() {
            return;
        }
        let name = &procedure.name;
        let advice = match procedure.mode {
            CallMode::Task | CallMode::AsyncGenerator => {
                "await what it waits for, or run it by asyncio.to_thread"
            }
            _ => "serve it by @server(threads=True), or processes=N if it computes",
        };
        let elapsed = elapsed.as_millis();
        let line = format!("{name} held up all other calls for {elapsed} ms: {advice}");
        let logged = self.report.warning(py, &line);
        self.note_interrupt(logged);
    }
}

impl Handler for Interpreter {
    type Procedure = DropAttached<Arc<Procedure>>;

    const HAS_INTERPRETER_LOCK: bool = true;

    /// Params are read in their order.
    const NEEDS_MEMBERS: bool = false;

    #[inline]
    fn call(
        &mut self,
        procedure: &DropAttached<Arc<Procedure>>,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let py = self.attach();
        if !matches!(procedure.mode, CallMode::Inline) {
            return self.call_deferred(py, procedure, call, caller, reply);
        }
        if let Some(deadline) = self.deadline_of(procedure, call)
            && deadline.has_passed(Instant::now())
        {
            return self.expire(procedure, deadline, reply);
        }
        self.is_in_function.store(true, Ordering::Relaxed);
        let ran = self.run(py, procedure, call, caller, reply);
        self.is_in_function.store(false, Ordering::Relaxed);
        let mut code = None;
        if let Err(failure) = ran {
            let error = self.fail(py, procedure, failure, reply.len_max());
            reply.error(&error);
            code = Some(error.code);
        }
        let nanos = self.warn_if_slow(py, procedure);
        if let Some(series) = procedure.series {
            self.record(series, Duration::from_nanos(nanos), code);
        }
        CallOutcome::Done
    }

    fn is_idempotent(&self, procedure: &Self::Procedure) -> bool {
        procedure.is_idempotent
    }

    fn call_rejected(
        &mut self,
        procedure: Option<&DropAttached<Arc<Procedure>>>,
        error: &RpcError,
    ) {
        let series = procedure.and_then(|procedure| procedure.series);
        self.record_since_receipt(series.unwrap_or(SeriesIndex::OTHER), Some(error.code));
    }

    fn respond(
        &mut self,
        procedure: &DropAttached<Arc<Procedure>>,
        call: &Call<'_>,
        body: &[u8],
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let py = self.attach();
        self.respond(py, procedure, call, body, caller, reply)
    }

    fn check_ready(
        &mut self,
        checks: &DropAttached<Arc<Procedure>>,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let py = self.attach();
        self.check_ready(py, checks, call, caller, reply)
    }

    fn report_drain(&mut self, report: DrainReport) {
        let py = self.attach();
        self.report_drain(py, report);
    }

    fn set_mailbox(&mut self, mailbox: Mailbox) {
        self.calls.outcomes().set_mailbox(mailbox);
    }

    fn set_publisher(&mut self, publisher: Arc<Publisher>) {
        let message_bytes_max = self.call_limits.reply_bytes_max;
        self.sessions = Some(Arc::new(Sessions::new(publisher, message_bytes_max)));
    }

    fn connection_closed(&mut self, connection: Id) {
        let py = self.attach();
        self.end_session(py, connection);
    }

    #[inline]
    fn requires_authentication(&self) -> bool {
        self.auth.is_some()
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        if let Some(keys) = &self.keys {
            return keys.authenticate(head);
        }
        let py = self.attach();
        self.authenticate(py, head, session, caller)
    }

    fn set_identity(&mut self, identity: &CallerIdentity) {
        self.identity = Some(identity.clone());
    }

    fn cancel(&mut self, connection: Id) {
        if self.calls.count() > 0 {
            let py = self.attach();
            self.cancel_connection(py, connection);
        }
    }

    fn cancel_call(&mut self, call: CallId) {
        if let Some(token) = self.calls.token_of(call) {
            let py = self.attach();
            self.abandon_call(py, token, None);
        }
    }

    fn pause_stream(&mut self, call: CallId) {
        self.attach();
        self.streams.set_paused(&mut self.calls, call, true);
    }

    fn resume_stream(&mut self, call: CallId) {
        self.attach();
        self.streams.set_paused(&mut self.calls, call, false);
    }

    fn turn_began(&mut self, now: Instant) {
        self.turn_began = now;
        if self.attachment.is_attached() {
            self.begin_attached_turn(now);
        }
    }

    #[inline]
    fn turn_ended(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            let py = self.attach();
            self.handle_deadlines(py, now);
            self.callbacks.beat_if_due(py, now);
            self.step_streams(py);
        }
    }

    #[inline(always)]
    fn deadline(&self) -> Option<Instant> {
        match self.may_have_deadline() {
            true => self.next_deadline(),
            false => None,
        }
    }

    #[inline(always)]
    fn ends_turns(&mut self, turn: &Turn) -> bool {
        turn.stopped || turn.signalled || self.interrupted || self.tasks.is_some()
    }

    #[inline(always)]
    fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        match self.streams.has_items() || self.calls.has_outcomes() {
            true => self.next_reply(text),
            false => None,
        }
    }

    fn run_limit(&self) -> RunLimit {
        self.calls.limit().clone()
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.calls.budget().clone()
    }

    fn metrics(&self) -> Option<Arc<CallMetrics>> {
        self.metrics.clone()
    }

    fn is_busy(&mut self) -> bool {
        let py = self.attach();
        self.tasks.as_ref().is_some_and(|tasks| tasks.has_made_tasks(py))
    }

    fn abandon(&mut self) {
        let py = self.attach();
        self.abandon_all(py);
    }

    fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        self.attachment.detach();
        wait()
    }

    fn identity_name(&mut self) -> Option<String> {
        let py = self.attach();
        self.user()?.extract(py).ok()
    }

    fn set_logged(&mut self, logged: LoggedCall) {
        let call = self.last_call.and_then(|token| self.calls.find(token)).and_then(Entry::call);
        if let Some(call) = call {
            call.logged = Some(logged);
        }
    }

    fn warn(&mut self, line: &str) {
        let py = self.attach();
        let logged = self.report.warning(py, line);
        self.note_interrupt(logged);
    }
}

/// Writes the error of a call that has not begun.
pub(crate) fn answer(outcome: Result<CallOutcome, RpcError>, reply: &mut Reply<'_>) -> CallOutcome {
    outcome.unwrap_or_else(|error| {
        reply.error(&error);
        CallOutcome::Done
    })
}
