//! From a connection's step to the functions it calls.

use std::sync::Arc;
use std::time::Instant;

use ucall_engine::OwningProcess;
use ucall_proto::http1::{Head, ReplyWriter};
use ucall_proto::json::Text;
use ucall_proto::tls::Session;
use ucall_proto::{
    Call, Connection, Drain, Environment, Identity, LoadState, Outcome, Refusal, Reply, RpcError,
    Scratch, Service,
};

use crate::Config;
use crate::connections::Entry;
use crate::handler::{Caller, Handler};
use crate::procedures::{Procedures, View};

/// All that a step of a connection needs, apart from its socket.
pub(crate) struct Office<H: Handler> {
    pub(crate) handler: H,
    pub(crate) config: Config,
    pub(crate) view: View<H::Procedure>,
    pub(crate) replies: ReplyWriter,
    pub(crate) now: Instant,
    pub(crate) calls: u64,
    pub(crate) drain: Drain,
    pub(crate) scratch: Scratch,
    pub(crate) process: OwningProcess,
}

impl<H: Handler> Office<H> {
    pub(crate) fn new(
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: Config,
        now: Instant,
    ) -> Self {
        let mut replies = ReplyWriter::default();
        let budget = handler.memory_budget();
        if let Some(challenge) = &config.challenge {
            replies.set_challenge(challenge);
        }
        Self {
            handler,
            config,
            view: View::new(procedures),
            replies,
            now,
            calls: 0,
            drain: Drain::No,
            scratch: Scratch::new(budget),
            process: OwningProcess::current(),
        }
    }

    /// Lets a connection take a step.
    #[inline]
    pub(crate) fn step(
        &mut self,
        entry: &mut Entry,
        step: impl FnOnce(&mut Connection, &mut Environment<'_, Dispatch<'_, H>>),
    ) {
        let load = self.load();
        let mut service = Dispatch {
            view: &self.view,
            handler: &mut self.handler,
            caller: &entry.caller,
            drain: self.drain,
            load,
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
            queued_bytes: entry.queued_bytes(),
            drain: self.drain,
            load,
        };
        step(&mut entry.proto, &mut environment);
    }
}

impl<H: Handler> Office<H> {
    /// Reserves the memory of output that waits on a connection.
    #[cold]
    pub(crate) fn reserve_output(&mut self, entry: &mut Entry) {
        entry.reserved = self.scratch.budget().reserve_large(entry.queued_bytes());
    }

    /// Whether requests may be served: read before each step, because reservations may be dropped
    /// at any time, on any thread.
    #[inline]
    pub(crate) fn load(&self) -> LoadState {
        match self.scratch.budget().bytes() <= self.config.limits.held_bytes_max {
            true => LoadState::Normal,
            false => LoadState::Overloaded,
        }
    }
}

/// Finds and runs the procedures that one connection calls.
pub(crate) struct Dispatch<'a, H: Handler> {
    view: &'a View<H::Procedure>,
    handler: &'a mut H,
    caller: &'a Caller,
    drain: Drain,
    load: LoadState,
    calls: &'a mut u64,
    process: OwningProcess,
}

impl<H: Handler> Service for Dispatch<'_, H> {
    #[inline(always)]
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        *self.calls += 1;
        if self.drain == Drain::Refusing || self.load == LoadState::Overloaded {
            reply.error(&refusal(self.drain));
            return Outcome::Done;
        }
        let found = match call.method.is_escaped() {
            false => self.view.find(call.method.raw()),
            true => find_escaped(self.view, call.method),
        };
        let Some(procedure) = found else {
            reply.error(&method_not_found(call.method));
            return Outcome::Done;
        };
        let outcome = self.handler.call(procedure, call, self.caller, reply);
        self.process.end_child();
        outcome
    }

    #[inline]
    fn is_guarded(&self) -> bool {
        self.handler.is_guarded()
    }

    fn admit(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<Session>>,
    ) -> Result<Identity, Refusal> {
        let admitted = self.handler.admit(head, session, self.caller);
        self.process.end_child();
        admitted
    }

    fn enter(&mut self, identity: &Identity) {
        self.handler.enter(identity);
    }
}

#[cold]
fn refusal(drain: Drain) -> RpcError {
    match drain {
        Drain::Refusing => {
            RpcError::new(RpcError::CANCELLED, "Cancelled").expected("the server is about to stop")
        }
        _ => RpcError::overloaded(),
    }
}

#[cold]
fn find_escaped<'v, P>(view: &'v View<P>, name: Text<'_>) -> Option<&'v P> {
    view.find(&name.unescaped())
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
