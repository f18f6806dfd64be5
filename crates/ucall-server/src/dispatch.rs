//! Dispatch: finds and runs the procedures of the calls in a step of a connection.
//!
//! A worker has one [`Dispatcher`]. A step of a connection borrows it as [`Dispatch`], the
//! [`Service`] of that connection.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{EngineClock, Id, OwningProcess};
use ucall_proto::http1::{CallPaths, ErrorBody, Head, Method, Methods, Target, request_origin};
use ucall_proto::json::Text;
use ucall_proto::tls::TlsSession;
use ucall_proto::websocket::MessageKind;
use ucall_proto::{
    AuthenticationError, Binary, CANCEL_REQUEST, Call, CallNumber, CallOutcome, CallRefusal,
    CallerIdentity, Drain, Endpoint, InferencePath, LoadState, McpRequest, ParamKind, Parts, Reply,
    ResultPart, RpcError, Service, percent_decoded,
};

use crate::caller::{CallId, Caller, Transport};
use crate::config::WorkerConfig;
use crate::deferred_calls::RunLimit;
use crate::handler::{Handler, Polled};
use crate::inference::is_inference_path;
use crate::mcp::{McpCalls, Tool};
use crate::native::NativeHandlers;
use crate::procedures::{ProcedureCache, Procedures};
use crate::protected_resource::ProtectedResource;
use crate::routes::{Route, RouteAccess, RouteTarget};
use authentication::CallAuthentication;
use interceptor::Interceptor;

pub(crate) use interceptor::RejectionReason;

mod authentication;
mod interceptor;
mod mounted;
mod natives;
mod route;

/// Why calls may be refused, and when.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Availability {
    pub(crate) drain: Drain,
    pub(crate) load: LoadState,
    /// Whether a drain is in progress or about to begin.
    pub(crate) is_draining: bool,
}

impl Availability {
    pub(crate) fn rejection(self) -> Option<RejectionReason> {
        match (self.drain, self.load) {
            (Drain::Refusing, _) => Some(RejectionReason::Drain),
            (_, LoadState::Overloaded) => Some(RejectionReason::Overload),
            _ => None,
        }
    }
}

/// The procedures of a worker, and what runs them.
pub(crate) struct Dispatcher<H: Handler> {
    pub(crate) handler: H,
    pub(crate) natives: NativeHandlers,
    procedures: ProcedureCache<H::Procedure>,
    /// `None` while calls go straight to their procedures.
    interceptor: Option<Box<Interceptor>>,
    requires_authentication: bool,
    authentication: CallAuthentication,
    /// Whether anyone may call some tool of MCP.
    has_public_tools: bool,
    /// Calls so far.
    pub(crate) calls: u64,
    pub(crate) mcp_calls: McpCalls,
    resource: Option<Arc<ProtectedResource>>,
    call_paths: CallPaths,
    /// The scopes of the tool that was refused last.
    missing_scopes: Option<Arc<[String]>>,
    /// The parts of the document that runs.
    parts: Option<Arc<Parts>>,
    /// The serving process. A child that a function has forked does not serve.
    process: OwningProcess,
}

impl<H: Handler> Dispatcher<H> {
    pub(crate) fn new(
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: &WorkerConfig,
        clock: &EngineClock,
    ) -> Self {
        let natives = NativeHandlers::new(
            handler.run_limit(),
            handler.memory_budget(),
            handler.metrics(),
            clock.clone(),
        );
        let mut dispatcher = Self {
            handler,
            natives,
            procedures: ProcedureCache::new(procedures),
            interceptor: None,
            requires_authentication: false,
            authentication: CallAuthentication::default(),
            has_public_tools: false,
            calls: 0,
            mcp_calls: McpCalls::default(),
            resource: config.resource.clone(),
            call_paths: config.limits.call_paths.clone(),
            missing_scopes: None,
            parts: None,
            process: OwningProcess::current(),
        };
        dispatcher.update_procedures();
        dispatcher.set_availability(config, Availability::default(), clock);
        dispatcher
    }

    /// Refuses calls from now on, or runs them again.
    pub(crate) fn set_availability(
        &mut self,
        config: &WorkerConfig,
        availability: Availability,
        clock: &EngineClock,
    ) {
        self.interceptor =
            Interceptor::of(config, availability, clock, self.authentication.is_on());
    }

    /// Ends this process if it is a child that a function has forked.
    #[inline]
    pub(crate) fn end_child(&self) {
        self.process.end_child();
    }

    /// Whether procedures need the peers of their callers.
    #[inline]
    pub(crate) fn wants_peers(&self) -> bool {
        self.procedures.wants_peers
    }

    /// Begins a turn, and calls the newest version of each procedure from then on. Returns whether
    /// that is another one.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self, now: Instant) -> bool {
        self.handler.turn_began(now);
        self.natives.begin_turn(now);
        let is_new = self.procedures.refresh();
        if is_new {
            self.update_procedures();
        }
        is_new
    }

    /// The next reply to a deferred call, or item of a stream; see [`Handler::poll_reply`].
    #[inline(always)]
    pub(crate) fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        if let Some((call, polled)) = self.handler.poll_reply(text) {
            return Some(self.wrap_tool(call, polled, text));
        }
        if !self.natives.are_used() {
            return None;
        }
        let (call, polled) = self.poll_native(text)?;
        Some(self.wrap_tool(call, polled, text))
    }

    /// Makes the outcome of a tool's function that of the tool.
    #[inline(always)]
    fn wrap_tool(&mut self, call: CallId, polled: Polled, text: &mut Vec<u8>) -> (CallId, Polled) {
        match self.mcp_calls.is_empty() {
            true => (call, polled),
            false => (call, self.mcp_calls.wrap(call, polled, text)),
        }
    }

    /// The tool of this name.
    pub(crate) fn tool(&self, name: &[u8]) -> Option<Arc<Tool>> {
        self.procedures.mcp()?.tool(name)
    }

    /// The procedure of a method of MCP.
    pub(crate) fn mcp_method(&self, method: &[u8]) -> Option<Arc<H::Procedure>> {
        self.procedures.mcp()?.method(method)
    }

    /// Whether MCP answers a method.
    pub(crate) fn has_mcp_method(&self, method: &[u8]) -> bool {
        self.procedures.mcp().is_some_and(|table| table.has_method(method))
    }

    /// Cancels the deferred calls of a connection that has closed.
    pub(crate) fn cancel(&mut self, connection: Id) {
        if !self.mcp_calls.is_empty() && self.mcp_calls.remove_connection(connection) {
            return;
        }
        self.handler.cancel(connection);
        self.natives.cancel_connection(connection);
    }

    /// The limit on running deferred calls.
    pub(crate) fn run_limit(&self) -> &RunLimit {
        self.natives.limit()
    }

    /// Answers all deferred calls with an error: the server ends without waiting for them.
    pub(crate) fn abandon(&mut self) {
        self.handler.abandon();
        self.natives.abandon();
    }

    /// The method whose function gets a body that is posted to a path: that of the path's name.
    fn body_method(&self, path: &[u8]) -> Option<String> {
        let names = self.call_paths.names_in(path);
        let mut names = names.filter_map(percent_decoded);
        let name = names.find(|name| self.procedures.find(name).is_some())?;
        String::from_utf8(name).ok()
    }

    /// Whether a function gets the bodies that are posted to a path.
    fn has_body_method(&self, path: &[u8]) -> bool {
        self.body_method(path).is_some()
    }

    /// What a request of the Open Inference Protocol calls; `None` if it calls no model.
    fn inference_endpoint(&self, path: &[u8]) -> Option<Endpoint> {
        let InferencePath::Infer(name) = InferencePath::read(path)? else { return None };
        let model = self.procedures.inference()?.model(&name);
        Some(model.map_or(Endpoint::UnknownModel(name), |it| Endpoint::Inference(it.clone())))
    }

    /// Whether a call of this method may run twice.
    pub(crate) fn is_idempotent(&self, method: Text<'_>) -> bool {
        let procedure = find_escaped(&self.procedures, method);
        procedure.is_some_and(|procedure| self.handler.is_idempotent(procedure))
    }

    #[cold]
    fn handle_unknown(
        &mut self,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        if call.id.is_none() && call.method.raw() == CANCEL_REQUEST {
            return CallOutcome::CancelRequest;
        }
        let Self { handler, procedures, process, .. } = self;
        let name = call.method.unescaped();
        let is_reserved = name.starts_with(b"rpc.") || name.starts_with(b"$/");
        if let Some(procedure) = natives::hooks_around(procedures, &name) {
            let outcome = handler.call(procedure, call, caller, reply);
            process.end_child();
            return outcome;
        }
        if let Some(procedure) = procedures.unknown().filter(|_| !is_reserved) {
            let outcome = handler.call(procedure, call, caller, reply);
            process.end_child();
            return outcome;
        }
        let error = method_not_found(call.method);
        self.handler.call_rejected(None, &error);
        reply.error(&error);
        CallOutcome::Done
    }
}

/// Finds and runs the procedures that one connection calls.
pub(crate) struct Dispatch<'a, H: Handler> {
    pub(crate) dispatcher: &'a mut Dispatcher<H>,
    pub(crate) caller: &'a mut Caller,
}

impl<H: Handler> Service for Dispatch<'_, H> {
    const NEEDS_MEMBERS: bool = H::NEEDS_MEMBERS;

    #[inline(always)]
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        self.dispatcher.calls += 1;
        if self.dispatcher.interceptor.is_some()
            && let Some(rejected) = self.begin_intercepted(call, reply)
        {
            return rejected;
        }
        let Dispatcher { handler, procedures, process, .. } = &mut *self.dispatcher;
        let found = match call.method.is_escaped() {
            false => procedures.find(call.method.raw()),
            true => find_escaped(procedures, call.method),
        };
        let outcome = match found {
            Some(procedure) => {
                let outcome = handler.call(procedure, call, self.caller, reply);
                process.end_child();
                outcome
            }
            None => self.call_native(call, reply),
        };
        if self.dispatcher.interceptor.is_some() {
            self.end_intercepted(outcome, reply);
        }
        outcome
    }

    #[cold]
    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.dispatcher.natives.share(document);
    }

    #[cold]
    fn set_binary(&mut self, binary: Option<&Binary>) {
        self.dispatcher.parts = binary.and_then(|binary| binary.parts.clone());
        self.dispatcher.handler.set_binary(binary);
    }

    #[cold]
    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        self.dispatcher.handler.take_result_parts()
    }

    #[inline]
    fn requires_authentication(&self) -> bool {
        self.dispatcher.requires_authentication
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        self.authenticate_request(head, session)
    }

    fn take_refusal(&mut self) -> Option<CallRefusal> {
        self.dispatcher.authentication.take_refusal()
    }

    fn challenge(
        &self,
        head: &Head<'_>,
        is_tls: bool,
        scopes: Option<&[String]>,
    ) -> Option<String> {
        let resource = self.dispatcher.resource.as_ref()?;
        let origin = request_origin(head, self.trusted_proxies(self.caller.peer), is_tls);
        Some(resource.challenge(head, origin.as_deref(), scopes))
    }

    fn take_missing_scopes(&mut self) -> Option<Arc<[String]>> {
        self.dispatcher.missing_scopes.take()
    }

    fn upgrading(&mut self, head: &Head<'_>) {
        self.set_client(Some(head));
        self.caller.transport = Transport::WebSocket;
    }

    fn route_methods(&self, path: &[u8]) -> Methods {
        let methods = self.dispatcher.procedures.routes().methods(path);
        match self.dispatcher.has_body_method(path) {
            true => methods.union(Methods::CALLS),
            false => methods,
        }
    }

    fn error_body(&self, path: &[u8]) -> ErrorBody {
        match is_inference_path(path) && self.dispatcher.procedures.inference().is_some() {
            true => ErrorBody::Json,
            false => ErrorBody::Text,
        }
    }

    fn endpoint(&self, head: &Head<'_>) -> Option<Endpoint> {
        let (path, _) = head.path_and_query();
        match self.route(head).map(|route| &*route.target) {
            Some(RouteTarget::Inference) => self.dispatcher.inference_endpoint(path),
            Some(_) => None,
            None => self.dispatcher.body_method(path).map(Endpoint::Body),
        }
    }

    fn param_kind(&self, method: &str, name: &str) -> ParamKind {
        let procedure = self.dispatcher.procedures.find(method.as_bytes());
        procedure.map_or(ParamKind::Json, |it| self.dispatcher.handler.param_kind(it, name))
    }

    fn first_param(&self, method: &str) -> Option<String> {
        let procedure = self.dispatcher.procedures.find(method.as_bytes())?;
        self.dispatcher.handler.first_param(procedure)
    }

    fn is_public(&self, head: &Head<'_>) -> bool {
        self.route(head).is_some_and(|route| route.access != RouteAccess::Authenticated)
    }

    fn is_mounted(&self, head: &Head<'_>) -> bool {
        // A preflight of `/` asks for calls.
        let asks_for_calls = (head.method(), head.target()) == (Method::Options, Target::Root);
        let is_mount = |route: &Route<_>| matches!(*route.target, RouteTarget::Mount(_));
        !asks_for_calls && self.route(head).is_some_and(is_mount)
    }

    fn is_health_check(&self, head: &Head<'_>) -> bool {
        self.route(head).is_some_and(|route| route.target.is_health_check())
    }

    fn serves_mcp(&self, head: &Head<'_>) -> bool {
        self.route(head).is_some_and(|route| matches!(*route.target, RouteTarget::Mcp))
    }

    fn takes_responses(&self) -> bool {
        self.dispatcher.has_mcp_method(ucall_proto::RESPONSE)
    }

    fn call_mcp(
        &mut self,
        call: &Call<'_>,
        request: &McpRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        self.dispatcher.missing_scopes = None;
        self.run_mcp(call, request, reply)
    }

    fn respond(&mut self, call: &Call<'_>, body: &[u8], reply: &mut Reply<'_>) -> CallOutcome {
        let peer = self.set_client(call.head);
        let outcome = self.run_route(call, Some(body), peer, reply);
        self.caller.peer = peer;
        outcome
    }

    fn streams_body(&self, head: &Head<'_>) -> bool {
        self.route(head).is_some_and(Route::streams_body)
    }

    fn body_bytes_max(&self, head: &Head<'_>) -> Option<usize> {
        self.route(head)?.body.bytes_max
    }

    fn respond_streamed(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let peer = self.set_client(call.head);
        let outcome = self.run_route(call, None, peer, reply);
        self.caller.peer = peer;
        outcome
    }

    fn takes_body(&mut self, number: CallNumber) -> bool {
        let call = CallId { connection: self.caller.connection, number };
        self.dispatcher.handler.takes_body(call)
    }

    fn take_body_part(&mut self, number: CallNumber, part: &[u8], is_last: bool) {
        let call = CallId { connection: self.caller.connection, number };
        self.dispatcher.handler.take_body_part(call, part, is_last);
    }

    fn take_message(&mut self, number: CallNumber, kind: MessageKind, payload: &[u8]) {
        let call = CallId { connection: self.caller.connection, number };
        self.dispatcher.handler.take_message(call, kind, payload);
    }

    fn end_messages(&mut self, number: CallNumber, code: u16, reason: &str) {
        let call = CallId { connection: self.caller.connection, number };
        self.dispatcher.handler.end_messages(call, code, reason);
    }

    fn cancel(&mut self, number: CallNumber) {
        let call = CallId { connection: self.caller.connection, number };
        self.dispatcher.handler.cancel_call(call);
        self.dispatcher.natives.cancel_call(call);
        self.dispatcher.mcp_calls.remove(call);
    }

    fn set_identity(&mut self, identity: &CallerIdentity) {
        match self.dispatcher.authentication.is_on() {
            true => self.set_caller(identity),
            false => self.dispatcher.handler.set_identity(identity),
        }
    }
}

impl<H: Handler> Dispatch<'_, H> {
    /// Runs a procedure that is not in the table of functions.
    pub(crate) fn run(
        &mut self,
        procedure: &H::Procedure,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        self.dispatcher.calls += 1;
        if self.dispatcher.interceptor.is_some()
            && let Some(rejected) = self.begin_intercepted(call, reply)
        {
            return rejected;
        }
        let outcome = self.dispatcher.handler.call(procedure, call, self.caller, reply);
        self.dispatcher.end_child();
        if self.dispatcher.interceptor.is_some() {
            self.end_intercepted(outcome, reply);
        }
        outcome
    }

    /// Runs a call of a native procedure, or a request of MCP, if it is one.
    #[inline(never)]
    fn call_native(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        if let Some(parts) = self.dispatcher.parts.take() {
            let outcome = self.call_inlined(&parts, call, reply);
            self.dispatcher.parts = Some(parts);
            return outcome;
        }
        if let Some(outcome) = self.call_as_mcp(call, reply) {
            return outcome;
        }
        let Dispatcher { natives, procedures, .. } = &mut *self.dispatcher;
        let name = match call.method.is_escaped() {
            false => Cow::Borrowed(call.method.raw()),
            true => call.method.unescaped(),
        };
        let Some(outcome) = natives.call(procedures.natives(), &name, call, self.caller, reply)
        else {
            return self.dispatcher.handle_unknown(call, self.caller, reply);
        };
        if outcome.is_deferred()
            && let Some(logged) =
                self.dispatcher.interceptor.as_deref_mut().and_then(|it| it.logged.take())
        {
            self.dispatcher.natives.set_logged(logged);
        }
        outcome
    }

    /// Runs a call of a native procedure, or a request of MCP, with base64 in place of the parts
    /// that its params refer to.
    #[cold]
    fn call_inlined(
        &mut self,
        parts: &Parts,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        match call.params.map(|params| parts.inline(params)).transpose() {
            Ok(params) => {
                let call = Call { params: params.as_deref(), members: None, ..*call };
                self.call_native(&call, reply)
            }
            Err(error) => {
                let error = RpcError::new(RpcError::INVALID_PARAMS, "Invalid params")
                    .expected(&error.to_string());
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }
}

#[cold]
fn find_escaped<'v, P>(procedures: &'v ProcedureCache<P>, name: Text<'_>) -> Option<&'v P> {
    procedures.find(&name.unescaped())
}

pub(crate) fn method_not_found(name: Text<'_>) -> RpcError {
    unknown_method(&String::from_utf8_lossy(&name.unescaped()))
}

/// The error of a call whose method does not exist.
#[cold]
pub fn unknown_method(name: &str) -> RpcError {
    const SHOWN_MAX: usize = 64;
    let shown: String = name.chars().take(SHOWN_MAX).collect();
    RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found")
        .expected(&format!("there is no method {shown:?}"))
}
