//! From a connection's step to the functions it calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::http1::ReplyWriter;
use ucall_proto::{
    Call, Connection, Drain, Environment, Outcome, Reply, RpcError, Scratch, Service,
};

use crate::Config;
use crate::connections::Entry;
use crate::handler::{CallId, Handler};
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
    scratch: Scratch,
}

impl<H: Handler> Office<H> {
    pub(crate) fn new(
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: Config,
        now: Instant,
    ) -> Self {
        Self {
            handler,
            config,
            view: View::new(procedures),
            replies: ReplyWriter::default(),
            now,
            calls: 0,
            drain: Drain::No,
            scratch: Scratch::default(),
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
            connection: entry.id,
            peer: entry.peer,
            drain: self.drain,
            calls: &mut self.calls,
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

/// Finds and runs the procedures that one connection calls.
pub(crate) struct Dispatch<'a, H: Handler> {
    view: &'a View<H::Procedure>,
    handler: &'a mut H,
    connection: Id,
    peer: Option<SocketAddr>,
    drain: Drain,
    calls: &'a mut u64,
}

impl<H: Handler> Service for Dispatch<'_, H> {
    #[inline]
    fn call(&mut self, call: Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        *self.calls += 1;
        if self.drain == Drain::Refusing {
            reply.error(&draining());
            return Outcome::Done;
        }
        let name = call.method.unescaped();
        let Some(procedure) = self.view.find(&name) else {
            reply.error(&method_not_found(&name));
            return Outcome::Done;
        };
        let id = CallId { connection: self.connection, exchange: call.exchange };
        let call = Call { peer: self.peer.as_ref(), ..call };
        self.handler.call(procedure, call, id, reply)
    }
}

#[cold]
fn draining() -> RpcError {
    RpcError::new(RpcError::CANCELLED, "Cancelled").expected("the server is about to stop")
}

#[cold]
fn method_not_found(name: &[u8]) -> RpcError {
    const SHOWN_MAX: usize = 64;
    let name = String::from_utf8_lossy(name);
    let shown: String = name.chars().take(SHOWN_MAX).collect();
    RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found")
        .expected(&format!("there is no method {shown:?}"))
}
