//! A worker: one thread, one engine and its connections.
//!
//! A turn waits for completions, passes each to its connection, and sends all replies; io_uring
//! submits them with its next wait, or by [`AnyWorker::submit`]. After its calls are answered, a
//! turn takes a few steps of the rest: new connections, hang-ups, handshakes, deadlines and a
//! drain. A worker shares no state with other threads, so nothing is locked; they send messages
//! through the [`Mailbox`].

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::{Completion, Engine, Id, Listener, Readiness, Waker};
use ucall_proto::Drain;

use crate::admission::AdmissionQueues;
use crate::any_worker::AnyWorker;
use crate::config::WorkerConfig;
use crate::context::WorkerContext;
use crate::counters::Counters;
use crate::drain::{DrainState, DrainStep};
use crate::events::ConnectionDriver;
use crate::handler::{DrainReport, Handler, Turn};
use crate::mailbox::{Mailbox, Message};
use crate::maintenance::Sweep;
use crate::procedures::Procedures;
use crate::publisher::Publisher;
use crate::topics::TopicsConfig;

const READABLE: Readiness = Readiness { readable: true, writable: false };

/// Serves the procedures of one handler on one engine; its methods are those of [`AnyWorker`].
pub struct Worker<E: Engine, H: Handler> {
    driver: ConnectionDriver<E, H>,
    admission: AdmissionQueues,
    sweep: Sweep,
    drain: Option<DrainState>,
    /// The calls that the drain has abandoned; `None` without a drain, and when that is reported.
    abandoned: Option<usize>,
    signals: Option<Id>,
    event_loop: Option<Id>,
    /// Whether to watch the event loop's descriptor again before the next wait.
    rewatch: bool,
    completions: Vec<Completion>,
    mailbox: Mailbox,
    messages: Vec<Message>,
    /// Arrivals of the last turn. After several, more are likely.
    arrivals: usize,
    /// Whether the last turn had messages. If so, more are likely.
    has_messages: bool,
    /// When the turn before this one began: connections that were accepted later are not evicted.
    previous_turn: Option<Instant>,
    counters: Arc<Counters>,
    publisher: Arc<Publisher>,
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// A worker that serves `procedures` with `handler`.
    pub fn new(
        engine: E,
        mut handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: WorkerConfig,
    ) -> Self {
        let clock = engine.clock();
        let waker = engine.waker();
        // A wake fails if the worker is gone, or about to poll by itself.
        let mailbox = Mailbox::new(move || drop(waker.wake()));
        let topics = TopicsConfig {
            subscriptions_max: config.subscriptions_max,
            topic_bytes_max: config.topic_bytes_max,
            held_bytes_max: config.limits.held_bytes_max / 2,
            budget: handler.memory_budget(),
        };
        let publisher = Arc::new(Publisher::new(mailbox.clone(), topics));
        handler.set_mailbox(mailbox.clone());
        handler.set_publisher(publisher.clone());
        let context = WorkerContext::new(handler, procedures, config, clock.clone());
        context.dispatcher.natives.set_mailbox(mailbox.clone());
        Self {
            driver: ConnectionDriver::new(engine, context, publisher.clone()),
            admission: AdmissionQueues::default(),
            sweep: Sweep::new(clock.now()),
            drain: None,
            abandoned: None,
            signals: None,
            event_loop: None,
            rewatch: false,
            completions: Vec::new(),
            mailbox,
            messages: Vec::new(),
            arrivals: 0,
            has_messages: false,
            previous_turn: None,
            counters: publisher.counters(),
            publisher,
        }
    }

    /// That deadline, or an earlier one of less frequent work.
    #[cold]
    #[inline(never)]
    fn earlier_deadline(&self, deadline: Option<Instant>) -> Option<Instant> {
        let natives = self.driver.context().dispatcher.natives.deadline();
        let drain = self.drain.as_ref().map(DrainState::next_inspection);
        let has_steps = self.admission.is_due() || self.driver.may_resume_waiters();
        let steps = has_steps.then(|| self.driver.now());
        let yields = self.admission.yields_until();
        // A minimum over an array takes twice the instructions.
        earlier(earlier(earlier(deadline, natives), earlier(drain, steps)), yields)
    }

    /// One turn.
    ///
    /// Inlined into the loop around it: after a system call the processor mispredicts each return,
    /// because the kernel's returns have replaced its predictions.
    #[inline(always)]
    fn take_turn(&mut self, deadline: Option<Instant>) -> io::Result<Turn> {
        // Between turns an event loop and signal handlers run functions, which may fork.
        self.driver.context_mut().dispatcher.end_child();
        if H::HAS_INTERPRETER_LOCK {
            self.driver.poll_replies();
        }
        self.driver.send_waiting();
        self.wait(deadline)?;
        self.previous_turn = Some(self.driver.now());
        self.driver.begin_turn();
        self.admission.begin_turn();
        let idle = self.completions.is_empty();
        let mut turn = Turn { stopped: false, signalled: false, ready: false, idle };
        self.handle_completions(&mut turn)?;
        // Generators take their next steps, due batches run, native procedures send. Before replies
        // are polled: a passed deadline precedes an outcome that came after it.
        self.driver.end_calls();
        self.has_messages = self.mailbox.has_messages();
        turn.stopped = self.has_messages && self.read_messages();
        if H::HAS_INTERPRETER_LOCK {
            self.driver.poll_replies();
        }
        if self.driver.has_waiters() {
            self.driver.resume_waiters();
        }
        self.driver.send_replies();
        self.run_maintenance();
        if self.drain.is_some() {
            if self.continue_drain() {
                turn.stopped = true;
                self.report_drained();
            }
            self.driver.send_waiting();
        }
        self.counters.publish(self.driver.end_turn());
        Ok(turn)
    }

    /// A turn that does not wait.
    #[cold]
    #[inline(never)]
    fn turn_now(&mut self) -> io::Result<()> {
        AnyWorker::turn(self, Some(self.driver.engine().clock().now())).map(drop)
    }

    #[inline(always)]
    fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        if let Some(watch) = self.event_loop
            && mem::take(&mut self.rewatch)
        {
            self.driver.engine_mut().rewatch(watch, READABLE)?;
        }
        let is_busy = H::HAS_INTERPRETER_LOCK && self.arrivals > 1;
        let polls = self.driver.take_poll() || is_busy || !self.mailbox.prepare_to_sleep();
        if polls && self.poll()? {
            return Ok(());
        }
        let until = earlier(deadline, self.deadline());
        let waited = self.driver.wait(until, &mut self.completions);
        if self.has_messages {
            self.mailbox.clear_sleeping();
        }
        waited
    }

    /// Polls without waiting; `true` if there are completions or messages.
    #[inline(never)]
    fn poll(&mut self) -> io::Result<bool> {
        let now = self.driver.now();
        self.driver.engine_mut().wait(Some(now), &mut self.completions)?;
        Ok(!self.completions.is_empty() || !self.mailbox.prepare_to_sleep())
    }

    /// Passes the completions of this turn to their connections.
    #[inline(always)]
    fn handle_completions(&mut self, turn: &mut Turn) -> io::Result<()> {
        self.arrivals = 0;
        let mut next = 0;
        while let Some(completion) = self.completions.get_mut(next) {
            next += 1;
            if let Some(arrival) = completion.received() {
                self.arrivals += 1;
                self.driver.receive(arrival, &mut self.admission);
            } else if let Some((socket, payload)) = completion.sent() {
                self.driver.sent(socket, payload);
            } else {
                let completion = mem::replace(completion, Completion::Woken);
                self.handle_completion(completion, turn)?;
            }
        }
        Completion::clear_taken(&mut self.completions);
        Ok(())
    }

    /// Handles the less frequent completions.
    #[cold]
    fn handle_completion(&mut self, completion: Completion, turn: &mut Turn) -> io::Result<()> {
        match completion {
            Completion::Sent { socket, payload, result } => {
                self.driver.send_failed(socket, payload, result);
            }
            Completion::Accepted { socket, .. } => {
                if self.driver.listeners().are_shared() {
                    self.admission.begin_yield(self.driver.now());
                }
                if let Some(id) = self.admission.enqueue_accepted(socket) {
                    self.driver.accept(id);
                }
            }
            Completion::AcceptFailed { error, .. } => self.driver.listeners().fail(error),
            Completion::Filled { socket, target, result } => {
                self.driver.filled(socket, target, &result);
            }
            Completion::Ready { watch, .. } if self.signals == Some(watch) => {
                self.driver.engine_mut().rewatch(watch, READABLE)?;
                turn.signalled = true;
            }
            Completion::Ready { watch, .. } if self.event_loop == Some(watch) => {
                // Watched again before the next wait, after the loop has handled its events.
                self.rewatch = true;
                turn.ready = true;
            }
            Completion::Ready { watch, .. } => {
                if !self.driver.receive_xdp(watch)? {
                    self.driver.native_ready(watch);
                }
            }
            Completion::Datagrams(socket) => self.driver.receive_datagrams(socket),
            Completion::Received(_) | Completion::Woken => {}
        }
        Ok(())
    }

    /// Handles the messages and replies of other threads; `true` for [`Message::Stop`].
    #[inline(never)]
    fn read_messages(&mut self) -> bool {
        let mut messages = mem::take(&mut self.messages);
        self.mailbox.take(&mut messages);
        let (mut stopped, mut has_adopted) = (false, false);
        for message in messages.drain(..) {
            match message {
                // What a new connection has sent before is read before the drain begins.
                Message::Drain { .. } if has_adopted => self.mailbox.send(message),
                Message::Stop => stopped = true,
                Message::AllStop => self.driver.listeners().set_all_stop(),
                Message::Adopt(stream, peer) => {
                    self.driver.adopt(stream, peer);
                    has_adopted = true;
                }
                Message::Call(call) => self.driver.enqueue_brokered(*call),
                Message::RunCalls => {}
                Message::CancelCall(number) => self.driver.cancel_brokered(number),
                Message::Drain { mode, idle_time, timeout } => {
                    self.begin_drain(mode, idle_time, timeout);
                }
            }
        }
        self.messages = messages;
        if self.driver.has_waiting_brokered() {
            self.driver.run_brokered();
            self.driver.end_calls();
            if self.driver.has_waiting_brokered() {
                self.mailbox.send(Message::RunCalls);
            }
        }
        self.driver.send_messages();
        self.driver.poll_replies();
        stopped
    }

    /// Takes a few steps of the work that is no call, after the calls of this turn are answered.
    /// The steps are few because they delay the calls that arrive meanwhile.
    #[inline(always)]
    fn run_maintenance(&mut self) {
        if self.admission.is_waiting() {
            self.continue_admission();
        }
        if self.driver.now() >= self.sweep.due() {
            self.continue_sweep();
        }
        self.driver.end_accepting(&mut self.admission, self.previous_turn);
        self.driver.send_waiting();
    }

    #[cold]
    fn continue_admission(&mut self) {
        if let Some(ended) = self.admission.end_yield(self.driver.now()) {
            self.driver.end_yield(ended, &mut self.admission);
        }
        while let Some(id) = self.admission.next_accepted() {
            self.driver.accept(id);
        }
        while let Some(hangup) = self.admission.next_hangup() {
            self.driver.hang_up(hangup);
        }
        while let Some((id, input)) =
            self.admission.next_handshake(|id| self.driver.connections().find(id).is_some())
        {
            self.driver.resume_handshake(id, input);
        }
    }

    #[cold]
    fn continue_sweep(&mut self) {
        if self.sweep.begin_turn(self.driver.now()) {
            self.driver.begin_sweep(&mut self.admission, self.previous_turn);
        }
        while let Some(slot) = self.sweep.next_slot(self.driver.connections().slot_count()) {
            self.driver.inspect(slot, &mut self.sweep);
        }
        if let Some(protocols) = self.sweep.take_protocols() {
            self.counters.set_protocols(protocols);
        }
    }

    /// Begins a drain, or restricts the one in progress.
    #[inline(never)]
    fn begin_drain(&mut self, wanted: Drain, idle_time: Duration, timeout: Option<Duration>) {
        if wanted == Drain::No {
            return;
        }
        if let Some(drain) = &mut self.drain {
            return drain.restrict(wanted);
        }
        let context = self.driver.context_mut();
        let (delay, default) = (context.config.shutdown_delay, context.config.drain_timeout);
        let timeout = timeout.unwrap_or(default);
        // A successor accepts already, so health checks need not announce the drain.
        let delay = if wanted == Drain::Serving { Duration::ZERO } else { delay };
        self.drain = Some(DrainState::new(wanted, context.now, delay, idle_time, timeout));
        context.announce_drain();
        match delay.is_zero() {
            true => self.stop_accepting(),
            false => self.handler_mut().report_drain(DrainReport::Delayed(delay)),
        }
    }

    fn stop_accepting(&mut self) {
        self.abandoned = Some(0);
        let connections = self.driver.connections().len();
        self.handler_mut().report_drain(DrainReport::Began { connections });
        self.driver.context_mut().set_drain(Drain::Serving);
        self.driver.announce_drain();
        self.driver.shut_down_listeners();
        self.accept_last();
    }

    /// Accepts the connections that wait. Further ones are refused if no other worker accepts them.
    fn accept_last(&mut self) {
        let refuses = self.drain.as_ref().is_some_and(|it| it.mode() == Drain::Refusing);
        match refuses && self.driver.listeners().may_refuse() {
            true => self.driver.refuse_connections(),
            false => self.driver.accept_waiting(),
        }
    }

    /// Takes a step of the drain at the end of a turn; `true` if the drain is over.
    #[inline(never)]
    fn continue_drain(&mut self) -> bool {
        let now = self.driver.now();
        match self.drain.as_mut().map(|drain| drain.poll(now)) {
            Some(DrainStep::Abandon) => {
                self.driver.close_listeners();
                self.abandon_calls();
                return self.driver.close_sent();
            }
            Some(DrainStep::CloseSent) => return self.driver.close_sent(),
            Some(DrainStep::Expire) => {
                self.driver.close_all();
                return true;
            }
            Some(DrainStep::Begin) => self.stop_accepting(),
            Some(DrainStep::Accept) => self.accept_last(),
            Some(DrainStep::CloseListeners) => {
                let may_close = self.driver.listeners().may_refuse();
                self.accept_last();
                if may_close {
                    self.driver.close_listeners();
                }
            }
            Some(DrainStep::CloseIdle(drain, moment)) => {
                self.driver.context_mut().set_drain(drain);
                self.driver.close_listeners();
                self.driver.close_all_idle(moment);
            }
            Some(DrainStep::Nothing) | None => {}
        }
        let is_empty = self.driver.connections().len() == 0 && !self.admission.is_due();
        let has_ended = is_empty && self.driver.listeners().are_closed();
        let running = self.driver.context().dispatcher.run_limit().running();
        let is_idle = running == 0 && !self.driver.has_waiting_brokered();
        has_ended && is_idle && !self.handler_mut().is_busy()
    }

    #[cold]
    fn report_drained(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            self.handler_mut().report_drain(DrainReport::Ended { abandoned });
        }
    }

    /// Abandons all calls, and sends their error replies.
    fn abandon_calls(&mut self) {
        self.driver.context_mut().set_drain(Drain::Refusing);
        self.abandoned = Some(self.driver.context().dispatcher.run_limit().running());
        self.driver.context_mut().dispatcher.abandon();
        self.driver.poll_replies();
        self.driver.send_waiting();
    }
}

impl<E: Engine, H: Handler> AnyWorker<H> for Worker<E, H> {
    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.driver.listen(listener)
    }

    fn listen_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id> {
        self.driver.listen_datagrams(socket)
    }

    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.signals = Some(self.driver.engine_mut().watch(descriptor, READABLE)?);
        Ok(())
    }

    fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.unwatch_loop();
        self.event_loop = Some(self.driver.engine_mut().watch(descriptor, READABLE)?);
        Ok(())
    }

    fn unwatch_loop(&mut self) {
        self.rewatch = false;
        if let Some(watch) = self.event_loop.take() {
            self.driver.engine_mut().close(watch);
        }
    }

    fn turn(&mut self, deadline: Option<Instant>) -> io::Result<Turn> {
        self.take_turn(deadline)
    }

    // In one loop for all engines, addresses that another engine's turns need would be computed in
    // each turn, and kept on the stack.
    fn turns(&mut self) -> io::Result<Turn> {
        loop {
            let turn = self.take_turn(None)?;
            if self.handler_mut().ends_turns(&turn) {
                return Ok(turn);
            }
        }
    }

    fn shut_down(&mut self) -> io::Result<()> {
        self.turn_now()?;
        self.driver.close_all();
        self.turn_now()
    }

    fn submit(&mut self) -> io::Result<bool> {
        self.driver.engine_mut().submit()
    }

    fn prepare_to_wait(&mut self) -> bool {
        self.mailbox.prepare_to_sleep()
    }

    #[inline(always)]
    fn deadline(&self) -> Option<Instant> {
        let sweep = self.driver.needs_sweeps().then_some(self.sweep.due());
        let context = self.driver.context();
        let deadline = earlier(sweep, context.dispatcher.handler.deadline());
        let is_draining_or_admitting = self.drain.is_some() || self.admission.is_waiting();
        if is_draining_or_admitting
            || self.driver.has_waiters()
            || context.dispatcher.natives.are_used()
        {
            return self.earlier_deadline(deadline);
        }
        deadline
    }

    fn descriptor(&self) -> RawFd {
        self.driver.engine().poll_descriptor().map_or(-1, |it| it.as_raw_fd())
    }

    fn waker(&self) -> Waker {
        self.driver.engine().waker()
    }

    fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    fn publisher(&self) -> Arc<Publisher> {
        self.publisher.clone()
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn set_counters(&mut self, counters: Arc<Counters>) {
        self.publisher.set_counters(counters.clone());
        self.counters = counters;
    }

    #[inline(always)]
    fn handler_mut(&mut self) -> &mut H {
        &mut self.driver.context_mut().dispatcher.handler
    }
}

#[inline]
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
