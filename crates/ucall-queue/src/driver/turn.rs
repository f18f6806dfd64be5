//! The turn of a communicator's thread.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::{Payload, Target};
use ucall_engine::{Arrival, Completion, Engine, Id, Readiness, SendState};

use super::Thread;
use super::dial::Dialer;
use super::endpoint::{Connection, Listener};
use super::foreign::Foreign;
use super::handle::{Command, Commands};
use crate::bell::Doorbell;
use crate::hub::{Action, Hub, LinkKey, Role};
use crate::inbox::Inbox;

/// How long a socket whose link is over is kept for the peer to close, so that a reset does not
/// eat what was sent last.
const LINGER: Duration = Duration::from_secs(1);
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
    /// When to try to accept again.
    accept_at: Option<Instant>,
    dialer: Dialer,
    sockets: HashMap<Id, Socket>,
    carriers: HashMap<LinkKey, Carrier>,
    spare: Payload,
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
    /// Closed at this moment at the latest.
    lingers_until: Option<Instant>,
}

impl<E: Engine> Driver<E> {
    pub(super) fn new(mut engine: E, thread: Thread) -> io::Result<Self> {
        let Thread { hub, doorbell, commands, listener, endpoint, .. } = thread;
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
            accept_at: None,
            dialer: Dialer::new(endpoint),
            sockets: HashMap::new(),
            carriers: HashMap::new(),
            spare: Payload::new(),
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
            self.hub.settle();
            if self.hub.is_over() {
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
        let lingering = self.sockets.values().filter_map(|socket| socket.lingers_until).min();
        let dialing = self.dialer.deadline();
        let deadlines = [self.hub.poll_timeout(), dialing, lingering, self.accept_at];
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
                Command::Abort => self.hub.abort(now),
                Command::Taken(index) => self.hub.look_at(index),
                Command::Open(role, link) => {
                    let key = self.hub.open_link(role, now);
                    // A link is opened once.
                    let _ = link.key.set(key);
                    self.carriers.insert(key, Carrier::Foreign(link));
                }
                Command::Bytes(link, bytes) => {
                    if let Some(&key) = link.key.get() {
                        // An error has closed the link, which its carrier will see.
                        let _ = self.hub.receive(key, &bytes, now);
                    }
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
            match self.carriers.get(&key) {
                Some(&Carrier::Socket(socket)) => self.flush_socket(key, socket, now),
                Some(Carrier::Foreign(link)) => {
                    let link = link.clone();
                    self.flush_foreign(key, &link, now);
                }
                None => {}
            }
        }
    }

    fn flush_socket(&mut self, key: LinkKey, socket: Id, now: Instant) {
        let Some(held) = self.sockets.get_mut(&socket) else { return };
        while !held.is_sending {
            let mut payload = std::mem::take(&mut self.spare);
            self.hub.poll_output(key, &mut payload, now);
            if payload.is_empty() {
                self.spare = payload;
                return;
            }
            match self.engine.send(socket, payload) {
                SendState::Done(mut payload) => {
                    payload.clear();
                    self.spare = payload;
                }
                SendState::Pending => held.is_sending = true,
            }
        }
    }

    fn flush_foreign(&mut self, key: LinkKey, link: &Foreign, now: Instant) {
        while link.has_room() {
            let mut payload = Payload::new();
            self.hub.poll_output(key, &mut payload, now);
            if payload.is_empty() {
                return;
            }
            link.push(&payload);
        }
    }

    /// Does what the hub asks for.
    fn act(&mut self, now: Instant) {
        while let Some(action) = self.hub.poll_action() {
            match action {
                Action::Dial(delay) => self.dialer.schedule(now + delay),
                Action::Close(key, after_output) => self.close(key, after_output, now),
            }
        }
    }

    fn close(&mut self, key: LinkKey, after_output: bool, now: Instant) {
        match self.carriers.remove(&key) {
            Some(Carrier::Socket(socket)) => {
                if let Some(held) = self.sockets.get_mut(&socket).filter(|_| after_output) {
                    held.key = None;
                    held.lingers_until = Some(now + LINGER);
                    self.engine.shutdown(socket);
                } else {
                    self.sockets.remove(&socket);
                    self.engine.close(socket);
                }
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
                Completion::Sent { socket, mut payload, result } => {
                    // Its parts belong to others, who wait for them.
                    payload.clear();
                    self.spare = payload;
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

    fn receive(&mut self, arrival: Arrival, now: Instant) {
        let socket = arrival.socket;
        let key = self.sockets.get(&socket).map(|held| held.key);
        let is_over = match (self.engine.receive(arrival), key) {
            (Ok([]), _) => true,
            // What still comes on a link that is over is nobody's.
            (Ok(_), Some(None) | None) => false,
            (Ok(bytes), Some(Some(key))) => {
                // An error has closed the link.
                let _ = self.hub.receive(key, bytes, now);
                self.offer_target(key, socket);
                false
            }
            (Err(error), _) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if is_over {
            self.drop_socket(socket, now);
        }
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

    fn sent(&mut self, socket: Id, result: io::Result<()>, now: Instant) {
        let Some(held) = self.sockets.get_mut(&socket) else { return };
        held.is_sending = false;
        match (result, held.key) {
            (Ok(()), Some(key)) => self.hub.output_sent(key),
            (Ok(()), None) => {}
            (Err(_), _) => self.drop_socket(socket, now),
        }
    }

    /// A socket has broken, or the peer has closed it.
    fn drop_socket(&mut self, socket: Id, now: Instant) {
        if let Some(held) = self.sockets.remove(&socket) {
            self.engine.close(socket);
            if let Some(key) = held.key {
                self.carriers.remove(&key);
                self.hub.link_closed(key, now);
            }
        }
    }

    fn connected(&mut self, made: io::Result<Connection>, role: Role, now: Instant) {
        match made.and_then(|made| self.open_link(made, role, now)) {
            Ok((socket, key)) => {
                self.carriers.insert(key, Carrier::Socket(socket));
                let key = Some(key);
                let held = Socket { key, is_sending: false, filled_bytes: 0, lingers_until: None };
                self.sockets.insert(socket, held);
            }
            Err(error) if role == Role::Dialed => {
                let refusals = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
                self.hub.dial_failed(refusals.contains(&error.kind()), now);
            }
            Err(_) => {}
        }
    }

    fn open_link(
        &mut self,
        made: Connection,
        role: Role,
        now: Instant,
    ) -> io::Result<(Id, LinkKey)> {
        let socket = self.engine.adopt(made.socket)?;
        #[cfg(target_os = "linux")]
        if let Some(channel) = made.channel {
            return Ok((socket, self.hub.open_shared_link(role, channel, now)));
        }
        Ok((socket, self.hub.open_link(role, now)))
    }

    fn accept(&mut self, now: Instant) {
        while let Some((watch, listener)) = &self.listener {
            match listener.accept() {
                Ok(socket) => {
                    let greeted = listener.greet(socket);
                    self.connected(greeted, Role::Accepted, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // What cannot be watched any more shows itself at the next wait.
                    let _ = self.engine.rewatch(*watch, READABLE);
                    return;
                }
                // No descriptors, as a rule: who waits would be told of again and again.
                Err(_) => return self.accept_at = Some(now + ACCEPT_PAUSE),
            }
        }
    }

    fn look_at_time(&mut self, now: Instant) {
        if self.hub.timeout_is_due(now) {
            self.look_at_targets(now);
            self.hub.handle_timeout(now);
        }
        if let Err(error) = self.dialer.look(&mut self.engine, now) {
            self.connected(Err(error), Role::Dialed, now);
        }
        if self.accept_at.take_if(|at| now >= *at).is_some() {
            self.accept(now);
        }
        let is_late = |held: &Socket| held.lingers_until.is_some_and(|until| now >= until);
        let late = self.sockets.iter().filter(|(_, held)| is_late(held));
        for socket in late.map(|(socket, _)| *socket).collect::<Vec<_>>() {
            self.drop_socket(socket, now);
        }
    }
}
