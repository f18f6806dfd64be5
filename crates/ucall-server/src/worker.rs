//! A worker: one thread, one engine, its connections and its state.
//!
//! A turn waits for completions, takes all of them, runs every request that has come, and hands
//! over every reply; the engine submits them with its next wait. Nothing is shared, so nothing is
//! locked; other threads come in through the [`Mailbox`].

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use ucall_buffer::Target;
use ucall_engine::{Arrival, Completion, Engine, Id, Listener, Readiness, SendState};
use ucall_proto::{Connection, Environment, MemoryBudget, RpcError, Wish};

use crate::connections::Connections;
use crate::counters::{Counters, Stats};
use crate::dispatch::{Dispatch, Office};
use crate::drain::Draining;
use crate::floods::{Floods, Leave};
use crate::mailbox::{Mailbox, Message};
use crate::output::Output;
use crate::procedures::Procedures;
use crate::starved::Starved;
use crate::sweep::Sweep;
use crate::{CallId, Config, Handler};

/// Once so much of a connection was read in a turn, the rest waits for the next one, so that those
/// who pipeline keep nobody from his turn. An engine may report many buffers of one connection.
const READ_PER_TURN_BYTES: usize = 64 * 1024;

/// What a turn has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Somebody asked the worker to stop.
    pub stopped: bool,
    /// The descriptor of [`Worker::watch_signals`] became readable.
    pub signalled: bool,
    /// The descriptor of [`Worker::watch_loop`] became readable.
    pub ready: bool,
    /// Nothing happened.
    pub quiet: bool,
}

/// Serves the procedures of one handler on one engine.
pub struct Worker<E: Engine, H: Handler> {
    pub(crate) engine: E,
    pub(crate) office: Office<H>,
    pub(crate) connections: Connections,
    pub(crate) listeners: Vec<Id>,
    /// The same sockets, for a last look when a drain begins; see `drain`.
    pub(crate) sockets: Vec<Listener>,
    /// Whether accepting has stopped until a connection closes or a little time has passed.
    pub(crate) accept_paused: bool,
    /// Why accepting has failed in this turn.
    pub(crate) accept_error: Option<io::Error>,
    /// Whether the log was told, since the last sweep, that accepting fails.
    pub(crate) accept_failure_told: bool,
    signals: Option<Id>,
    event_loop: Option<Id>,
    /// Whether the event loop's descriptor is to be watched again.
    rewatch: bool,
    pub(crate) drain: Option<Draining>,
    completions: Vec<Completion>,
    mailbox: Mailbox,
    messages: Vec<Message>,
    /// Where a handler writes the result of a deferred call.
    text: Vec<u8>,
    /// Where the connection at hand writes its output.
    pub(crate) out: Output,
    /// Connections with a reply of this turn that is still to be sent.
    pub(crate) outbox: Vec<Id>,
    pub(crate) sweep: Sweep,
    pub(crate) floods: Floods,
    pub(crate) starved: Starved,
    /// How many connections the last turn heard from: after several, more is likely there.
    arrivals: usize,
    /// Whether the last turn found messages, so that more are likely to come.
    hears: bool,
    /// Whether something waits to hear of a send, for which a wait need not return.
    pub(crate) asks: bool,
    pub(crate) stats: Stats,
    counters: Arc<Counters>,
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// A worker that serves `procedures` with `handler`.
    pub fn new(
        engine: E,
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: Config,
    ) -> Self {
        let now = Instant::now();
        let waker = engine.waker();
        Self {
            engine,
            office: Office::new(handler, procedures, config, now),
            connections: Connections::default(),
            listeners: Vec::new(),
            sockets: Vec::new(),
            accept_paused: false,
            accept_error: None,
            accept_failure_told: false,
            signals: None,
            event_loop: None,
            rewatch: false,
            drain: None,
            completions: Vec::new(),
            // A wake that fails finds a worker that is gone, or about to look for itself.
            mailbox: Mailbox::new(move || drop(waker.wake())),
            messages: Vec::new(),
            text: Vec::new(),
            out: Output::default(),
            outbox: Vec::new(),
            sweep: Sweep::new(now),
            floods: Floods::default(),
            starved: Starved::default(),
            arrivals: 0,
            hears: false,
            asks: false,
            stats: Stats::default(),
            counters: Arc::default(),
        }
    }

    /// Serves the connections of a listening socket.
    pub fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<()> {
        let listener = listener.into();
        listener.set_nonblocking()?;
        let socket = listener.try_clone()?;
        let id = self.engine.listen(listener)?;
        self.listeners.push(id);
        self.sockets.push(socket);
        Ok(())
    }

    /// Ends a turn, with `signalled` set, whenever `descriptor` is readable. It must stay open
    /// until the worker is dropped.
    pub fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.signals = Some(self.engine.watch(descriptor, READABLE)?);
        Ok(())
    }

    /// Ends a turn, with `ready` set, whenever `descriptor` is readable: that of an event loop that
    /// shares this worker's wait. It must stay open until the worker is dropped or watches another.
    pub fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.unwatch_loop();
        self.event_loop = Some(self.engine.watch(descriptor, READABLE)?);
        Ok(())
    }

    /// Watches no event loop any more.
    pub fn unwatch_loop(&mut self) {
        self.rewatch = false;
        if let Some(watch) = self.event_loop.take() {
            self.engine.close(watch);
        }
    }

    /// Gets ready for a wait that somebody else does, on the engine's descriptor: from here to the
    /// next turn, messages make that readable. `false` when there is one already, and the next turn
    /// is due.
    pub fn rest(&mut self) -> bool {
        self.mailbox.fall_asleep()
    }

    /// When a turn is due, whatever else happens.
    pub fn deadline(&self) -> Option<Instant> {
        let sweeps = self.connections.len() > 0 || self.accept_paused || self.keeps_memory();
        let sweep = sweeps.then_some(self.sweep.due);
        let deadline = earlier(sweep, self.office.handler.deadline());
        if self.drain.is_none() && !self.floods.is_waiting() && self.starved.is_empty() {
            return deadline;
        }
        let drain = self.drain.as_ref().map(|drain| drain.next_look);
        let flood = (self.floods.is_waiting() || self.may_feed()).then_some(self.office.now);
        earlier(earlier(deadline, drain), flood)
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The door for other threads.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// Counts on that page from now on.
    pub fn count_on(&mut self, counters: Arc<Counters>) {
        self.counters = counters;
    }

    /// The page of counters, to be read at any time.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The handler.
    pub fn handler_mut(&mut self) -> &mut H {
        &mut self.office.handler
    }

    /// One turn: waits until something happens or `deadline` has passed, and does all of it.
    ///
    /// Inlined, for the loop around it: behind a system call each return goes where the processor
    /// did not expect it, for the kernel's own returns have taken the place of what it remembers.
    #[inline(always)]
    pub fn turn(&mut self, deadline: Option<Instant>) -> io::Result<Turn> {
        // Between turns an event loop and signal handlers run functions.
        self.office.process.end_child();
        self.take_replies();
        self.send_outbox();
        self.wait(deadline)?;
        self.office.now = Instant::now();
        self.office.handler.turn_began(self.office.now);
        self.office.view.refresh();
        let mut turn = Turn { stopped: false, signalled: false, ready: false, quiet: false };
        self.floods.begin_turn(self.office.now);
        self.arrivals = 0;
        turn.quiet = self.completions.is_empty();
        self.take_completions(&mut turn)?;
        turn.stopped = self.read_mailbox();
        self.office.handler.turn_ended(self.office.now);
        self.take_replies();
        if !self.starved.is_empty() {
            self.feed_the_starved();
        }
        self.send_all();
        self.keep_house();
        if self.drain.is_some() {
            turn.stopped |= self.go_on_draining();
            self.send_outbox();
        }
        self.stats.turns += 1;
        self.stats.calls = self.office.calls;
        self.stats.system_calls = self.engine.system_calls();
        self.counters.publish(&self.stats);
        Ok(turn)
    }

    /// Does some of what others are due, now that this turn's calls are answered: how much, counts
    /// as waiting for all calls that come meanwhile.
    #[inline(always)]
    fn keep_house(&mut self) {
        if self.floods.is_waiting() {
            self.go_on_with_floods();
        }
        self.sweep();
        self.end_floods();
        if !self.outbox.is_empty() {
            self.send_outbox();
        }
    }

    #[inline(always)]
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if let Some(watch) = self.event_loop
            && mem::take(&mut self.rewatch)
        {
            self.engine.rewatch(watch, READABLE)?;
        }
        let busy = H::WAITING_COSTS && self.arrivals > 1;
        let looks = mem::take(&mut self.asks) || busy || !self.mailbox.fall_asleep();
        if looks && self.look()? {
            return Ok(());
        }
        let until = earlier(deadline, self.deadline());
        let (engine, completions) = (&mut self.engine, &mut self.completions);
        let waited = match H::WAITING_COSTS {
            true => self.office.handler.while_waiting(|| engine.wait(until, completions)),
            false => engine.wait(until, completions),
        };
        if self.hears {
            self.mailbox.wake_up();
        }
        waited
    }

    /// Looks without waiting; `true` when that has found something.
    #[inline(never)]
    fn look(&mut self) -> io::Result<bool> {
        self.engine.wait(Some(self.office.now), &mut self.completions)?;
        Ok(!self.completions.is_empty() || !self.mailbox.fall_asleep())
    }

    /// Does what the completions of this turn ask for.
    #[inline(always)]
    fn take_completions(&mut self, turn: &mut Turn) -> io::Result<()> {
        let mut next = 0;
        while let Some(completion) = self.completions.get_mut(next) {
            next += 1;
            if let Some(arrival) = completion.received() {
                self.receive(arrival);
            } else if let Some((socket, payload)) = completion.sent() {
                self.sent(socket, payload);
            } else {
                let completion = mem::replace(completion, Completion::Woken);
                self.take(completion, turn)?;
            }
        }
        Completion::forget_taken(&mut self.completions);
        Ok(())
    }

    /// Does what a completion asks for that is not the usual.
    #[cold]
    fn take(&mut self, completion: Completion, turn: &mut Turn) -> io::Result<()> {
        match completion {
            Completion::Sent { socket, payload, .. } => self.send_failed(socket, payload),
            Completion::Accepted { socket, .. } => self.welcome(socket),
            Completion::AcceptFailed { error, .. } => self.accept_error = Some(error),
            Completion::Filled { socket, target, result } => self.filled(socket, target, &result),
            Completion::Ready { watch, .. } if self.signals == Some(watch) => {
                self.engine.rewatch(watch, READABLE)?;
                turn.signalled = true;
            }
            Completion::Ready { watch, .. } if self.event_loop == Some(watch) => {
                // Watched again only before the next wait, when the loop has had its turn.
                self.rewatch = true;
                turn.ready = true;
            }
            Completion::Received(_)
            | Completion::Ready { .. }
            | Completion::Datagram(_)
            | Completion::Woken => {}
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, arrival: Arrival) {
        let id = arrival.socket;
        self.arrivals += 1;
        let Some(entry) = self.connections.find(id) else { return };
        if entry.turn != self.stats.turns {
            (entry.turn, entry.turn_bytes) = (self.stats.turns, 0);
        } else if entry.turn_bytes >= READ_PER_TURN_BYTES {
            // What is not taken is reported again.
            return;
        }
        if self.office.view.wants_peers && entry.caller.peer.is_none() {
            entry.caller.peer = self.engine.peer(id).ok();
        }
        let bytes = match self.engine.receive(arrival) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.leave(id, Leave::Broken),
        };
        if bytes.is_empty() {
            return self.leave(id, Leave::Ended);
        }
        self.stats.bytes_received += bytes.len() as u64;
        entry.turn_bytes += bytes.len();
        if entry.proto.is_handshaking() && self.floods.postpones(entry, bytes) {
            return self.pause(id);
        }
        let out = self.out.head_mut();
        self.office.step(entry, |connection, environment| {
            connection.receive(bytes, environment, out);
        });
        let len = self.out.len();
        if !entry.is_at_ease() || len == 0 || len > MemoryBudget::UNRESERVED_BYTES {
            return self.settle(id);
        }
        // The usual, without looking for the connection again.
        if E::SENDS_AT_ONCE {
            self.out.hand_to(&mut entry.queued);
            return self.put_aside(id);
        }
        self.stats.bytes_sent += len as u64;
        match self.engine.send_last(id, self.out.take()) {
            SendState::Done(payload) => self.out.give_back(payload),
            SendState::Pending => entry.begin_sending(len, self.office.now),
        }
    }

    /// Lets a connection take a step that its socket did not cause.
    pub(crate) fn step(
        &mut self,
        id: Id,
        step: impl FnOnce(&mut Connection, &mut Environment<'_, Dispatch<'_, H>>, &mut Vec<u8>),
    ) {
        let Some(entry) = self.connections.find(id) else { return };
        let out = self.out.head_mut();
        self.office.step(entry, |connection, environment| step(connection, environment, out));
    }

    /// Sends what a step has written, then does what the connection wishes for.
    #[inline(never)]
    pub(crate) fn settle(&mut self, id: Id) {
        loop {
            let Some(entry) = self.connections.find(id) else { return self.out.clear() };
            let (wish, is_paused) = (entry.proto.wish(), entry.paused);
            self.flush(id, wish);
            if wish == Wish::Receive && !is_paused || !self.indulge(id, wish) {
                return;
            }
        }
    }

    /// Does what a connection wishes for once its output is on its way; `true` when that has led to
    /// more output.
    #[inline(never)]
    fn indulge(&mut self, id: Id, wish: Wish) -> bool {
        let Some(entry) = self.connections.find(id) else { return false };
        // What waits for the send under way asks for it, as more output does.
        self.asks |= entry.sending > 0 && matches!(wish, Wish::Pause | Wish::Finish | Wish::Close);
        match wish {
            Wish::Receive => self.keep_receiving(id),
            Wish::Fill => self.fill(id),
            // All that made it pause may have gone out at once.
            Wish::Pause if entry.queued_bytes() == 0 => {
                self.step(id, |connection, environment, out| connection.proceed(environment, out));
                if !self.out.is_empty() {
                    return true;
                }
                self.pause_or_receive(id);
            }
            Wish::Pause => self.pause_or_receive(id),
            Wish::Finish if entry.queued_bytes() == 0 => self.finish(id),
            Wish::Close if entry.queued_bytes() == 0 => self.close(id),
            Wish::Finish | Wish::Close => {}
        }
        false
    }

    #[inline]
    pub(crate) fn keep_receiving(&mut self, id: Id) {
        let Some(entry) = self.connections.find(id) else { return };
        if entry.paused {
            entry.paused = false;
            self.engine.resume(id);
        }
    }

    /// Lets the engine receive a large body straight to its place.
    #[inline(never)]
    fn fill(&mut self, id: Id) {
        let mut target = None;
        self.step(id, |connection, environment, out| target = connection.target(environment, out));
        let Some(target) = target else {
            return if self.out.is_empty() { self.keep_receiving(id) } else { self.settle(id) };
        };
        let Some(entry) = self.connections.find(id) else { return };
        entry.filled = 0;
        self.keep_receiving(id);
        self.engine.receive_into(id, target);
    }

    #[inline(never)]
    fn pause_or_receive(&mut self, id: Id) {
        let Some(entry) = self.connections.find(id) else { return };
        if entry.proto.wish() != Wish::Pause {
            return self.keep_receiving(id);
        }
        if entry.proto.is_starved() {
            self.starved.add(entry);
        }
        self.pause(id);
    }

    #[inline(never)]
    fn pause(&mut self, id: Id) {
        if let Some(entry) = self.connections.find(id)
            && !mem::replace(&mut entry.paused, true)
        {
            self.engine.pause(id);
        }
    }

    #[inline(never)]
    fn filled(&mut self, id: Id, target: Target, result: &io::Result<()>) {
        self.stats.bytes_received += target.filled() as u64;
        self.step(id, |connection, environment, out| {
            connection.receive_target(target, environment, out);
        });
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.step(id, |connection, environment, out| connection.end(environment, out));
            }
            Err(_) => return self.close(id),
        }
        self.settle(id);
    }

    /// Whether there are more connections than there may be. Those that show it, and for which none
    /// was idle, are served all the same.
    pub(crate) fn is_crowded(&self) -> bool {
        self.connections.len() > self.office.config.connections_max
    }

    /// Whether memory is kept for large messages, which a sweep lets go of when none comes.
    fn keeps_memory(&self) -> bool {
        self.out.is_large() || self.office.scratch.keeps_memory()
    }

    /// Does what other threads have asked for; `true` when that is to stop.
    #[inline]
    fn read_mailbox(&mut self) -> bool {
        self.hears = self.mailbox.is_full();
        self.hears && self.read_messages()
    }

    #[inline(never)]
    fn read_messages(&mut self) -> bool {
        let mut messages = mem::take(&mut self.messages);
        self.mailbox.take(&mut messages);
        let mut stopped = false;
        for message in messages.drain(..) {
            match message {
                Message::Stop => stopped = true,
                Message::Drain(drain) => self.begin_drain(drain),
                Message::Look => {}
                Message::Complete(call, outcome) => self.complete(call, &outcome),
            }
        }
        self.messages = messages;
        stopped
    }

    /// Sends the replies that the handler has for deferred calls.
    #[inline]
    pub(crate) fn take_replies(&mut self) {
        let mut text = mem::take(&mut self.text);
        while let Some((call, outcome)) = self.office.handler.next_reply(&mut text) {
            self.office.process.end_child();
            self.step(call.connection, |connection, environment, out| {
                let outcome = outcome.as_ref().map(|()| text.as_slice());
                connection.complete(call.exchange, outcome, environment, out);
            });
            self.settle(call.connection);
            text.clear();
        }
        self.text = text;
    }

    #[inline(never)]
    fn complete(&mut self, call: CallId, outcome: &Result<Vec<u8>, RpcError>) {
        let outcome = outcome.as_deref();
        self.step(call.connection, |connection, environment, out| {
            connection.complete(call.exchange, outcome, environment, out);
        });
        self.settle(call.connection);
    }
}

#[inline]
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

const READABLE: Readiness = Readiness { readable: true, writable: false };
