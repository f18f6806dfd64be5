//! The test's end of the fake engine.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::connection::{Connection, Inbound, SendMode};
use super::lock;
use super::state::{FakeState, Node};
use crate::{Id, Readiness};

/// Everybody but the code under test: its peers and its kernel. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    pub(super) state: Arc<Mutex<FakeState>>,
}

/// The far end of one connection. Clones are the same end.
#[derive(Clone)]
pub struct FakePeer {
    state: Arc<Mutex<FakeState>>,
    connection: usize,
}

impl Network {
    /// Connects to the listener that has been open longest. The next wait accepts the connection,
    /// unless accepting is paused.
    ///
    /// # Panics
    /// If there is no listener.
    pub fn connect(&self) -> FakePeer {
        let mut state = self.state();
        let listener = state.nodes.ids().into_iter().find(|id| state.is_listener(*id));
        drop(state);
        match listener {
            Some(listener) => self.connect_to(listener),
            None => panic!("no listener"),
        }
    }

    /// Connects to one of several listeners.
    ///
    /// # Panics
    /// When it does not listen any more.
    pub fn connect_to(&self, listener: Id) -> FakePeer {
        let mut state = self.state();
        let connection = state.connect(None);
        let Some(Node::Listener(found)) = state.nodes.get_mut(listener) else {
            panic!("no listener")
        };
        found.backlog.push_back(connection);
        drop(state);
        FakePeer { state: self.state.clone(), connection }
    }

    /// As [`Network::connect`], from another address than 127.0.0.1.
    ///
    /// # Panics
    /// If there is no listener.
    pub fn connect_from(&self, host: IpAddr) -> FakePeer {
        let peer = self.connect();
        self.state().connections[peer.connection].host = host;
        peer
    }

    /// The far end of a socket that was adopted (or accepted) and is still open.
    ///
    /// # Panics
    /// When there is no such socket.
    pub fn peer(&self, socket: Id) -> FakePeer {
        let Some(connection) = self.state().connection_index(socket) else {
            panic!("no such socket")
        };
        FakePeer { state: self.state.clone(), connection }
    }

    /// Makes the next attempt to accept on each listener fail like this, and pause it.
    pub fn fail_accept(&self, kind: io::ErrorKind) {
        self.state().accept_failure = Some(kind);
    }

    /// Sets the send mode of future connections; see [`FakePeer::set_send_mode`].
    pub fn set_send_mode(&self, send_mode: SendMode) {
        self.state().send_mode = send_mode;
    }

    /// Holds every completion back for this many waits.
    pub fn set_delay(&self, waits: usize) {
        self.state().delay = waits;
    }

    /// Reports the completions of one wait in the reverse order of their sockets. Those of one
    /// socket stay in order.
    pub fn set_reversed(&self, reversed: bool) {
        self.state().reversed = reversed;
    }

    /// The present moment of the engine's clock.
    pub fn now(&self) -> Instant {
        self.state().clock.now()
    }

    /// Moves the engine's clock on.
    pub fn advance(&self, duration: Duration) {
        self.state().clock.advance(duration);
    }

    /// The deadline of the last wait; `None` if it had none, or there was none.
    pub fn deadline(&self) -> Option<Instant> {
        self.state().deadline
    }

    /// How often the engine waited.
    pub fn waits(&self) -> u64 {
        self.state().waits
    }

    /// Listeners, sockets and watches that are open.
    pub fn open(&self) -> usize {
        self.state().nodes.len()
    }

    /// The payloads and targets that the engine has not returned yet.
    pub fn outstanding(&self) -> usize {
        self.state().outstanding()
    }

    /// Whether a listener accepts, or a socket receives, at present.
    pub fn is_paused(&self, id: Id) -> bool {
        self.state().is_paused(id)
    }

    /// Sets the readiness of a watched descriptor.
    pub fn make_ready(&self, watch: Id, readiness: Readiness) {
        if let Some(Node::Watch(watch)) = self.state().nodes.get_mut(watch) {
            watch.readiness = readiness;
        }
    }

    /// Sends a datagram to a socket of the engine.
    pub fn write_datagram(&self, socket: Id, bytes: &[u8], from: SocketAddr) {
        if let Some(Node::Datagrams(datagrams)) = self.state().nodes.get_mut(socket) {
            datagrams.inbox.push_back((bytes.to_vec(), from));
        }
    }

    /// Takes the datagrams that the engine has sent from a socket, with their destinations.
    pub fn read_datagrams(&self, socket: Id) -> Vec<(Vec<u8>, SocketAddr)> {
        match self.state().nodes.get_mut(socket) {
            Some(Node::Datagrams(datagrams)) => std::mem::take(&mut datagrams.sent),
            _ => Vec::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.state)
    }
}

impl FakePeer {
    /// Writes bytes, which arrive together, in a wait of their own.
    pub fn write(&self, bytes: &[u8]) {
        self.with(|connection| connection.inbox.push_back(Inbound::Bytes(bytes.to_vec())));
    }

    /// Writes bytes that arrive in pieces of this length, one a wait.
    pub fn write_in_pieces(&self, bytes: &[u8], piece_len: usize) {
        for piece in bytes.chunks(piece_len.max(1)) {
            self.write(piece);
        }
    }

    /// Shuts down this side: the engine reads the end after all written bytes.
    pub fn shut_down(&self) {
        self.with(|connection| connection.inbox.push_back(Inbound::End));
    }

    /// Reports this many spurious arrivals, one a wait: taking one may return no bytes, as on a
    /// socket that is no longer ready.
    pub fn report_spuriously(&self, count: usize) {
        self.with(|connection| connection.spurious_arrivals += count);
    }

    /// Resets the connection: unreceived bytes are lost, and sends fail.
    pub fn reset(&self) {
        self.with(|connection| {
            connection.inbox.clear();
            connection.inbox.push_back(Inbound::Reset);
            connection.send_mode = SendMode::Failing(io::ErrorKind::ConnectionReset);
        });
    }

    /// Takes the bytes that the engine has sent so far.
    pub fn read(&self) -> Vec<u8> {
        self.with(|connection| std::mem::take(&mut connection.sent))
    }

    /// How the engine's sends on this connection go from now on, one in flight included.
    pub fn set_send_mode(&self, send_mode: SendMode) {
        self.with(|connection| connection.send_mode = send_mode);
    }

    /// The engine's end, after it was accepted.
    pub fn socket(&self) -> Option<Id> {
        self.with(|connection| connection.socket)
    }

    /// Whether the engine ended its side or closed.
    pub fn has_ended(&self) -> bool {
        self.with(|connection| {
            (connection.shut_down && connection.sending.is_none()) || connection.closed
        })
    }

    /// Whether the engine closed the connection.
    pub fn is_closed(&self) -> bool {
        self.with(|connection| connection.closed)
    }

    /// Bytes written that the engine has not received.
    pub fn unread(&self) -> usize {
        self.with(|connection| connection.inbox.iter().map(Inbound::len).sum())
    }

    /// Sends to the peer so far.
    pub fn sends(&self) -> usize {
        self.with(|connection| connection.sends)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Connection) -> T) -> T {
        act(&mut lock(&self.state).connections[self.connection])
    }
}
