//! The interface between a worker and the language of its procedures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::websocket::MessageKind;
use ucall_proto::{
    AuthenticationError, Binary, Call, CallOutcome, CallerIdentity, MemoryBudget, ParamKind, Reply,
    ResultPart, RpcError,
};

use crate::access_log::LoggedCall;
use crate::call_access::CallAccess;
use crate::caller::{CallId, Caller};
use crate::deferred_calls::RunLimit;
use crate::mailbox::Mailbox;
use crate::metrics::{CallMetrics, RunningCall, SeriesIndex};
use crate::native::NativeRequest;
use crate::overflow::Overflow;
use crate::protected_resource::MissingScopes;
use crate::publisher::Publisher;
use crate::server_message::ServerMessage;

/// What [`Handler::poll_reply`] returns of a call.
#[derive(Debug)]
pub enum Polled {
    /// Its result. The call has ended.
    Result,
    /// Its result, with the parts that its text refers to. The call has ended.
    Parts(Vec<ResultPart>),
    /// Its error. The call has ended.
    Error(RpcError),
    /// An item of a stream. More may follow, and at last the result or an error.
    Item(Overflow),
    /// There is room for more of its request's body. The call goes on.
    TakesBody,
    /// A hook has called a native procedure, which goes on at the end of the turn's calls.
    BeginsNative,
}

impl From<Result<(), RpcError>> for Polled {
    fn from(outcome: Result<(), RpcError>) -> Self {
        outcome.map_or_else(Self::Error, |()| Self::Result)
    }
}

/// A step of a drain, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainReport {
    /// The worker stops accepting after this time.
    Delayed(Duration),
    /// The worker stops accepting. It has this many connections.
    Began {
        /// The number.
        connections: usize,
    },
    /// The worker stops. This many calls were abandoned.
    Ended {
        /// The number.
        abandoned: usize,
    },
}

/// What happened in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// A message has asked the worker to stop, or its drain is over.
    pub stopped: bool,
    /// The descriptor of [`watch_signals`](crate::AnyWorker::watch_signals) became readable.
    pub signalled: bool,
    /// The descriptor of [`watch_loop`](crate::AnyWorker::watch_loop) became readable.
    pub ready: bool,
    /// The turn had no completions.
    pub idle: bool,
}

/// Runs procedures of one language. One worker owns one handler and calls it from its own thread.
pub trait Handler {
    /// A registered function.
    type Procedure;

    /// Whether its language has an interpreter lock, which [`Handler::while_waiting`] releases. As
    /// that costs more than a poll of the engine, the worker polls before it waits if events are
    /// likely. Functions of the language also run between two turns, so calls may end without a
    /// notification: the worker polls for replies before and after each wait.
    const HAS_INTERPRETER_LOCK: bool = false;

    /// Whether calls come with [`Call::members`]; see
    /// [`Service::NEEDS_MEMBERS`](ucall_proto::Service::NEEDS_MEMBERS).
    const NEEDS_MEMBERS: bool = true;

    /// Runs a call of `procedure`: writes the reply; or copies what it needs of the call, returns
    /// [`CallOutcome::Deferred`], and replies to its [`CallId`] later by [`Handler::poll_reply`].
    /// [`DeferredCalls`](crate::DeferredCalls) keeps such calls.
    fn call(
        &mut self,
        procedure: &Self::Procedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome;

    /// What the calls that follow have beside their text; see
    /// [`Service::set_binary`](ucall_proto::Service::set_binary).
    fn set_binary(&mut self, binary: Option<&Binary>) {
        let _ = binary;
    }

    /// The parts of the result of the last call; see
    /// [`Service::take_result_parts`](ucall_proto::Service::take_result_parts). Those of a deferred
    /// call are in [`Polled::Parts`].
    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        Vec::new()
    }

    /// What the hooks around native procedures have the worker do next: see
    /// [`Procedures::set_native_hooks`](crate::Procedures::set_native_hooks).
    fn next_native(&mut self) -> Option<NativeRequest> {
        None
    }

    /// Takes the outcome of a call by [`Handler::next_native`]: the text of its result, or its
    /// error.
    fn native_replied(&mut self, call: CallId, reply: Result<&[u8], RpcError>) {
        let _ = (call, reply);
    }

    /// Reports a call that is answered with an error and not run. Its method may be unknown.
    fn call_rejected(&mut self, procedure: Option<&Self::Procedure>, error: &RpcError) {
        let _ = (procedure, error);
    }

    /// Whether a call of `procedure` may run twice.
    fn is_idempotent(&self, procedure: &Self::Procedure) -> bool {
        let _ = procedure;
        false
    }

    /// What a param takes of a form, whose values are texts.
    fn param_kind(&self, procedure: &Self::Procedure, name: &str) -> ParamKind {
        let _ = (procedure, name);
        ParamKind::Json
    }

    /// The name of the first param, if that is known.
    fn first_param(&self, procedure: &Self::Procedure) -> Option<String> {
        let _ = procedure;
        None
    }

    /// Answers a request of a route, as [`Handler::call`] does; see
    /// [`Service::respond`](ucall_proto::Service::respond). Without a body here it follows in
    /// parts, see [`Handler::take_body_part`].
    fn respond(
        &mut self,
        procedure: &Self::Procedure,
        call: &Call<'_>,
        body: Option<&[u8]>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let _ = (procedure, call, body, caller, reply);
        CallOutcome::Done
    }

    /// Whether there is room for a part of the body of a request. If not,
    /// [`Polled::TakesBody`] follows when there is.
    fn takes_body(&mut self, call: CallId) -> bool {
        let _ = call;
        true
    }

    /// Takes a part of the body of a request, which may have ended.
    fn take_body_part(&mut self, call: CallId, part: &[u8], is_last: bool) {
        let _ = (call, part, is_last);
    }

    /// Takes a message of a WebSocket; see
    /// [`Service::take_message`](ucall_proto::Service::take_message). [`Handler::takes_body`] says
    /// whether there is room.
    fn take_message(&mut self, call: CallId, kind: MessageKind, payload: &[u8]) {
        let _ = (call, kind, payload);
    }

    /// A WebSocket has ended; see
    /// [`Service::end_messages`](ucall_proto::Service::end_messages).
    fn end_messages(&mut self, call: CallId, code: u16, reason: &str) {
        let _ = (call, code, reason);
    }

    /// Answers `/readyz` while the server itself is ready: runs the program's checks, and replies
    /// with [`readiness`](crate::readiness). It is no running call, so no limit on these applies.
    fn check_ready(
        &mut self,
        checks: &Self::Procedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let _ = (checks, call, caller, reply);
        CallOutcome::Done
    }

    /// Reports a step of a drain.
    fn report_drain(&mut self, report: DrainReport) {
        let _ = report;
    }

    /// Sets the mailbox of the handler's worker, when that is made.
    fn set_mailbox(&mut self, mailbox: Mailbox) {
        let _ = mailbox;
    }

    /// Sets what sends messages to the connections of the handler's worker, when that is made.
    fn set_publisher(&mut self, publisher: Arc<Publisher>) {
        let _ = publisher;
    }

    /// Reports the end of a connection that [`Publisher::attach`] or [`Publisher::subscribe`] has
    /// named.
    fn connection_closed(&mut self, connection: Id) {
        let _ = connection;
    }

    /// Reports a message that was published, while [`Publisher::set_listeners`] says so.
    fn published(&mut self, message: &ServerMessage) {
        let _ = message;
    }

    /// Whether requests go through [`Handler::authenticate`].
    #[inline]
    fn requires_authentication(&self) -> bool {
        false
    }

    /// Whether a request has what may identify its caller.
    fn has_credentials(&self, head: &Head<'_>) -> bool {
        ["Authorization", "Cookie"].iter().any(|name| head.header(name).is_some())
    }

    /// Authenticates a request; see [`Service::authenticate`](ucall_proto::Service::authenticate).
    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let _ = (head, session, caller);
        Err(AuthenticationError::Failed)
    }

    /// Who may call `procedure`. While any procedure has another access than
    /// [`CallAccess::Authenticated`], calls are authenticated one by one.
    fn access(&self, procedure: &Self::Procedure) -> CallAccess {
        let _ = procedure;
        CallAccess::Authenticated
    }

    /// Authenticates the caller of a procedure with [`CallAccess::Own`], as
    /// [`Handler::authenticate`] does.
    fn authenticate_call(
        &mut self,
        procedure: &Self::Procedure,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let _ = (procedure, head, session, caller);
        Err(AuthenticationError::Failed)
    }

    /// The `WWW-Authenticate` of a call that [`Handler::authenticate_call`] refuses.
    fn challenge(&self, procedure: &Self::Procedure) -> Option<String> {
        let _ = procedure;
        None
    }

    /// The scopes of `procedure` that the caller of the next calls does not have, if any.
    /// [`Handler::call`] refuses such a call, too.
    fn missing_scopes(&mut self, procedure: &Self::Procedure) -> Option<MissingScopes> {
        let _ = procedure;
        None
    }

    /// Sets the identity of the caller of the next calls.
    fn set_identity(&mut self, identity: &CallerIdentity) {
        let _ = identity;
    }

    /// Cancels the deferred calls of a connection that has closed.
    fn cancel(&mut self, connection: Id) {
        let _ = connection;
    }

    /// Cancels a deferred call, whose caller has asked for that and gets its reply now.
    fn cancel_call(&mut self, call: CallId) {
        let _ = call;
    }

    /// The next reply to a deferred call, or item of a stream. The JSON text of a result or an item
    /// goes to `text`, which is empty. After each notification of its wake flag the worker polls
    /// until there is none.
    fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        let _ = text;
        None
    }

    /// The reader of a stream is slow: no more items, until [`Handler::resume_stream`]. Those that
    /// exist already may follow.
    fn pause_stream(&mut self, call: CallId) {
        let _ = call;
    }

    /// The reader of a paused stream takes items again.
    fn resume_stream(&mut self, call: CallId) {
        let _ = call;
    }

    /// A turn begins. All arrivals that it handles came by `now`.
    fn turn_began(&mut self, now: Instant) {
        let _ = now;
    }

    /// Procedures were registered or replaced since the last turn.
    fn procedures_changed(&mut self) {}

    /// All calls of a turn have begun, so batches may run. Called no later than at
    /// [`Handler::deadline`].
    fn turn_ended(&mut self, now: Instant) {
        let _ = now;
    }

    /// When [`Handler::turn_ended`] or [`Handler::ends_turns`] is due, even without events.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// A turn of [`AnyWorker::turns`](crate::AnyWorker::turns) has ended. Whether it is the last.
    fn ends_turns(&mut self, turn: &Turn) -> bool {
        turn.stopped
    }

    /// The limit that running deferred calls count against, including notifications. A drain waits
    /// for them. Native procedures share the limit.
    fn run_limit(&self) -> RunLimit {
        RunLimit::new(usize::MAX, "max_running_calls")
    }

    /// The budget that the worker reserves its memory from. A handler that keeps the params of
    /// deferred calls reserves them from the same budget.
    fn memory_budget(&self) -> MemoryBudget {
        MemoryBudget::default()
    }

    /// What records the calls of native procedures, if anything does.
    fn metrics(&self) -> Option<Arc<CallMetrics>> {
        None
    }

    /// The series in [`WorkerConfig::call_metrics`](crate::WorkerConfig::call_metrics) of a
    /// procedure's calls.
    fn series(&self, procedure: &Self::Procedure) -> Option<SeriesIndex> {
        let _ = procedure;
        None
    }

    /// Keeps what measures the deferred call that [`Handler::call`] has begun last. The handler
    /// records its end.
    fn set_running(&mut self, running: RunningCall) {
        drop(running);
    }

    /// Whether other code of its functions than deferred calls runs, which a drain waits for. The
    /// worker asks this only when nothing else is left to wait for.
    fn is_busy(&mut self) -> bool {
        false
    }

    /// Answers all deferred calls with an error: the server ends without waiting for them.
    fn abandon(&mut self) {}

    /// Runs `wait`, which may block. A language with an interpreter lock releases it meanwhile.
    fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        wait()
    }

    /// The name of the caller's identity, for the access log.
    fn identity_name(&mut self) -> Option<String> {
        None
    }

    /// Keeps the line of the deferred call that [`Handler::call`] has begun last, until that ends.
    fn set_logged(&mut self, logged: LoggedCall) {
        drop(logged);
    }

    /// Logs a warning.
    fn warn(&mut self, line: &str) {
        eprintln!("ucall: {line}");
    }
}
