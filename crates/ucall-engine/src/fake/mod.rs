//! An engine in memory, for tests of the layers above: it never blocks, and it breaks on command.
//!
//! [`Fake::new`] gives two ends. The [`Fake`] goes to the code under test. The [`Network`] stays
//! with the test, which plays everybody else with it: peers that connect, write, stall and vanish,
//! and a kernel that refuses, delays and reorders.
//!
//! Its clock stands still until the test moves it ([`Network::advance`]), or a wait has a deadline
//! and nothing happens: then it jumps to that moment.
//!
//! Each call of [`FakePeer::write`] is one arrival, and a wait reports at most one arrival a
//! socket, so a test decides how a message is cut up.
//!
//! ```
//! use std::net::TcpListener;
//! use ucall_engine::{Completion, Engine, SendState, fake::Fake};
//!
//! let (mut engine, network) = Fake::new();
//! engine.listen(TcpListener::bind("127.0.0.1:0")?)?;
//! let peer = network.connect();
//! peer.write(b"pi");
//! peer.write(b"ng");
//!
//! let mut completions = Vec::new();
//! for expected in [b"pi", b"ng"] {
//!     engine.wait(None, &mut completions)?;
//!     let Some(Completion::Received(arrival)) = completions.pop() else { panic!() };
//!     assert_eq!(engine.receive(arrival)?, expected);
//! }
//!
//! let socket = peer.socket().unwrap();
//! let SendState::Done(_) = engine.send(socket, b"pong".to_vec().into()) else { panic!() };
//! assert_eq!(peer.read(), b"pong");
//! # Ok::<(), std::io::Error>(())
//! ```

mod connection;
mod network;
mod state;

use std::io;
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ucall_buffer::{Payload, Target};

use crate::{
    Arrival, Completion, DatagramDrops, DatagramPath, Engine, EngineClock, Id, Listener, Readiness,
    SendState, Waker,
};

pub use connection::SendMode;
pub use network::{FakePeer, Network};
use state::{FakeState, Node};

/// The engine in memory.
pub struct Fake {
    state: Arc<Mutex<FakeState>>,
    /// What was handed out last.
    bytes: Vec<u8>,
}

impl Fake {
    /// An empty engine, and the test's handle of it.
    pub fn new() -> (Self, Network) {
        let state = Arc::new(Mutex::new(FakeState::new()));
        (Self { state: state.clone(), bytes: Vec::new() }, Network { state })
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.state)
    }
}

/// A test that panicked elsewhere is no reason to panic here, too.
fn lock(state: &Mutex<FakeState>) -> MutexGuard<'_, FakeState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine for Fake {
    const NAME: &'static str = "fake";
    const SENDS_AT_ONCE: bool = true;

    /// The listener is closed at once: connections come from [`Network::connect`].
    fn listen(&mut self, _listener: impl Into<Listener>) -> io::Result<Id> {
        Ok(self.state().nodes.insert(Node::listener()))
    }

    /// The socket is closed at once: [`Network::peer`] is its other end.
    fn adopt(&mut self, _stream: OwnedFd) -> io::Result<Id> {
        Ok(self.state().adopt())
    }

    /// The socket is closed at once: datagrams come from [`Network::write_datagram`].
    fn bind_datagrams(&mut self, _socket: UdpSocket) -> io::Result<Id> {
        Ok(self.state().nodes.insert(Node::datagrams()))
    }

    /// The descriptor is not used: [`Network::make_ready`] sets its readiness.
    fn watch(&mut self, _descriptor: BorrowedFd<'_>, interest: Readiness) -> io::Result<Id> {
        Ok(self.state().nodes.insert(Node::watch(interest)))
    }

    fn rewatch(&mut self, watch: Id, interest: Readiness) -> io::Result<()> {
        if let Some(Node::Watch(watch)) = self.state().nodes.get_mut(watch) {
            watch.armed = Some(interest);
        }
        Ok(())
    }

    fn pause(&mut self, id: Id) {
        self.state().set_paused(id, true);
    }

    fn resume(&mut self, id: Id) {
        self.state().set_paused(id, false);
    }

    fn receive(&mut self, arrival: Arrival) -> io::Result<&mut [u8]> {
        self.bytes = lock(&self.state).receive(arrival.socket)?;
        Ok(&mut self.bytes)
    }

    fn receive_from(&mut self, socket: Id) -> io::Result<(&mut [u8], DatagramPath)> {
        let (bytes, peer) = lock(&self.state).receive_from(socket)?;
        self.bytes = bytes;
        Ok((&mut self.bytes, peer.into()))
    }

    fn receive_into(&mut self, socket: Id, target: Target) {
        self.state().receive_into(socket, target);
    }

    fn filled_bytes(&self, socket: Id) -> usize {
        let mut state = self.state();
        let target = state.connection_of(socket).and_then(|connection| connection.target.as_ref());
        target.map_or(0, Target::filled)
    }

    fn send(&mut self, socket: Id, payload: Payload) -> SendState {
        self.state().send(socket, payload)
    }

    fn sent_bytes(&self, socket: Id) -> usize {
        let mut state = self.state();
        let sending =
            state.connection_of(socket).and_then(|connection| connection.sending.as_ref());
        sending.map_or(0, |(_, sent)| *sent)
    }

    fn send_to(&mut self, socket: Id, bytes: &[u8], path: DatagramPath) {
        self.state().send_to(socket, bytes, path.peer);
    }

    fn datagram_drops(&self, _socket: Id) -> DatagramDrops {
        DatagramDrops::default()
    }

    fn shutdown(&mut self, socket: Id) {
        if let Some(connection) = self.state().connection_of(socket) {
            connection.shut_down = true;
        }
    }

    fn close(&mut self, id: Id) {
        self.state().close(id);
    }

    fn peer(&mut self, socket: Id) -> io::Result<crate::Peer> {
        self.state().address_of(socket).map(crate::Peer::Address)
    }

    fn has_peer_left(&mut self, socket: Id) -> bool {
        self.peer(socket).is_err()
    }

    /// Returns at once, and stores the deadline. A wait in which nothing happens moves the clock to
    /// its deadline.
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.state().wait(deadline, completions);
        Ok(())
    }

    fn submit(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn waker(&self) -> Waker {
        let woken = self.state().woken.clone();
        Waker(Arc::new(move || {
            woken.store(true, Ordering::Release);
            Ok(())
        }))
    }

    fn clock(&self) -> EngineClock {
        self.state().clock.clone()
    }

    /// Waits, there being no others.
    fn system_calls(&self) -> u64 {
        self.state().waits
    }
}
