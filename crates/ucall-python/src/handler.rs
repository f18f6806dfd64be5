//! Runs Python functions for a worker: the `Handler` of this language.
//!
//! Plain functions run here. `deferral` starts all others, including tasks that are done at once.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use ucall_engine::Id;
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::websocket::MessageKind;
use ucall_proto::{
    AuthenticationError, Binary, Call, CallOutcome, CallerIdentity, ParamKind, Reply, ResultPart,
    RpcError,
};
use ucall_server::{
    CallAccess, CallId, CallMetrics, Caller, DrainReport, Handler, LoggedCall, Mailbox,
    MemoryBudget, MissingScopes, NativeRequest, Polled, Publisher, RunLimit, SeriesIndex,
    ServerMessage, Turn,
};

use crate::asgi::Mount;
use crate::auth::Authentication;
use crate::batch_sizes::{BatchCounts, BatchSizes};
use crate::callbacks::Callbacks;
use crate::deferral::Deferral;
use crate::functions::Functions;
use crate::health;
use crate::http_route::RouteRequest;
use crate::options::CallLimits;
use crate::procedure::{CallMode, SharedProcedure};
use crate::report::Report;
use crate::session::Sessions;

/// The interpreter as one worker uses it, on a thread that is detached when a turn begins.
pub(crate) struct Interpreter {
    pub(crate) functions: Functions,
    pub(crate) deferral: Deferral,
    authentication: Authentication,
    pub(crate) callbacks: Callbacks,
}

impl Interpreter {
    /// The interpreter of the server with that number.
    pub(crate) fn new(
        py: Python<'_>,
        server: u64,
        report: Report,
        auth: Option<Py<PyAny>>,
        limits: &CallLimits,
        sizes: Arc<BatchSizes>,
        metrics: Option<Arc<CallMetrics>>,
    ) -> PyResult<Self> {
        let report = Arc::new(report);
        let counts = BatchCounts::new(sizes, metrics.clone());
        let deferral = Deferral::new(server, limits, &report, counts);
        let streams = deferral.streams.context().clone();
        let functions = Functions::new(py, report, metrics, limits.slow, streams)?;
        Ok(Self {
            functions,
            deferral,
            authentication: Authentication::new(py, auth),
            callbacks: Callbacks::default(),
        })
    }

    /// Attaches the thread, if this turn has not attached it yet.
    #[inline(always)]
    pub(crate) fn attach(&mut self) -> Python<'static> {
        self.functions.attach()
    }

    /// Begins a call that may end after its turn, or the request of a route.
    ///
    /// # Errors
    /// The reply to a call that has not begun.
    fn begin(
        &mut self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        request: Option<RouteRequest>,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, RpcError> {
        let Self { functions, deferral, .. } = self;
        let start = deferral.admit(&functions.timing, procedure, call, caller, request)?;
        let begun = deferral.begin(functions, start, reply);
        begun.map_err(|failure| functions.fail_call(procedure, call, caller, failure, reply))
    }

    /// Begins a request of a mounted application.
    ///
    /// # Errors
    /// The reply to a request that has not begun.
    fn begin_mounted(
        &mut self,
        procedure: &SharedProcedure,
        mount: &Mount,
        call: &Call<'_>,
        body: Option<&[u8]>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, RpcError> {
        let Self { functions, deferral, .. } = self;
        let start = deferral.admit(&functions.timing, procedure, call, caller, None)?;
        let begun = deferral.begin_mounted(functions, mount, start, body, reply);
        begun.map_err(|failure| functions.fail_call(procedure, call, caller, failure, reply))
    }

    /// Begins a call that may end after its turn, or refuses one whose caller lacks a scope. `None`
    /// if the function is to run here.
    fn begin_other(
        &mut self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        if procedure.hooked.is_none()
            && let Some(MissingScopes { error, .. }) = self.functions.missing_scopes(procedure)
        {
            if let Some(series) = procedure.series {
                self.functions.timing.record_since_receipt(series, Some(error.code));
            }
            return Some(answer(Err(error), reply));
        }
        if !matches!(procedure.mode, CallMode::Inline) {
            return Some(self.call_deferred(procedure, call, caller, reply));
        }
        if procedure.takes_context() || !self.functions.contexts.has_own_variables() {
            return None;
        }
        let py = self.attach();
        Some(match self.functions.timing.deadline_of(procedure, call) {
            Some(deadline) if deadline.has_passed(Instant::now()) => {
                self.functions.expire(procedure, deadline, reply)
            }
            _ => self.functions.call_in_variables(py, procedure, call, caller, reply),
        })
    }

    /// Begins a call that may end after its turn.
    fn call_deferred(
        &mut self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let begun = self.begin(procedure, call, caller, None, reply);
        if let Some(series) = procedure.series {
            let timing = &self.functions.timing;
            match &begun {
                Ok(outcome) if outcome.is_deferred() => {}
                Ok(_) => timing.record_since_receipt(series, None),
                Err(error) => timing.record_since_receipt(series, Some(error.code)),
            }
        }
        answer(begun, reply)
    }

    #[inline(never)]
    fn next_deadline(&self) -> Option<Instant> {
        let deferral = self.deferral.deadline(self.functions.timing.turn_began());
        [deferral, self.callbacks.deadline()].into_iter().flatten().min()
    }

    #[cold]
    fn handle_deadlines(&mut self, now: Instant) {
        self.deferral.handle_deadlines(&mut self.functions, now);
        if self.callbacks.deadline().is_some_and(|deadline| deadline <= now) {
            let py = self.attach();
            self.callbacks.beat_if_due(py, now);
        }
        if self.deferral.streams.is_due() {
            let py = self.attach();
            self.deferral.step_streams(py, &mut self.functions);
        }
    }

    #[inline(never)]
    fn next_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        if let Some(item) = self.deferral.streams.next_item(text) {
            return Some(item);
        }
        if !self.deferral.calls.has_outcomes() {
            return None;
        }
        self.deferral.next_outcome(&mut self.functions, text)
    }
}

impl Handler for Interpreter {
    type Procedure = SharedProcedure;

    const HAS_INTERPRETER_LOCK: bool = true;

    /// Params are read in their order.
    const NEEDS_MEMBERS: bool = false;

    #[inline]
    fn call(
        &mut self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        if !procedure.is_plain
            && let Some(outcome) = self.begin_other(procedure, call, caller, reply)
        {
            return outcome;
        }
        let py = self.attach();
        let Self { functions, deferral, .. } = self;
        if let Some(deadline) = functions.timing.deadline_of(procedure, call)
            && deadline.has_passed(Instant::now())
        {
            return functions.expire(procedure, deadline, reply);
        }
        if procedure.takes_context() {
            return deferral.call_with_context(py, functions, procedure, call, caller, reply);
        }
        functions.report.set_in_function(true);
        let ran = functions.run(py, procedure, call, reply);
        functions.report.set_in_function(false);
        functions.end_call(py, procedure, ran, (call, caller), reply);
        CallOutcome::Done
    }

    fn set_binary(&mut self, binary: Option<&Binary>) {
        self.functions.set_binary(binary);
        self.deferral.set_binary(binary);
    }

    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        std::mem::take(&mut self.functions.results.parts)
    }

    fn is_idempotent(&self, procedure: &Self::Procedure) -> bool {
        procedure.is_idempotent
    }

    #[inline]
    fn next_native(&mut self) -> Option<NativeRequest> {
        self.deferral.next_native()
    }

    fn native_replied(&mut self, call: CallId, reply: Result<&[u8], RpcError>) {
        self.deferral.native_replied(&mut self.functions, call, reply);
    }

    fn call_rejected(&mut self, procedure: Option<&SharedProcedure>, error: &RpcError) {
        let series = procedure.and_then(|procedure| procedure.series).unwrap_or(SeriesIndex::OTHER);
        self.functions.timing.record_since_receipt(series, Some(error.code));
    }

    fn respond(
        &mut self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        body: Option<&[u8]>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        if procedure.is_public_route() {
            self.functions.contexts.clear_identity();
        }
        if let Some(mount) = &procedure.mount {
            let begun = self.begin_mounted(procedure, mount, call, body, caller, reply);
            let outcome = answer(begun, reply);
            if let Some(series) = procedure.series.filter(|_| !outcome.is_deferred()) {
                let status = reply.response_summary().map(|(status, _)| i64::from(status));
                let error = status.filter(|status| *status >= 400);
                self.functions.timing.record_since_receipt(series, error);
            }
            return outcome;
        }
        let py = self.attach();
        let (functions, budget) = (&self.functions, self.deferral.calls.budget());
        match RouteRequest::new(py, functions, budget, procedure, call, body, caller) {
            Ok(request) => answer(self.begin(procedure, call, caller, Some(request), reply), reply),
            Err(failure) => {
                reply.error(&self.functions.fail_call(procedure, call, caller, failure, reply));
                CallOutcome::Done
            }
        }
    }

    fn takes_body(&mut self, call: CallId) -> bool {
        self.deferral.takes_body(call)
    }

    fn take_body_part(&mut self, call: CallId, part: &[u8], is_last: bool) {
        self.functions.attach();
        self.deferral.take_body_part(call, part, is_last);
    }

    fn take_message(&mut self, call: CallId, kind: MessageKind, payload: &[u8]) {
        let py = self.functions.attach();
        self.deferral.take_message(py, call, kind, payload);
    }

    fn end_messages(&mut self, call: CallId, code: u16, reason: &str) {
        self.functions.attach();
        self.deferral.end_messages(call, code, reason);
    }

    fn param_kind(&self, procedure: &SharedProcedure, name: &str) -> ParamKind {
        procedure.param_kind(name)
    }

    fn first_param(&self, procedure: &SharedProcedure) -> Option<String> {
        procedure.first_param()
    }

    fn check_ready(
        &mut self,
        checks: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let py = self.attach();
        let Self { functions, deferral, .. } = self;
        health::check_ready(py, deferral, functions, checks, call, caller, reply)
    }

    fn report_drain(&mut self, report: DrainReport) {
        let py = self.attach();
        let line = health::drain_line(report, self.deferral.calls.limit().running());
        self.functions.report.log(|report| report.info(py, &line));
        self.callbacks.drain_begins(py);
    }

    fn set_mailbox(&mut self, mailbox: Mailbox) {
        self.deferral.calls.outcomes().set_mailbox(mailbox);
    }

    fn set_publisher(&mut self, publisher: Arc<Publisher>) {
        let message_bytes_max = self.deferral.reply_bytes_max;
        self.functions.contexts.set_sessions(Sessions::new(publisher, message_bytes_max));
    }

    fn connection_closed(&mut self, connection: Id) {
        let py = self.attach();
        let Functions { contexts, report, .. } = &mut self.functions;
        contexts.end_session(py, connection, report);
    }

    fn published(&mut self, message: &ServerMessage) {
        let py = self.attach();
        self.callbacks.published(py, message);
    }

    #[inline]
    fn requires_authentication(&self) -> bool {
        !matches!(self.authentication, Authentication::None)
    }

    fn has_credentials(&self, head: &Head<'_>) -> bool {
        let names = ["Authorization", "Cookie", self.authentication.header()];
        names.iter().any(|name| head.header(name).is_some())
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        self.authentication.authenticate(&mut self.functions, head, session, caller)
    }

    fn access(&self, procedure: &Self::Procedure) -> CallAccess {
        procedure.access.of_calls()
    }

    fn authenticate_call(
        &mut self,
        procedure: &Self::Procedure,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let own = procedure.access.own().and_then(|own| own.authentication::<Authentication>());
        own.ok_or(AuthenticationError::Failed)?.authenticate(
            &mut self.functions,
            head,
            session,
            caller,
        )
    }

    fn challenge(&self, procedure: &Self::Procedure) -> Option<String> {
        procedure.access.own().map(|own| own.challenge().to_owned())
    }

    fn missing_scopes(&mut self, procedure: &Self::Procedure) -> Option<MissingScopes> {
        self.functions.missing_scopes(procedure)
    }

    fn set_identity(&mut self, identity: &CallerIdentity) {
        self.functions.contexts.set_identity(identity);
    }

    fn cancel(&mut self, connection: Id) {
        if self.deferral.calls.count() > 0 || self.deferral.awaits_natives() {
            self.deferral.cancel_connection(&mut self.functions, connection);
        }
    }

    fn cancel_call(&mut self, call: CallId) {
        if let Some(token) = self.deferral.calls.token_of(call) {
            self.deferral.abandon(&mut self.functions, token, None);
        }
    }

    fn pause_stream(&mut self, call: CallId) {
        self.deferral.set_paused(&mut self.functions, call, true);
    }

    fn resume_stream(&mut self, call: CallId) {
        self.deferral.set_paused(&mut self.functions, call, false);
    }

    fn turn_began(&mut self, now: Instant) {
        let Functions { timing, attachment, .. } = &mut self.functions;
        timing.begin_turn(now);
        attachment.begin_turn(now, timing);
    }

    fn procedures_changed(&mut self) {
        self.deferral.forget_unused_batches();
    }

    #[inline(always)]
    fn turn_ended(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.handle_deadlines(now);
        }
    }

    #[inline(always)]
    fn deadline(&self) -> Option<Instant> {
        match self.deferral.may_have_deadline() || self.callbacks.deadline().is_some() {
            true => self.next_deadline(),
            false => None,
        }
    }

    #[inline(always)]
    fn ends_turns(&mut self, turn: &Turn) -> bool {
        let is_interrupted = self.functions.report.is_interrupted();
        turn.stopped || turn.signalled || is_interrupted || self.deferral.known_tasks().is_some()
    }

    #[inline(always)]
    fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        match self.deferral.streams.has_items() || self.deferral.calls.has_outcomes() {
            true => self.next_reply(text),
            false => None,
        }
    }

    fn run_limit(&self) -> RunLimit {
        self.deferral.calls.limit().clone()
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.deferral.calls.budget().clone()
    }

    fn metrics(&self) -> Option<Arc<CallMetrics>> {
        self.functions.timing.metrics().cloned()
    }

    fn is_busy(&mut self) -> bool {
        let py = self.attach();
        let has_tasks = self.deferral.known_tasks().is_some_and(|tasks| tasks.has_made_tasks(py));
        has_tasks || self.deferral.streams.retire_slots()
    }

    fn abandon(&mut self) {
        self.deferral.abandon_all(&mut self.functions);
    }

    fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        self.functions.attachment.detach();
        wait()
    }

    fn identity_name(&mut self) -> Option<String> {
        if let Some(name) = self.functions.contexts.caller()?.known_name() {
            return name.map(str::to_owned);
        }
        let py = self.attach();
        self.functions.contexts.caller()?.name(py).map(str::to_owned)
    }

    fn set_logged(&mut self, logged: LoggedCall) {
        self.deferral.set_logged(logged);
    }

    fn warn(&mut self, line: &str) {
        let py = self.attach();
        self.functions.report.warning(py, line);
    }
}

/// Writes the error of a call that has not begun.
fn answer(outcome: Result<CallOutcome, RpcError>, reply: &mut Reply<'_>) -> CallOutcome {
    outcome.unwrap_or_else(|error| {
        reply.error(&error);
        CallOutcome::Done
    })
}
