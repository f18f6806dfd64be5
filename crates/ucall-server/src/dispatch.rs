//! From a connection's step to the functions it calls.

use std::sync::Arc;
use std::time::Instant;

use ucall_engine::OwningProcess;
use ucall_proto::http1::{Head, ReplyWriter};
use ucall_proto::json::Text;
use ucall_proto::tls::Session;
use ucall_proto::{
    Call, Connection, Drain, Environment, Identity, Outcome, Refusal, Reply, RpcError, Scratch,
    Service,
};

use crate::Config;
use crate::connections::Entry;
use crate::handler::{Caller, Handler};
use crate::procedures::{Procedures, View};

/// Output of one connection up to this size is not counted towards what all may hold.
pub(crate) const UNCOUNTED_BYTES: usize = 16 << 10;

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
            scratch: Scratch::default(),
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
        let mut service = Dispatch {
            view: &self.view,
            handler: &mut self.handler,
            caller: &entry.caller,
            drain: self.drain,
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
        };
        step(&mut entry.proto, &mut environment);
    }
}

impl<H: Handler> Office<H> {
    /// Counts what waits to be sent on a connection, when that is worth it.
    #[cold]
    pub(crate) fn count_output(&mut self, entry: &mut Entry) {
        let queued_bytes = entry.queued_bytes();
        let held_bytes = if queued_bytes > UNCOUNTED_BYTES { queued_bytes } else { 0 };
        self.scratch.hold(entry.held_bytes, held_bytes);
        entry.held_bytes = held_bytes;
        self.weigh();
    }

    /// Gives back what is counted for a connection that closes.
    pub(crate) fn release(&mut self, entry: &mut Entry) {
        entry.proto.release(&mut self.scratch);
        self.scratch.hold(std::mem::take(&mut entry.held_bytes), 0);
        self.weigh();
    }

    /// Whether there is memory for what a connection waits with.
    pub(crate) fn has_room(&self) -> bool {
        self.scratch.held_bytes() <= self.config.limits.held_bytes_max
    }

    /// Refuses what comes while too much is held.
    pub(crate) fn weigh(&mut self) {
        self.scratch.hold_elsewhere(self.handler.held_bytes());
        match self.drain {
            Drain::No if !self.has_room() => self.drain = Drain::Overloaded,
            Drain::Overloaded if self.has_room() => self.drain = Drain::No,
            _ => {}
        }
    }
}

/// Finds and runs the procedures that one connection calls.
pub(crate) struct Dispatch<'a, H: Handler> {
    view: &'a View<H::Procedure>,
    handler: &'a mut H,
    caller: &'a Caller,
    drain: Drain,
    calls: &'a mut u64,
    process: OwningProcess,
}

impl<H: Handler> Service for Dispatch<'_, H> {
    #[inline(always)]
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        *self.calls += 1;
        if self.drain >= Drain::Refusing {
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
        Drain::Overloaded => RpcError::overloaded(),
        _ => {
            RpcError::new(RpcError::CANCELLED, "Cancelled").expected("the server is about to stop")
        }
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
