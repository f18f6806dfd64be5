//! The turn of a communicator's thread.

mod brokered;
mod lingering;
mod links;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::{Payload, Target};
use ucall_engine::{Completion, Engine, Id, Readiness};

use super::Thread;
use super::dial::Dialer;
use super::endpoint::Listener;
use super::foreign::Foreign;
use super::handle::{Command, Commands};
use super::inherited::{Inherited, Noted};
use super::secure::{Secure, Security};
use crate::bell::Doorbell;
use crate::hub::{Action, Hub, LinkKey, Role};
use crate::inbox::Inbox;
pub(super) use brokered::Brokered;
use lingering::Lingering;

/// How long nobody is accepted after that was not possible.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const READABLE: Readiness = Readiness { readable: true, writable: false };

/// A hub and what carries its links.
pub(super) struct Driver<E> {
    engine: E,
    hub: Hub,
    doorbell: Arc<Doorbell>,
    commands: Arc<Commands>,
    inbox: Arc<Inbox>,
    listener: Option<(Id, Listener)>,
    /// Past it the oldest stranger makes room; without strangers, newcomers wait.
    connections_max: usize,
    inherited: Arc<Inherited>,
    _listening: Option<Noted>,
    _ring: Option<Noted>,
    /// When to try to accept again.
    accept_at: Option<Instant>,
    dialer: Dialer,
    security: Option<Box<dyn Security>>,
    sockets: HashMap<Id, Socket>,
    lingering: Lingering,
    carriers: HashMap<LinkKey, Carrier>,
    spare: Payload,
    brokered: Option<Brokered>,
    completions: Vec<Completion>,
    asked: Vec<Command>,
}

enum Carrier {
    Socket(Id),
    Foreign(Arc<Foreign>),
}

struct Socket {
    /// The link, until that is over.
    key: Option<LinkKey>,
    is_sending: bool,
    /// How far its target was when it was last looked at.
    filled_bytes: usize,
    /// Something has come.
    is_heard: bool,
    /// So much of what a client with shared memory says first.
    knocked_bytes: usize,
    _noted: Noted,
    secure: Option<Box<Secure>>,
}

impl<E: Engine> Driver<E> {
    pub(super) fn new(mut engine: E, thread: Thread) -> io::Result<Self> {
        let Thread { hub, doorbell, commands, listener, endpoint, security, .. } = thread;
        let (inherited, brokered) = (thread.inherited, thread.brokered);
        let ring = engine.descriptor().map(|ring| inherited.note(ring));
        let listening = listener.as_ref().map(|listener| inherited.note(listener.descriptor()));
        let connections_max = listener.as_ref().map_or(usize::MAX, Listener::connections_max);
        let listener = match listener {
            Some(listener) => Some((engine.watch(listener.descriptor(), READABLE)?, listener)),
            None => None,
        };
        Ok(Self {
            engine,
            inbox: hub.inbox(),
            hub,
            doorbell,
            commands,
            listener,
            connections_max,
            inherited,
            _listening: listening,
            _ring: ring,
            accept_at: None,
            dialer: Dialer::new(endpoint),
            security,
            sockets: HashMap::new(),
            lingering: Lingering::default(),
            carriers: HashMap::new(),
            spare: Payload::new(),
            brokered,
            completions: Vec::new(),
            asked: Vec::new(),
        })
    }

    /// Turn after turn, until everything is over.
    pub(super) fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.act(now);
            self.flush(now);
            self.act(now);
            // Links that have ended say so.
            self.flush_broker(now);
            self.hub.settle();
            if self.hub.is_over() && self.leave_broker(now) {
                self.stop_listening();
                if self.sockets.is_empty() {
                    break;
                }
            }
            if self.wait(now).is_err() {
                // The engine itself is broken; nothing can be carried any more.
                self.hub.abort(now);
                self.hub.settle();
                break;
            }
            self.doorbell.wake_up();
            let now = Instant::now();
            self.obey(now);
            self.take_completions(now);
            self.look_at_time(now);
        }
        self.stop_listening();
    }

    /// Leaves the address to others, and says so.
    fn stop_listening(&mut self) {
        if self.inbox.is_finished() {
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
        self.inbox.finish();
    }

    fn wait(&mut self, now: Instant) -> io::Result<()> {
        let (dialing, lingering) = (self.dialer.deadline(), self.lingering.deadline());
        let brokered = self.brokered.as_ref().and_then(Brokered::poll_timeout);
        let deadlines = [self.hub.poll_timeout(), dialing, lingering, self.accept_at, brokered];
        let may_sleep = self.doorbell.fall_asleep();
        let deadline = match may_sleep && !self.hub.has_ready() {
            true => deadlines.into_iter().flatten().min(),
            false => Some(now),
        };
        self.engine.wait(deadline, &mut self.completions)
    }

    /// Does what other threads asked for.
    fn obey(&mut self, now: Instant) {
        let mut asked = std::mem::take(&mut self.asked);
        self.commands.take(&mut asked);
        for command in asked.drain(..) {
            match command {
                Command::Close => self.hub.close(now),
                Command::Abort => {
                    self.hub.abort(now);
                    self.abandon_broker();
                }
                Command::Taken(index) => self.hub.look_at(index),
                Command::Open(role, link) => {
                    let key = self.hub.open_link(role, now);
                    if let Some(name) = &link.certified {
                        self.hub.certify_link(key, name);
                    }
                    // A link is opened once.
                    let _ = link.key.set(key);
                    self.carriers.insert(key, Carrier::Foreign(link));
                }
                Command::Bytes(link, bytes) => {
                    if let Some(&key) = link.key.get() {
                        // An error has closed the link, which its carrier will see.
                        let _ = self.hub.receive(key, &bytes, now);
                    }
                    link.take_in(bytes.len());
                }
                Command::Room(link) => {
                    if let Some(&key) = link.key.get() {
                        self.hub.output_sent(key);
                    }
                }
                Command::Broken(link) => {
                    if let Some(&key) = link.key.get() {
                        self.carriers.remove(&key);
                        self.hub.link_closed(key, now);
                        link.end();
                    }
                }
            }
        }
        self.asked = asked;
    }

    /// Sends what links have to send.
    fn flush(&mut self, now: Instant) {
        while let Some(key) = self.hub.next_ready() {
            if let Some(brokered) = &mut self.brokered {
                brokered.broker.enlist(key);
                continue;
            }
            match self.carriers.get(&key) {
                Some(&Carrier::Socket(socket)) => self.flush_socket(socket, now),
                Some(Carrier::Foreign(link)) => {
                    let link = link.clone();
                    self.flush_foreign(key, &link, now);
                }
                None => {}
            }
        }
        self.flush_broker(now);
    }

    fn flush_foreign(&mut self, key: LinkKey, link: &Foreign, now: Instant) {
        while link.has_room() {
            let mut payload = Payload::new();
            self.hub.poll_output(key, &mut payload, now);
            if payload.is_empty() {
                return;
            }
            link.push(&mut payload);
        }
    }

    /// Does what the hub asks for.
    fn act(&mut self, now: Instant) {
        while let Some(action) = self.hub.poll_action() {
            match action {
                Action::Dial(delay) => match &mut self.brokered {
                    Some(brokered) => brokered.broker.dial_at(now + delay),
                    None => self.dialer.schedule(now + delay),
                },
                Action::Close(key, after_output) => self.close(key, after_output, now),
            }
        }
    }

    fn close(&mut self, key: LinkKey, after_output: bool, now: Instant) {
        if let Some(brokered) = &mut self.brokered {
            return brokered.broker.close_link(key, after_output, now);
        }
        match self.carriers.remove(&key) {
            Some(Carrier::Socket(socket)) if after_output => self.linger(socket, now),
            Some(Carrier::Socket(socket)) => {
                self.sockets.remove(&socket);
                self.engine.close(socket);
            }
            Some(Carrier::Foreign(link)) => link.end(),
            None => {}
        }
    }

    fn take_completions(&mut self, now: Instant) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            match completion {
                Completion::Received(arrival) => self.receive(arrival, now),
                Completion::Filled { socket, target, result } => {
                    self.filled(socket, target, result, now);
                }
                Completion::Sent { socket, payload, result } => {
                    self.spare = links::emptied(payload);
                    self.sent(socket, result, now);
                }
                Completion::Ready { watch, .. } if self.dialer.is_waiting_for(watch) => {
                    if let Some(made) = self.dialer.go_on(&mut self.engine).transpose() {
                        self.connected(made, Role::Dialed, now);
                    }
                }
                Completion::Ready { .. } => self.accept(now),
                _ => {}
            }
        }
        self.completions = completions;
    }

    fn filled(&mut self, socket: Id, target: Target, result: io::Result<()>, now: Instant) {
        let Some(key) = self.sockets.get(&socket).and_then(|held| held.key) else { return };
        if result.is_err() {
            return self.drop_socket(socket, now);
        }
        // An error has closed the link.
        let _ = self.hub.return_target(key, target, now);
        self.offer_target(key, socket);
    }

    /// Tells the hub of what came into targets that are not full yet: who sends slowly is alive.
    fn look_at_targets(&mut self, now: Instant) {
        for (&socket, held) in &mut self.sockets {
            let filled = self.engine.filled_bytes(socket);
            if std::mem::replace(&mut held.filled_bytes, filled) < filled
                && let Some(key) = held.key
            {
                self.hub.heard(key, now);
            }
        }
    }

    fn offer_target(&mut self, key: LinkKey, socket: Id) {
        if let Some(target) = self.hub.poll_target(key) {
            self.engine.receive_into(socket, target);
        }
    }

    fn accept(&mut self, now: Instant) {
        while let Some((watch, listener)) = &self.listener {
            let is_full = self.sockets.len() >= self.connections_max;
            if is_full && !self.hub.has_strangers() {
                return self.accept_at = Some(now + ACCEPT_PAUSE);
            }
            match listener.accept() {
                Ok(socket) => {
                    let greeted = listener.greet(socket);
                    self.connected(greeted, Role::Accepted, now);
                    if is_full {
                        self.hub.close_oldest_stranger(now);
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
                    self.hub.close_oldest_stranger(now);
                    return self.accept_at = Some(now + ACCEPT_PAUSE);
                }
            }
        }
    }

    fn look_at_time(&mut self, now: Instant) {
        if self.hub.timeout_is_due(now) {
            self.look_at_targets(now);
            // An engine may not have been told that one is gone.
            for socket in self.sockets.keys() {
                self.engine.check(*socket);
            }
            self.hub.handle_timeout(now);
        }
        self.look_at_broker(now);
        if let Err(error) = self.dialer.look(&mut self.engine, now) {
            self.connected(Err(error), Role::Dialed, now);
        }
        if self.accept_at.take_if(|at| now >= *at).is_some() {
            self.accept(now);
        }
        while let Some(socket) = self.lingering.next_late(now) {
            self.drop_socket(socket, now);
        }
    }
}
