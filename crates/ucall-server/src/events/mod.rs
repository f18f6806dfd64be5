//! Drives connections on an engine.
//!
//! The worker passes events in (`receive`, `sent`, `filled`, …). For each, the driver finds the
//! connection once; the [`ActiveConnection`] then advances until it waits for its next event.

mod active_connection;
mod brokers;
mod datagrams;
mod items;
mod lifecycle;
mod messages;
mod natives;
mod xdp;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_buffer::{Payload, Target};
use ucall_engine::{Arrival, Completion, Engine, Id};
use ucall_proto::{LoadState, ResultPart, RpcError, inline_results};

use crate::admission::{AdmissionQueues, HandshakeInput, Hangup};
use crate::caller::CallId;
use crate::connections::Connections;
use crate::context::WorkerContext;
use crate::counters::Stats;
use crate::datagrams::DatagramServer;
use crate::handler::{Handler, Polled};
use crate::listeners::Listeners;
use crate::maintenance::{Due, Sweep, inspect};
use crate::memory_waiters::{MemoryWaiters, Resume};
use crate::publisher::{Publisher, Push};
use crate::send_queue::{Flushed, SendQueue};
use crate::topics::Subscription;

use active_connection::{ActiveConnection, Advanced};
use brokers::Brokers;
use xdp::XdpServer;

/// The connections of a worker, and the components that their events touch.
pub(crate) struct ConnectionDriver<E: Engine, H: Handler> {
    engine: E,
    context: WorkerContext<H>,
    connections: Connections,
    send_queue: SendQueue,
    listeners: Listeners,
    waiters: MemoryWaiters,
    /// The result of a deferred call, written by the handler.
    text: Vec<u8>,
    publisher: Arc<Publisher>,
    /// Memory for [`Publisher::take`] and [`Publisher::subscribers`].
    pushes: VecDeque<Push>,
    subscribers: Vec<Subscription>,
    stats: Stats,
    /// `None` without UDP.
    datagrams: Option<Box<DatagramServer>>,
    /// `None` without calls through brokers.
    brokers: Option<Box<Brokers>>,
    /// `None` without AF_XDP.
    xdp: Option<Box<XdpServer>>,
}

/// The parts of a turn that concern no single connection.
impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    pub(crate) fn new(engine: E, context: WorkerContext<H>, publisher: Arc<Publisher>) -> Self {
        let send_queue = SendQueue::new(context.budget().clone());
        Self {
            engine,
            context,
            connections: Connections::default(),
            send_queue,
            listeners: Listeners::default(),
            waiters: MemoryWaiters::default(),
            text: Vec::new(),
            publisher,
            pushes: VecDeque::new(),
            subscribers: Vec::new(),
            stats: Stats::default(),
            datagrams: None,
            brokers: None,
            xdp: None,
        }
    }

    pub(crate) fn engine(&self) -> &E {
        &self.engine
    }

    pub(crate) fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    #[inline]
    pub(crate) fn context(&self) -> &WorkerContext<H> {
        &self.context
    }

    #[inline]
    pub(crate) fn context_mut(&mut self) -> &mut WorkerContext<H> {
        &mut self.context
    }

    pub(crate) fn listeners(&mut self) -> &mut Listeners {
        &mut self.listeners
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.context.now
    }

    pub(crate) fn connections(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// Whether a sweep has work to do.
    pub(crate) fn needs_sweeps(&self) -> bool {
        self.connections.len() > 0
            || self.listeners.is_paused()
            || self.send_queue.is_large()
            || self.context.has_kept_memory()
            || self.context.may_have_freed()
            || self.datagrams.as_ref().is_some_and(|datagrams| datagrams.has_replies())
            || self.has_busy_xdp()
    }

    /// Whether connections wait for memory.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether connections wait for memory although there is some.
    pub(crate) fn may_resume_waiters(&self) -> bool {
        self.has_waiters()
            && (self.context.load() == LoadState::Normal || self.waiters.is_decoding())
    }

    /// Whether the next wait has to poll for the end of a send. True once.
    #[inline]
    pub(crate) fn take_poll(&mut self) -> bool {
        self.send_queue.take_poll()
    }

    /// Waits for completions. A handler with an interpreter lock releases it meanwhile.
    #[inline(always)]
    pub(crate) fn wait(
        &mut self,
        deadline: Option<Instant>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        let (handler, engine) = (&mut self.context.dispatcher.handler, &mut self.engine);
        // A closure is not inlined here, even if `while_waiting` only calls it.
        match H::HAS_INTERPRETER_LOCK {
            true => handler.while_waiting(|| engine.wait(deadline, completions)),
            false => engine.wait(deadline, completions),
        }
    }

    /// Begins a turn, whose wait has ended just now.
    #[inline(always)]
    pub(crate) fn begin_turn(&mut self) {
        self.context.begin_turn(self.engine.clock().now());
    }

    /// All calls of a turn have begun.
    #[inline(always)]
    pub(crate) fn end_calls(&mut self) {
        if self.context.end_calls(&mut self.engine, self.connections.len()) {
            self.send_queue.request_poll();
        }
    }

    /// The seconds since 1970.
    fn unix_time_s(&self) -> u64 {
        self.engine.clock().unix_time().as_secs()
    }

    /// Ends a turn, whose counters it returns.
    #[inline(always)]
    pub(crate) fn end_turn(&mut self) -> &Stats {
        self.stats.turns += 1;
        self.stats.calls = self.context.dispatcher.calls;
        self.stats.bytes_sent = self.send_queue.bytes_sent();
        self.stats.system_calls = self.engine.system_calls();
        &self.stats
    }
}

/// The events of one connection.
impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Receives bytes of a connection, and answers the requests in them.
    #[inline(always)]
    pub(crate) fn receive(&mut self, arrival: Arrival, admission: &mut AdmissionQueues) {
        let id = arrival.socket;
        let Some(entry) = self.connections.find(id) else { return self.receive_native(arrival) };
        if !entry.may_read(self.stats.turns) {
            // The engine reports unreceived bytes again.
            return;
        }
        if self.context.dispatcher.wants_peers() && entry.caller.peer.is_none() {
            entry.caller.peer = self.engine.peer(id).ok();
        }
        let bytes = match self.engine.receive(arrival) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.enqueue_hangup(Hangup::Failed(id), admission),
        };
        if bytes.is_empty() {
            return self.enqueue_hangup(Hangup::Ended(id), admission);
        }
        self.stats.bytes_received += bytes.len() as u64;
        entry.count_read(bytes.len());
        if entry.proto.is_handshaking() {
            if admission.defer_handshake(id, bytes) {
                if entry.set_paused(true) {
                    self.engine.pause(id);
                }
                return;
            }
            if !self.context.begin_handshake(&mut entry.proto) {
                return self.close(id);
            }
        }
        self.context.step(entry, self.send_queue.output(), |connection, environment| {
            connection.receive(bytes, environment);
        });
        match self.send_queue.flush_reply(&mut self.engine, entry, self.context.now) {
            Flushed::Done => {}
            Flushed::BatchIsFull => self.send_batch(),
            Flushed::NotYet => {
                let mut active = ActiveConnection {
                    entry,
                    engine: &mut self.engine,
                    context: &mut self.context,
                    send_queue: &mut self.send_queue,
                    waiters: &mut self.waiters,
                };
                let advanced = active.advance();
                self.finish(id, advanced);
            }
        }
    }

    /// The connection of that id, with the parts that advance it.
    fn find(&mut self, id: Id) -> Option<ActiveConnection<'_, E, H>> {
        let Self { engine, context, connections, send_queue, waiters, .. } = self;
        let entry = connections.find(id)?;
        Some(ActiveConnection { entry, engine, context, send_queue, waiters })
    }

    /// Does what is left after a connection has advanced.
    #[inline]
    fn finish(&mut self, id: Id, advanced: Advanced) {
        match advanced {
            Advanced::Waits => {}
            Advanced::BatchIsFull => self.send_batch(),
            Advanced::Ends => self.close(id),
        }
    }

    #[cold]
    fn enqueue_hangup(&mut self, hangup: Hangup, admission: &mut AdmissionQueues) {
        if let Some(hangup) = admission.enqueue_hangup(hangup) {
            self.hang_up(hangup);
        }
    }

    /// Handles a hang-up.
    pub(crate) fn hang_up(&mut self, hangup: Hangup) {
        match hangup {
            Hangup::Ended(id) => self.end(id),
            Hangup::Failed(id) => self.close(id),
        }
    }

    /// Takes a handshake step that had to wait for its turn.
    #[inline(never)]
    pub(crate) fn resume_handshake(&mut self, id: Id, mut input: HandshakeInput) {
        let Some(mut active) = self.find(id) else { return };
        if !active.context.begin_handshake(&mut active.entry.proto) {
            return self.close(id);
        }
        let advanced = active.handle(|connection, environment| {
            connection.receive(&mut input.bytes, environment);
            if input.has_ended {
                connection.handle_eof(environment);
            }
        });
        self.finish(id, advanced);
    }

    /// Takes a target back from the engine.
    #[inline(never)]
    pub(crate) fn filled(&mut self, id: Id, target: Target, result: &io::Result<()>) {
        self.stats.bytes_received += target.filled() as u64;
        let Some(mut active) = self.find(id) else { return };
        active.step(|connection, environment| connection.return_target(target, environment));
        let advanced = match result {
            Ok(()) => active.advance(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => active.end(),
            Err(_) => Advanced::Ends,
        };
        self.finish(id, advanced);
    }

    /// Handles the end of the peer's side of the stream.
    fn end(&mut self, id: Id) {
        let Some(mut active) = self.find(id) else { return };
        let advanced = active.end();
        self.finish(id, advanced);
    }

    /// Handles the end of a send: sends the output queued after it, and resumes a connection that
    /// waited for it.
    #[inline(always)]
    pub(crate) fn sent(&mut self, id: Id, payload: Payload) {
        let Some(entry) = self.connections.find(id) else {
            self.send_queue.recycle(payload);
            return self.native_sent(id);
        };
        if self.send_queue.sent(entry, payload) {
            let mut active = ActiveConnection {
                entry,
                engine: &mut self.engine,
                context: &mut self.context,
                send_queue: &mut self.send_queue,
                waiters: &mut self.waiters,
            };
            let advanced = active.send_next();
            self.finish(id, advanced);
        }
    }

    /// Handles a failed send.
    #[cold]
    pub(crate) fn send_failed(&mut self, id: Id, payload: Payload, result: io::Result<()>) {
        self.send_queue.recycle(payload);
        if let Err(error) = result {
            self.context.dispatcher.natives.send_failed(id, error);
        }
        self.close(id);
    }

    /// Sends the batch of the send queue, if there is one.
    #[inline]
    pub(crate) fn send_waiting(&mut self) {
        if self.send_queue.has_batch() {
            self.send_batch();
        }
    }

    #[inline(never)]
    fn send_batch(&mut self) {
        self.send_replies();
    }

    /// Sends the batch. Inlined at the end of a turn, where most replies leave.
    #[inline(always)]
    pub(crate) fn send_replies(&mut self) {
        self.send_queue.send_batch(&mut self.engine, &mut self.connections, self.context.now);
    }

    /// Sends the handler's replies to deferred calls.
    #[inline(always)]
    pub(crate) fn poll_replies(&mut self) {
        while let Some((call, polled)) = self.context.dispatcher.poll_reply(&mut self.text) {
            self.handle_polled(call, polled);
        }
    }

    #[inline(never)]
    fn handle_polled(&mut self, call: CallId, polled: Polled) {
        // What the call has sent before precedes its item or reply.
        self.send_messages();
        match polled {
            Polled::Item(overflow) => self.handle_item(call, overflow),
            Polled::TakesBody => self.resume_body(call),
            // Those of this turn may have ended before.
            Polled::BeginsNative => self.end_calls(),
            Polled::Result => self.complete(call, Ok(())),
            Polled::Parts(parts) => self.complete_with_parts(call, parts),
            Polled::Error(error) => self.complete(call, Err(&error)),
        }
        self.text.clear();
    }

    /// Goes on with the body of a request.
    #[cold]
    #[inline(never)]
    fn resume_body(&mut self, call: CallId) {
        self.context.dispatcher.end_child();
        if let Some(mut active) = self.find(call.connection) {
            let advanced = active.resume();
            self.finish(call.connection, advanced);
        }
    }

    /// [`Self::complete`] with a result whose parts lie beside its text.
    #[cold]
    #[inline(never)]
    fn complete_with_parts(&mut self, call: CallId, parts: Vec<ResultPart>) {
        if self.connections.find(call.connection).is_none() {
            self.text = inline_results(&self.text, &parts);
            return self.complete(call, Ok(()));
        }
        self.context.dispatcher.end_child();
        let text = mem::take(&mut self.text);
        if let Some(mut active) = self.find(call.connection) {
            active.write_last_items(call.number);
            let advanced = active.handle(|connection, environment| {
                connection.complete_with_parts(call.number, &text, parts, environment);
            });
            self.finish(call.connection, advanced);
        }
        self.text = text;
    }

    #[inline(never)]
    fn complete(&mut self, call: CallId, outcome: Result<(), &RpcError>) {
        self.context.dispatcher.end_child();
        if Self::is_brokers(call.connection) {
            return self.complete_brokered(call, outcome);
        }
        if self.datagrams.as_ref().is_some_and(|server| server.serves(call.connection)) {
            return self.complete_datagram(call, outcome);
        }
        let text = mem::take(&mut self.text);
        if let Some(mut active) = self.find(call.connection) {
            active.write_last_items(call.number);
            let outcome = outcome.map(|()| text.as_slice());
            let advanced = active.handle(|connection, environment| {
                connection.complete(call.number, outcome, environment);
            });
            self.finish(call.connection, advanced);
        }
        self.text = text;
    }

    /// Decodes pieces of bodies, and resumes connections that wait for memory while there is some,
    /// or one of them if there is none.
    #[inline(never)]
    pub(crate) fn resume_waiters(&mut self) {
        for id in self.waiters.take_decoding() {
            let Some(mut active) = self.find(id) else { continue };
            if active.entry.proto.is_decoding() {
                let advanced =
                    active.handle(|connection, environment| connection.decode_piece(environment));
                self.finish(id, advanced);
            }
        }
        for _ in 0..self.waiters.turn_len() {
            let exempt = self.waiters.exempt().and_then(|id| self.connections.find(id));
            let has_exempt = exempt.is_some_and(|entry| entry.proto.may_exceed_budget());
            self.context.update_load();
            let Some(resume) = self.waiters.next(has_exempt, self.context.load()) else { return };
            let (Resume::WithinBudget(id) | Resume::OverBudget(id)) = resume;
            let Some(mut active) = self.find(id) else { continue };
            if let Resume::OverBudget(_) = resume {
                active.entry.proto.allow_over_budget();
            }
            if active.entry.proto.is_waiting_for_memory() {
                let advanced = active.resume();
                self.finish(id, advanced);
            }
        }
    }

    /// Inspects the connection of `slot` for a sweep, and applies its deadlines.
    pub(crate) fn inspect(&mut self, slot: usize, sweep: &mut Sweep) {
        let Some(id) = self.connections.id_at(slot) else { return };
        let Some(mut active) = self.find(id) else { return };
        active.check_progress();
        let protocol = active.entry.proto.protocol();
        let ActiveConnection { entry, engine, context, .. } = &mut active;
        let advanced = match inspect(entry, *engine, &context.config.limits, context.now) {
            Due::Nothing => return sweep.count_protocol(protocol),
            Due::Close => Advanced::Ends,
            Due::Expiry => {
                active.handle(|connection, environment| connection.handle_timeout(environment))
            }
        };
        self.finish(id, advanced);
        sweep.count_ended();
    }
}
