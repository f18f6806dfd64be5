//! What the fake engine and the test's network share.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ucall_buffer::{Payload, Target};

use super::connection::{Connection, Inbound, ReportState, SendMode};
use crate::slab::Slab;
use crate::{Arrival, Completion, EngineClock, Id, Readiness, SendState};

pub(super) struct FakeState {
    pub(super) nodes: Slab<Node>,
    /// All connections, closed ones included, so that a peer can still be inspected.
    pub(super) connections: Vec<Connection>,
    pub(super) woken: Arc<AtomicBool>,
    pub(super) clock: EngineClock,
    pub(super) deadline: Option<Instant>,
    pub(super) waits: u64,
    pub(super) accept_failure: Option<io::ErrorKind>,
    pub(super) send_mode: SendMode,
    pub(super) delay: usize,
    pub(super) reversed: bool,
    /// Completions to be reported as they are.
    deferred: Vec<Completion>,
    /// Delayed completions, with the number of the wait that reports them.
    delayed: VecDeque<(u64, Completion)>,
}

pub(super) enum Node {
    Listener(Listener),
    /// The index of its connection.
    Stream(usize),
    Datagrams(Datagrams),
    Watch(Watch),
}

#[derive(Default)]
pub(super) struct Listener {
    pub(super) backlog: VecDeque<usize>,
    paused: bool,
}

#[derive(Default)]
pub(super) struct Datagrams {
    pub(super) inbox: VecDeque<(Vec<u8>, SocketAddr)>,
    pub(super) sent: Vec<(Vec<u8>, SocketAddr)>,
    paused: bool,
    arrival: ReportState,
}

#[derive(Default)]
pub(super) struct Watch {
    pub(super) armed: Option<Readiness>,
    pub(super) readiness: Readiness,
}

impl Node {
    pub(super) fn listener() -> Self {
        Node::Listener(Listener::default())
    }

    pub(super) fn datagrams() -> Self {
        Node::Datagrams(Datagrams::default())
    }

    pub(super) fn watch(interest: Readiness) -> Self {
        Node::Watch(Watch { armed: Some(interest), readiness: Readiness::default() })
    }
}

impl FakeState {
    pub(super) fn new() -> Self {
        Self {
            nodes: Slab::new(),
            connections: Vec::new(),
            woken: Arc::default(),
            clock: EngineClock::stopped(),
            deadline: None,
            waits: 0,
            accept_failure: None,
            send_mode: SendMode::AtOnce,
            delay: 0,
            reversed: false,
            deferred: Vec::new(),
            delayed: VecDeque::new(),
        }
    }

    /// The payloads and targets that the engine has not returned yet.
    pub(super) fn outstanding(&self) -> usize {
        let returns = |completion: &&Completion| {
            matches!(completion, Completion::Sent { .. } | Completion::Filled { .. })
        };
        let late = self.delayed.iter().map(|(_, completion)| completion);
        self.connections.iter().map(Connection::outstanding).sum::<usize>()
            + self.deferred.iter().chain(late).filter(returns).count()
    }

    pub(super) fn connect(&mut self, socket: Option<Id>) -> usize {
        self.connections.push(Connection::new(socket, self.send_mode));
        self.connections.len() - 1
    }

    pub(super) fn adopt(&mut self) -> Id {
        let connection = self.connect(None);
        self.accept(connection)
    }

    fn accept(&mut self, connection: usize) -> Id {
        let socket = self.nodes.insert(Node::Stream(connection));
        self.connections[connection].socket = Some(socket);
        socket
    }

    pub(super) fn is_listener(&mut self, id: Id) -> bool {
        matches!(self.nodes.get(id), Some(Node::Listener(_)))
    }

    pub(super) fn connection_index(&self, socket: Id) -> Option<usize> {
        match self.nodes.get(socket) {
            Some(Node::Stream(connection)) => Some(*connection),
            _ => None,
        }
    }

    pub(super) fn connection_of(&mut self, socket: Id) -> Option<&mut Connection> {
        let index = self.connection_index(socket)?;
        self.connections.get_mut(index)
    }

    /// Every connection has a port of its own.
    pub(super) fn address_of(&self, socket: Id) -> io::Result<SocketAddr> {
        let index = self.connection_index(socket).ok_or(io::ErrorKind::NotConnected)?;
        let host = self.connections.get(index).map_or(Ipv4Addr::LOCALHOST.into(), |it| it.host);
        Ok((host, 10_000 + (index % 50_000) as u16).into())
    }

    fn paused_mut(&mut self, id: Id) -> Option<&mut bool> {
        match self.nodes.get_mut(id)? {
            Node::Listener(listener) => Some(&mut listener.paused),
            Node::Datagrams(datagrams) => Some(&mut datagrams.paused),
            Node::Stream(connection) => Some(&mut self.connections[*connection].paused),
            Node::Watch(_) => None,
        }
    }

    pub(super) fn set_paused(&mut self, id: Id, paused: bool) {
        if let Some(found) = self.paused_mut(id) {
            *found = paused;
        }
    }

    pub(super) fn is_paused(&mut self, id: Id) -> bool {
        self.paused_mut(id).is_some_and(|paused| *paused)
    }

    pub(super) fn receive(&mut self, socket: Id) -> io::Result<Vec<u8>> {
        let connection = self.connection_of(socket).ok_or(io::ErrorKind::WouldBlock)?;
        if connection.target.is_some() || connection.arrival != ReportState::Made {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        connection.arrival = ReportState::None;
        if connection.inbox.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let inbound = connection.inbox.pop_front();
        if let Some(Inbound::Bytes(bytes)) = inbound {
            return Ok(bytes);
        }
        connection.ended = true;
        connection.inbox = [Inbound::End].into();
        match inbound {
            Some(Inbound::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(Vec::new()),
        }
    }

    pub(super) fn receive_from(&mut self, socket: Id) -> io::Result<(Vec<u8>, SocketAddr)> {
        let Some(Node::Datagrams(datagrams)) = self.nodes.get_mut(socket) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        if datagrams.arrival != ReportState::Made {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        datagrams.inbox.pop_front().ok_or_else(|| {
            datagrams.arrival = ReportState::None;
            io::ErrorKind::WouldBlock.into()
        })
    }

    pub(super) fn receive_into(&mut self, socket: Id, target: Target) {
        let result = match self.connection_of(socket) {
            Some(connection) if connection.target.is_some() => {
                Err(io::ErrorKind::ResourceBusy.into())
            }
            Some(_) if target.is_full() => Ok(()),
            Some(connection) => {
                connection.target = Some(target);
                return;
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        self.deferred.push(Completion::Filled { socket, target, result });
    }

    pub(super) fn send(&mut self, socket: Id, payload: Payload) -> SendState {
        let kind = match self.connection_of(socket) {
            Some(connection) if connection.sending.is_some() => io::ErrorKind::ResourceBusy,
            Some(connection) if connection.shut_down => io::ErrorKind::BrokenPipe,
            Some(connection) => {
                connection.sends += 1;
                if payload.is_empty() || connection.send_mode == SendMode::AtOnce {
                    connection.sent.extend(payload.slices_from(0).flatten());
                    return SendState::Done(payload);
                }
                connection.sending = Some((payload, 0));
                return SendState::Pending;
            }
            None => io::ErrorKind::NotConnected,
        };
        self.deferred.push(Completion::Sent { socket, payload, result: Err(kind.into()) });
        SendState::Pending
    }

    pub(super) fn send_to(&mut self, socket: Id, bytes: &[u8], to: SocketAddr) {
        if let Some(Node::Datagrams(datagrams)) = self.nodes.get_mut(socket) {
            datagrams.sent.push((bytes.to_vec(), to));
        }
    }

    pub(super) fn close(&mut self, id: Id) {
        if let Some(connection) = self.connection_of(id) {
            connection.closed = true;
            let interrupted = || Err(io::ErrorKind::Interrupted.into());
            let filled = connection.target.take().map(|target| Completion::Filled {
                socket: id,
                target,
                result: interrupted(),
            });
            let sent = connection.sending.take().map(|(payload, _)| Completion::Sent {
                socket: id,
                payload,
                result: interrupted(),
            });
            self.deferred.extend(filled.into_iter().chain(sent));
        }
        if let Some(Node::Listener(listener)) = self.nodes.remove(id) {
            for connection in listener.backlog {
                self.connections[connection].closed = true;
            }
        }
    }

    pub(super) fn wait(&mut self, deadline: Option<Instant>, completions: &mut Vec<Completion>) {
        self.deadline = deadline;
        self.waits += 1;
        let mut happened = std::mem::take(&mut self.deferred);
        for id in self.nodes.ids() {
            self.advance(id, &mut happened);
        }
        if self.reversed {
            happened.sort_by_key(|completion| Reverse(socket_of(completion)));
        }
        if self.woken.swap(false, Ordering::AcqRel) {
            happened.push(Completion::Woken);
        }
        let due = self.waits + self.delay as u64;
        self.delayed.extend(happened.into_iter().map(|completion| (due, completion)));
        if self.delayed.is_empty()
            && let Some(deadline) = deadline
        {
            self.clock.advance(deadline.saturating_duration_since(self.clock.now()));
        }
        while self.delayed.front().is_some_and(|(due, _)| *due <= self.waits) {
            let reported = self.delayed.pop_front().map(|(_, completion)| completion);
            completions.extend(reported.filter(|completion| self.mark_reported(completion)));
        }
    }

    /// Notes that an arrival reaches the caller now; false when its socket was closed meanwhile.
    fn mark_reported(&mut self, completion: &Completion) -> bool {
        let (Completion::Received(Arrival { socket, .. }) | Completion::Datagrams(socket)) =
            completion
        else {
            return true;
        };
        match self.nodes.get_mut(*socket) {
            Some(Node::Stream(index)) => self.connections[*index].arrival = ReportState::Made,
            Some(Node::Datagrams(datagrams)) => datagrams.arrival = ReportState::Made,
            _ => return false,
        }
        true
    }

    /// Performs the progress of one wait on a node.
    fn advance(&mut self, id: Id, happened: &mut Vec<Completion>) {
        match self.nodes.get_mut(id) {
            Some(Node::Listener(_)) => self.advance_listener(id, happened),
            Some(Node::Stream(index)) => self.connections[*index].advance(id, happened),
            Some(Node::Datagrams(datagrams)) => datagrams.advance(id, happened),
            Some(Node::Watch(watch)) => watch.advance(id, happened),
            None => {}
        }
    }

    fn advance_listener(&mut self, id: Id, happened: &mut Vec<Completion>) {
        while let Some(Node::Listener(listener)) = self.nodes.get_mut(id)
            && !listener.paused
        {
            if let Some(kind) = self.accept_failure.take() {
                listener.paused = true;
                happened.push(Completion::AcceptFailed { listener: id, error: kind.into() });
                return;
            }
            let Some(connection) = listener.backlog.pop_front() else { return };
            let socket = self.accept(connection);
            happened.push(Completion::Accepted { listener: id, socket });
            self.connections[connection].advance(socket, happened);
        }
    }
}

impl Datagrams {
    fn advance(&mut self, socket: Id, happened: &mut Vec<Completion>) {
        if self.arrival != ReportState::Delayed && !self.paused && !self.inbox.is_empty() {
            self.arrival = ReportState::Delayed;
            happened.push(Completion::Datagrams(socket));
        }
    }
}

impl Watch {
    fn advance(&mut self, watch: Id, happened: &mut Vec<Completion>) {
        let interest = self.armed.unwrap_or_default();
        let readiness = Readiness {
            readable: interest.readable && self.readiness.readable,
            writable: interest.writable && self.readiness.writable,
        };
        if readiness != Readiness::default() {
            self.armed = None;
            happened.push(Completion::Ready { watch, readiness });
        }
    }
}

/// The socket of a completion; completions of one socket stay in order.
fn socket_of(completion: &Completion) -> u32 {
    match completion {
        Completion::Accepted { socket, .. }
        | Completion::Filled { socket, .. }
        | Completion::Sent { socket, .. } => socket.index,
        Completion::Received(arrival) => arrival.socket.index,
        Completion::Datagrams(socket) => socket.index,
        Completion::AcceptFailed { listener: id, .. } | Completion::Ready { watch: id, .. } => {
            id.index
        }
        Completion::Woken => 0,
    }
}
