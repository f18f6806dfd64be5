//! A server and a client without sockets: the test moves the bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_buffer::Payload;
use ucall_queue::{
    Action, Body, Channel, Encoding, Event, Failure, Identity, Inbox, Incoming, LinkKey, LogLevel,
    Options, Outbox, Outgoing, Receipt, Role, SessionManager, TakeResult, WakeFlag,
};

pub const SERVER: Identity = Identity([1; 16]);
pub const CLIENT: Identity = Identity([2; 16]);

/// One session manager, and the state of its driver.
pub struct Side {
    pub manager: SessionManager,
    pub outbox: Arc<Outbox>,
    pub inbox: Arc<Inbox>,
    pub link: Option<LinkKey>,
    pub dial_at: Option<Instant>,
    /// Bytes on their way to the other side.
    pub wire: VecDeque<u8>,
    /// Sessions whose thread is to be woken, because messages of theirs were taken or acknowledged.
    pub sessions_taken_from: Vec<u32>,
}

pub struct Pair {
    pub now: Instant,
    pub server: Side,
    pub client: Side,
    options: Options,
    incarnations: u128,
    /// Connections that the client has tried to make.
    pub dials: usize,
    /// Links have a channel for shared memory.
    is_shared: bool,
}

impl Side {
    pub fn new(identity: Identity, options: &Options, incarnation: u128, now: Instant) -> Self {
        let wake_flag = Arc::new(WakeFlag::new(|| {}));
        let mut secret = incarnation << 64;
        let random = move || {
            secret += 1;
            secret
        };
        let is_server = identity == SERVER;
        let manager =
            SessionManager::new(identity, is_server, options.clone(), wake_flag, random, now);
        let (outbox, inbox) = (manager.outbox.clone(), manager.inbox.clone());
        let wire = VecDeque::new();
        Self {
            manager,
            outbox,
            inbox,
            link: None,
            dial_at: None,
            wire,
            sessions_taken_from: Vec::new(),
        }
    }

    pub fn put(&self, data: &[u8]) -> Receipt {
        self.outbox.put(&[], &Outgoing::copied(Encoding::Bytes, data)).unwrap()
    }

    /// Puts a message of segments that are sent from where they lie.
    pub fn put_segments(&self, segments: &[Vec<u8>]) -> Receipt {
        let outgoing = Outgoing {
            encoding: Encoding::Serialized,
            copied: &[],
            parts: segments.iter().cloned().map(Into::into).collect(),
            segments: segments.iter().map(|segment| segment.len() as u64).collect(),
            names: &[],
        };
        self.outbox.put(&[], &outgoing).unwrap()
    }

    /// What `get` would return.
    pub fn take(&mut self) -> Option<Incoming> {
        match self.inbox.take(&[]) {
            TakeResult::Message(message) => {
                if message.credit.take(message.sequence, message.weight) {
                    self.sessions_taken_from.push(message.credit.index);
                }
                Some(message)
            }
            _ => None,
        }
    }

    /// What `message.ack()` does.
    pub fn acknowledge(&mut self, message: &Incoming) -> Result<(), Failure> {
        if message.credit.acknowledge(message.sequence)? {
            self.sessions_taken_from.push(message.credit.index);
        }
        Ok(())
    }

    /// Takes all messages and acknowledges each; returns their bytes.
    pub fn take_all(&mut self) -> Vec<Vec<u8>> {
        let received: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        for message in &received {
            // Of a session that is over it may come too late.
            let _ = self.acknowledge(message);
        }
        received.iter().map(bytes).collect()
    }

    /// A turn without waiting: writes to the wire and runs the manager's actions.
    pub fn turn(&mut self, now: Instant) {
        for index in self.sessions_taken_from.drain(..) {
            self.manager.handle_taken(index);
        }
        self.manager.handle_timeout(now);
        while let Some(key) = self.manager.poll_ready() {
            loop {
                let mut payload = Payload::new();
                self.manager.poll_output(key, &mut payload, now);
                if payload.is_empty() {
                    break;
                }
                if self.link == Some(key) {
                    payload.slices_from(0).for_each(|slice| self.wire.extend(slice));
                }
            }
        }
        while let Some(action) = self.manager.poll_action() {
            match action {
                Action::Dial(delay) => self.dial_at = Some(now + delay),
                Action::Close(key, _) if self.link == Some(key) => self.link = None,
                Action::Close(..) => {}
            }
        }
        self.manager.finish_turn();
    }

    /// Receives bytes from the other side's wire, into a target where the manager wants one.
    pub fn receive(&mut self, wire: &mut VecDeque<u8>, most: usize, now: Instant) {
        let Some(key) = self.link else { return wire.clear() };
        let count = wire.len().min(most);
        let bytes: Vec<u8> = wire.drain(..count).collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() && self.link.is_some() {
            if let Some(mut target) = self.manager.poll_target(key) {
                let count = target.write(rest);
                rest = &rest[count..];
                self.manager.return_target(key, target, now).unwrap();
            } else {
                // A target may be wanted behind any byte; a real socket asks after each read.
                let count = rest.len().min(40_000);
                self.manager.handle_received(key, &rest[..count], now).unwrap();
                rest = &rest[count..];
            }
        }
    }
}

impl Pair {
    pub fn new(options: Options) -> Self {
        let now = Instant::now();
        let server = Side::new(SERVER, &options, 1, now);
        let client = Side::new(CLIENT, &options, 2, now);
        Self { now, server, client, options, incarnations: 2, dials: 0, is_shared: false }
    }

    /// As [`Pair::new`], with shared memory.
    pub fn shared(options: Options) -> Self {
        Self { is_shared: true, ..Self::new(options) }
    }

    /// Makes a connection if the client wants one.
    pub fn connect(&mut self) {
        if self.client.dial_at.is_some_and(|at| at <= self.now) {
            self.client.dial_at = None;
            self.dials += 1;
            self.cut_server();
            let now = self.now;
            if self.server.manager.is_closed() {
                return self.client.manager.handle_dial_failed(true, now);
            }
            let (client, server) = if self.is_shared {
                let (ours, theirs) = Channel::pair().unwrap();
                let client = self.client.manager.open_shared_link(Role::Dialed, ours, now);
                (client, self.server.manager.open_shared_link(Role::Accepted, theirs, now))
            } else {
                let client = self.client.manager.open_link(Role::Dialed, now);
                (client, self.server.manager.open_link(Role::Accepted, now))
            };
            (self.client.link, self.server.link) = (Some(client), Some(server));
            self.client.wire.clear();
            self.server.wire.clear();
        }
    }

    /// One turn of each side, moving at most this many bytes each way.
    pub fn turn(&mut self, most: usize) {
        self.now += Duration::from_millis(1);
        self.connect();
        self.client.turn(self.now);
        self.server.turn(self.now);
        self.server.receive(&mut self.client.wire, most, self.now);
        self.client.receive(&mut self.server.wire, most, self.now);
        self.client.turn(self.now);
        self.server.turn(self.now);
        // A side that has given the link up has closed it, behind all that it wrote.
        if self.server.link.is_none() && self.server.wire.is_empty() {
            self.cut_client();
        }
        if self.client.link.is_none() && self.client.wire.is_empty() {
            self.cut_server();
        }
    }

    /// Runs until no bytes move any more.
    pub fn run(&mut self) {
        for _ in 0..5000 {
            self.turn(usize::MAX);
        }
    }

    /// Runs until the condition holds; fails if it never does.
    pub fn run_until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        for _ in 0..20_000 {
            if condition(self) {
                return;
            }
            self.turn(usize::MAX);
        }
        panic!("it never came to that");
    }

    /// Breaks the link, and loses the bytes in flight.
    pub fn cut(&mut self) {
        self.cut_client();
        self.cut_server();
    }

    fn cut_client(&mut self) {
        if let Some(key) = self.client.link.take() {
            self.client.manager.handle_link_closed(key, self.now);
        }
        self.server.wire.clear();
    }

    fn cut_server(&mut self) {
        if let Some(key) = self.server.link.take() {
            self.server.manager.handle_link_closed(key, self.now);
        }
        self.client.wire.clear();
    }

    /// A process is killed, and started again with the same id.
    pub fn kill(&mut self, identity: Identity) {
        self.cut();
        self.incarnations += 1;
        let side = Side::new(identity, &self.options, self.incarnations, self.now);
        if identity == SERVER {
            self.server = side;
        } else {
            self.client = side;
        }
    }
}

/// Whether an event is the start or end of a session.
pub fn is_of_session(event: &Event) -> bool {
    matches!(event, Event::Started(_) | Event::Ended(_))
}

/// The next warning in the log.
pub fn warning(manager: &SessionManager) -> String {
    loop {
        if let Some((LogLevel::Warning, line)) = manager.log_queue.next_line() {
            return line;
        }
    }
}

/// The bytes of a message of one piece.
pub fn bytes(message: &Incoming) -> Vec<u8> {
    match &message.body {
        Body::One(segment) => segment.bytes().into_owned(),
        Body::Many(segments) => {
            segments.iter().flat_map(|segment| segment.bytes().into_owned()).collect()
        }
    }
}
