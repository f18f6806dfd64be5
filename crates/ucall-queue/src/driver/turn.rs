//! The turn of a communicator's thread.

mod broker_connection;
mod lingering;
mod links;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::{Payload, Target};
use ucall_engine::{Completion, Engine, Id, Mailbox, Readiness};

use super::DriverParts;
use super::dialer::Dialer;
use super::endpoint::Listener;
use super::external_transport::ExternalTransport;
use super::handle::Command;
use super::inherited::{InheritedSockets, SocketGuard};
use super::secure::{Secure, Security};
use crate::session_manager::{Action, LinkKey, Role, SessionManager};
pub(super) use broker_connection::BrokerConnection;
use lingering::Lingering;

/// How long nobody is accepted after that was not possible.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const READABLE: Readiness = Readiness { readable: true, writable: false };

/// A hub and what carries its links.
pub(super) struct Driver<E> {
    engine: E,
    manager: SessionManager,
    mailbox: Mailbox<Command>,
    listener: Option<(Id, Listener)>,
    /// Past it the oldest stranger makes room; without strangers, newcomers wait.
    connections_max: usize,
    inherited: Arc<InheritedSockets>,
    _listening: Option<SocketGuard>,
    _ring_guard: Option<SocketGuard>,
    /// When to try to accept again.
    accept_at: Option<Instant>,
    dialer: Dialer,
    security: Option<Box<dyn Security>>,
    sockets: HashMap<Id, Socket>,
    lingering: Lingering,
    transports: HashMap<LinkKey, LinkTransport>,
    cached_payload: Payload,
    broker_connection: Option<BrokerConnection>,
    completions: Vec<Completion>,
    command_batch: Vec<Command>,
}

enum LinkTransport {
    Socket(Id),
    External(Arc<ExternalTransport>),
}

struct Socket {
    /// The link, until that is over.
    key: Option<LinkKey>,
    is_sending: bool,
    /// How far its target was when it was last looked at.
    filled_bytes: usize,
    /// Something has come.
    has_received: bool,
    /// So much of what a client with shared memory says first.
    preamble_bytes: usize,
    _guard: SocketGuard,
    secure: Option<Box<Secure>>,
}

impl<E: Engine> Driver<E> {
    pub(super) fn new(mut engine: E, thread: DriverParts) -> io::Result<Self> {
        let DriverParts { manager, mailbox, listener, endpoint, security, .. } = thread;
        let (inherited, broker_connection) = (thread.inherited, thread.broker_connection);
        let ring = engine.descriptor().map(|ring| inherited.register(ring));
        let listening = listener.as_ref().map(|listener| inherited.register(listener.descriptor()));
        let connections_max = listener.as_ref().map_or(usize::MAX, Listener::connections_max);
        let listener = match listener {
            Some(listener) => Some((engine.watch(listener.descriptor(), READABLE)?, listener)),
            None => None,
        };
        Ok(Self {
            engine,
            manager,
            mailbox,
            listener,
            connections_max,
            inherited,
            _listening: listening,
            _ring_guard: ring,
            accept_at: None,
            dialer: Dialer::new(endpoint),
            security,
            sockets: HashMap::new(),
            lingering: Lingering::default(),
            transports: HashMap::new(),
            cached_payload: Payload::new(),
            broker_connection,
            completions: Vec::new(),
            command_batch: Vec::new(),
        })
    }

    /// Turn after turn, until everything is over.
    pub(super) fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.run_actions(now);
            self.flush(now);
            self.run_actions(now);
            // Links that have ended say so.
            self.flush_broker(now);
            self.manager.finish_turn();
            if self.manager.is_closed() && self.drain_broker(now) {
                self.stop_listening();
                if self.sockets.is_empty() {
                    break;
                }
            }
            if self.wait(now).is_err() {
                // The engine itself is broken; nothing can be carried any more.
                self.manager.abort(now);
                self.manager.finish_turn();
                break;
            }
            self.mailbox.clear_sleeping();
            let now = Instant::now();
            self.run_commands(now);
            self.handle_completions(now);
            self.handle_timeouts(now);
        }
        self.stop_listening();
    }

    /// Leaves the address to others, and says so.
    fn stop_listening(&mut self) {
        if self.manager.notifier.is_finished() {
            return;
        }
        self.dialer.stop(&mut self.engine);
        if let Some((watch, listener)) = self.listener.take() {
            self.engine.close(watch);
            // A ring lets go of a descriptor when it has heard that the watch is over. An
            // error shows itself at the next wait.
            let _ = self.engine.wait(Some(Instant::now()), &mut self.completions);
            drop(listener);
        }
        self.manager.log_queue.finish();
        self.manager.notifier.finish();
    }

    fn wait(&mut self, now: Instant) -> io::Result<()> {
        let (dialing, lingering) = (self.dialer.deadline(), self.lingering.deadline());
        let broker_connection =
            self.broker_connection.as_ref().and_then(BrokerConnection::poll_timeout);
        let deadlines =
            [self.manager.poll_timeout(), dialing, lingering, self.accept_at, broker_connection];
        let may_sleep = self.mailbox.prepare_to_sleep();
        let deadline = match may_sleep && !self.manager.has_ready() {
            true => deadlines.into_iter().flatten().min(),
            false => Some(now),
        };
        self.engine.wait(deadline, &mut self.completions)
    }

    /// Does what other threads asked for.
    fn run_commands(&mut self, now: Instant) {
        let mut command_batch = std::mem::take(&mut self.command_batch);
        self.mailbox.take(&mut command_batch);
        for command in command_batch.drain(..) {
            match command {
                Command::Close => self.manager.close(now),
                Command::Abort => {
                    self.manager.abort(now);
                    self.abandon_broker();
                }
                Command::Taken(index) => self.manager.handle_taken(index),
                Command::Open(role, link) => {
                    let key = self.manager.open_link(role, now);
                    if let Some(name) = &link.certificate_name {
                        self.manager.set_certificate_name(key, name);
                    }
                    // A link is opened once.
                    let _ = link.key.set(key);
                    self.transports.insert(key, LinkTransport::External(link));
                }
                Command::Bytes(link, bytes) => {
                    if let Some(&key) = link.key.get() {
                        // An error has closed the link, which its carrier will see.
                        let _ = self.manager.handle_received(key, &bytes, now);
                    }
                    link.consume_input(bytes.len());
                }
                Command::Room(link) => {
                    if let Some(&key) = link.key.get() {
                        self.manager.handle_output_sent(key);
                    }
                }
                Command::LinkClosed(link) => {
                    if let Some(&key) = link.key.get() {
                        self.transports.remove(&key);
                        self.manager.handle_link_closed(key, now);
                        link.end();
                    }
                }
            }
        }
        self.command_batch = command_batch;
    }

    /// Sends what links have to send.
    fn flush(&mut self, now: Instant) {
        while let Some(key) = self.manager.poll_ready() {
            if let Some(broker_connection) = &mut self.broker_connection {
                broker_connection.broker.mark_ready(key);
                continue;
            }
            match self.transports.get(&key) {
                Some(&LinkTransport::Socket(socket)) => self.flush_socket(socket, now),
                Some(LinkTransport::External(link)) => {
                    let link = link.clone();
                    self.flush_external(key, &link, now);
                }
                None => {}
            }
        }
        self.flush_broker(now);
    }

    fn flush_external(&mut self, key: LinkKey, link: &ExternalTransport, now: Instant) {
        while link.has_room() {
            let mut payload = Payload::new();
            self.manager.poll_output(key, &mut payload, now);
            if payload.is_empty() {
                return;
            }
            link.push(&mut payload);
        }
    }

    /// Does what the hub asks for.
    fn run_actions(&mut self, now: Instant) {
        while let Some(action) = self.manager.poll_action() {
            match action {
                Action::Dial(delay) => match &mut self.broker_connection {
                    Some(broker_connection) => broker_connection.broker.dial_at(now + delay),
                    None => self.dialer.schedule(now + delay),
                },
                Action::Close(key, after_output) => self.close(key, after_output, now),
            }
        }
    }

    fn close(&mut self, key: LinkKey, after_output: bool, now: Instant) {
        if let Some(broker_connection) = &mut self.broker_connection {
            return broker_connection.broker.close_link(key, after_output, now);
        }
        match self.transports.remove(&key) {
            Some(LinkTransport::Socket(socket)) if after_output => self.linger(socket, now),
            Some(LinkTransport::Socket(socket)) => {
                self.sockets.remove(&socket);
                self.engine.close(socket);
            }
            Some(LinkTransport::External(link)) => link.end(),
            None => {}
        }
    }

    fn handle_completions(&mut self, now: Instant) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            match completion {
                Completion::Received(arrival) => self.handle_arrival(arrival, now),
                Completion::Filled { socket, target, result } => {
                    self.handle_filled(socket, target, result, now);
                }
                Completion::Sent { socket, payload, result } => {
                    self.cached_payload = links::cleared(payload);
                    self.handle_sent(socket, result, now);
                }
                Completion::Ready { watch, .. } if self.dialer.is_waiting_for(watch) => {
                    if let Some(result) = self.dialer.handle_ready(&mut self.engine).transpose() {
                        self.handle_connected(result, Role::Dialed, now);
                    }
                }
                Completion::Ready { .. } => self.accept(now),
                _ => {}
            }
        }
        self.completions = completions;
    }

    fn handle_filled(&mut self, socket: Id, target: Target, result: io::Result<()>, now: Instant) {
        let Some(key) = self.sockets.get(&socket).and_then(|socket_state| socket_state.key) else {
            return;
        };
        if result.is_err() {
            return self.close_socket(socket, now);
        }
        // An error has closed the link.
        let _ = self.manager.return_target(key, target, now);
        self.offer_target(key, socket);
    }

    /// Tells the hub of what came into targets that are not full yet: who sends slowly is alive.
    fn report_target_progress(&mut self, now: Instant) {
        for (&socket, socket_state) in &mut self.sockets {
            let handle_filled = self.engine.filled_bytes(socket);
            if std::mem::replace(&mut socket_state.filled_bytes, handle_filled) < handle_filled
                && let Some(key) = socket_state.key
            {
                self.manager.note_received(key, now);
            }
        }
    }

    fn offer_target(&mut self, key: LinkKey, socket: Id) {
        if let Some(target) = self.manager.poll_target(key) {
            self.engine.receive_into(socket, target);
        }
    }

    fn accept(&mut self, now: Instant) {
        while let Some((watch, listener)) = &self.listener {
            let is_full = self.sockets.len() >= self.connections_max;
            if is_full && !self.manager.has_strangers() {
                return self.accept_at = Some(now + ACCEPT_PAUSE);
            }
            match listener.accept() {
                Ok(socket) => {
                    let connection = listener.send_preamble(socket);
                    self.handle_connected(connection, Role::Accepted, now);
                    if is_full {
                        self.manager.evict_oldest_unidentified(now);
                        // Its descriptor is free in the next turn.
                        return self.accept_at = Some(now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // What cannot be watched any more shows itself at the next wait.
                    let _ = self.engine.rewatch(*watch, READABLE);
                    return;
                }
                // No descriptors, as a rule: who waits would be told of again and again.
                Err(_) => {
                    self.manager.evict_oldest_unidentified(now);
                    return self.accept_at = Some(now + ACCEPT_PAUSE);
                }
            }
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        if self.manager.timeout_is_due(now) {
            self.report_target_progress(now);
            // An engine may not have been told that one is gone.
            for socket in self.sockets.keys() {
                self.engine.check(*socket);
            }
            self.manager.handle_timeout(now);
        }
        self.handle_broker_timeout(now);
        if let Err(error) = self.dialer.poll(&mut self.engine, now) {
            self.handle_connected(Err(error), Role::Dialed, now);
        }
        if self.accept_at.take_if(|at| now >= *at).is_some() {
            self.accept(now);
        }
        while let Some(socket) = self.lingering.next_expired(now) {
            self.close_socket(socket, now);
        }
    }
}
