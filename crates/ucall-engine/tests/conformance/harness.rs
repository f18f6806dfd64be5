//! Drives an engine turn by turn, records its completions, and fails a test that waits too long.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ucall_buffer::{Payload, Target};
use ucall_engine::fake::{self, Fake, Network, SendMode};
use ucall_engine::posix::Posix;
use ucall_engine::{Completion, DatagramPath, Engine, Id, Readiness, SendState, bind};

/// A test that runs longer than this has failed.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest wait, so that the time limit is checked.
const WAIT_MAX: Duration = Duration::from_millis(20);

pub const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// The far end of a connection.
pub trait TestPeer: Send + 'static {
    fn write_bytes(&mut self, bytes: &[u8]);
    fn read_bytes(&mut self, len: usize) -> Vec<u8>;
    /// All bytes up to the end of the stream.
    fn read_rest(&mut self) -> Vec<u8>;
    fn shut_down(&mut self);
    fn reset(self);
}

pub struct Harness<E, P = TcpStream> {
    pub engine: E,
    /// Makes another engine of the same kind.
    pub make: Box<dyn Fn() -> E>,
    dial: Box<dyn Fn(SocketAddr) -> P>,
    /// Whether the engine reports the address of an accepted connection's peer.
    pub knows_peers: bool,
    /// Whether the engine can send without a completion.
    pub skips_send_completions: bool,
    /// Whether the engine receives several datagrams by one operation.
    pub has_multishot: bool,
    /// Whether arrivals are taken as they are reported.
    pub takes_arrivals: bool,
    /// Whether a peer may leave after the end of its stream.
    pub may_leave_after_end: bool,
    /// Whether datagrams are taken at once.
    pub takes_datagrams: bool,
    /// How often datagrams were reported.
    pub datagram_reports: usize,
    pub accepted: Vec<(Id, Id)>,
    pub accept_failed: Vec<(Id, io::Error)>,
    pub streams: HashMap<Id, Stream>,
    pub sent: Vec<(Id, Payload, io::Result<()>)>,
    pub filled: Vec<(Id, Target, io::Result<()>)>,
    pub datagrams: Vec<(Id, Vec<u8>, DatagramPath)>,
    pub ready: Vec<(Id, Readiness)>,
    pub woken: usize,
    /// Arrivals reported, taken or not.
    pub arrivals: usize,
    started: Instant,
    completions: Vec<Completion>,
}

/// The arrivals of one connection.
#[derive(Default)]
pub struct Stream {
    pub bytes: Vec<u8>,
    pub ended: bool,
    pub error: Option<io::Error>,
}

pub fn posix() -> Option<Harness<Posix>> {
    let make = || Posix::new().expect("an engine");
    Some(Harness::new(make, dial, true))
}

#[cfg(target_os = "linux")]
pub fn uring(version: (u16, u16)) -> Option<Harness<ucall_engine::uring::Uring>> {
    use ucall_engine::uring::{Config, Features, Uring};
    let features = match Features::probe() {
        Ok(features) => features.as_of(version),
        Err(unavailable) => {
            crate::skipped::report(&unavailable);
            return None;
        }
    };
    let make = move || Uring::new(Config::default(), features).expect("an engine");
    let mut harness = Harness::new(make, dial, features.install_descriptor);
    harness.skips_send_completions = features.partial_sends;
    harness.has_multishot = features.multishot_receive;
    Some(harness)
}

/// The fake at its plainest.
pub fn fake() -> Option<Harness<Fake, fake::FakePeer>> {
    Some(on_network(|_| {}))
}

/// The fake with everything late and out of order.
pub fn fake_slow() -> Option<Harness<Fake, fake::FakePeer>> {
    Some(on_network(|network| {
        network.set_send_mode(SendMode::InSteps(100_000));
        network.set_delay(2);
        network.set_reversed(true);
    }))
}

fn on_network(set: fn(&Network)) -> Harness<Fake, fake::FakePeer> {
    let (engine, network) = Fake::new();
    set(&network);
    let mut harness = Harness::new(|| Fake::new().0, move |_| network.connect(), true);
    harness.engine = engine;
    harness
}

impl<E: Engine, P: TestPeer> Harness<E, P> {
    fn new(
        make: impl Fn() -> E + 'static,
        dial: impl Fn(SocketAddr) -> P + 'static,
        knows_peers: bool,
    ) -> Self {
        Self {
            engine: make(),
            make: Box::new(make),
            dial: Box::new(dial),
            knows_peers,
            skips_send_completions: false,
            has_multishot: true,
            takes_arrivals: true,
            may_leave_after_end: false,
            takes_datagrams: true,
            datagram_reports: 0,
            accepted: Vec::new(),
            accept_failed: Vec::new(),
            streams: HashMap::new(),
            sent: Vec::new(),
            filled: Vec::new(),
            datagrams: Vec::new(),
            ready: Vec::new(),
            woken: 0,
            arrivals: 0,
            started: Instant::now(),
            completions: Vec::new(),
        }
    }

    /// One wait, and all that it reports.
    pub fn turn(&mut self) {
        assert!(self.started.elapsed() < TEST_TIMEOUT, "waited in vain");
        let mut completions = std::mem::take(&mut self.completions);
        let deadline = self.engine.clock().now() + WAIT_MAX;
        self.engine.wait(Some(deadline), &mut completions).expect("a wait");
        for completion in completions.drain(..) {
            self.record(completion);
        }
        self.completions = completions;
    }

    fn record(&mut self, completion: Completion) {
        match completion {
            Completion::Accepted { listener, socket } => self.accepted.push((listener, socket)),
            Completion::AcceptFailed { listener, error } => {
                self.accept_failed.push((listener, error));
            }
            Completion::Received(arrival) => {
                self.arrivals += 1;
                if self.takes_arrivals {
                    self.take(arrival);
                }
            }
            Completion::Datagrams(socket) => {
                self.datagram_reports += 1;
                while self.takes_datagrams {
                    match self.engine.receive_from(socket) {
                        Ok((bytes, path)) => self.datagrams.push((socket, bytes.to_vec(), path)),
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                            break;
                        }
                    }
                }
            }
            Completion::Filled { socket, target, result } => {
                self.filled.push((socket, target, result));
            }
            Completion::Sent { socket, payload, result } => {
                self.sent.push((socket, payload, result));
            }
            Completion::Ready { watch, readiness } => self.ready.push((watch, readiness)),
            Completion::Woken => self.woken += 1,
        }
    }

    fn take(&mut self, arrival: ucall_engine::Arrival) {
        let stream = self.streams.entry(arrival.socket).or_default();
        let is_open = !stream.ended || self.may_leave_after_end;
        assert!(is_open && stream.error.is_none(), "something came after the end");
        match self.engine.receive(arrival) {
            Ok([]) => stream.ended = true,
            Ok(bytes) => stream.bytes.extend_from_slice(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => stream.error = Some(error),
        }
    }

    /// Takes turns until `done` returns a value.
    pub fn turn_until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = done(self) {
                return found;
            }
            self.turn();
        }
    }

    /// Takes turns until another arrival is very unlikely.
    pub fn turn_until_quiet(&mut self) {
        for _ in 0..4 {
            self.turn();
        }
    }

    pub fn listen(&mut self) -> (Id, SocketAddr) {
        let listener = bind(LOOPBACK, false).expect("a listener");
        let address = listener.local_addr().expect("an address");
        (self.engine.listen(listener).expect("a listener's id"), address)
    }

    /// A peer that has yet to be accepted.
    pub fn dial(&self, address: SocketAddr) -> P {
        (self.dial)(address)
    }

    /// A peer and the engine's end of its connection.
    pub fn connect(&mut self, address: SocketAddr) -> (P, Id) {
        let peer = self.dial(address);
        let (_, socket) = self.turn_until(|harness| harness.accepted.pop());
        (peer, socket)
    }

    /// The same, over a listener of its own.
    pub fn connection(&mut self) -> (P, Id) {
        let (_, address) = self.listen();
        self.connect(address)
    }

    pub fn bytes(&self, socket: Id) -> &[u8] {
        self.streams.get(&socket).map_or(&[], |stream| &stream.bytes)
    }

    /// Waits until exactly these bytes have arrived in total.
    pub fn expect(&mut self, socket: Id, bytes: &[u8]) {
        self.turn_until(|harness| (harness.bytes(socket).len() >= bytes.len()).then_some(()));
        assert!(self.bytes(socket) == bytes, "other bytes came");
    }

    pub fn expect_end(&mut self, socket: Id) {
        self.turn_until(|harness| {
            harness.streams.get(&socket).is_some_and(|stream| stream.ended).then_some(())
        });
    }

    /// Sends in one of the two ways there are.
    pub fn start_send(&mut self, socket: Id, payload: Payload, last: bool) -> SendState {
        if last {
            self.engine.send_last(socket, payload)
        } else {
            self.engine.send(socket, payload)
        }
    }

    /// Sends and waits until the payload is back.
    pub fn send(&mut self, socket: Id, payload: impl Into<Payload>) -> Payload {
        match self.engine.send(socket, payload.into()) {
            SendState::Done(payload) => payload,
            SendState::Pending => self.expect_sent(socket).0,
        }
    }

    pub fn expect_sent(&mut self, socket: Id) -> (Payload, io::Result<()>) {
        self.turn_until(|harness| {
            let position = harness.sent.iter().position(|sent| sent.0 == socket)?;
            let (_, payload, result) = harness.sent.remove(position);
            Some((payload, result))
        })
    }

    pub fn expect_filled(&mut self, socket: Id) -> (Target, io::Result<()>) {
        self.turn_until(|harness| {
            let position = harness.filled.iter().position(|filled| filled.0 == socket)?;
            let (_, target, result) = harness.filled.remove(position);
            Some((target, result))
        })
    }

    /// Fills a target of `len` bytes; returns its bytes and its outcome.
    pub fn fill(&mut self, socket: Id, len: usize) -> (Vec<u8>, io::Result<()>) {
        self.engine.receive_into(socket, Target::from_vec(Vec::new(), len));
        let (target, result) = self.expect_filled(socket);
        (target.into_vec(), result)
    }
}

/// A blocking connection that does not wait for ever.
pub fn dial(address: SocketAddr) -> TcpStream {
    let peer = TcpStream::connect(address).expect("a connection");
    peer.set_nodelay(true).expect("no delay");
    peer.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    peer.set_write_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    peer
}

pub fn read(peer: &mut impl TestPeer, len: usize) -> Vec<u8> {
    peer.read_bytes(len)
}

pub fn write(peer: &mut impl TestPeer, bytes: &[u8]) {
    peer.write_bytes(bytes);
}

impl TestPeer for TcpStream {
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_all(bytes).expect("the engine to take bytes");
    }

    fn read_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes).expect("bytes from the engine");
        bytes
    }

    fn read_rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).expect("bytes from the engine");
        bytes
    }

    fn shut_down(&mut self) {
        self.shutdown(Shutdown::Write).expect("a connection");
    }

    fn reset(self) {
        socket2::SockRef::from(&self).set_linger(Some(Duration::ZERO)).expect("a connection");
    }
}

impl TestPeer for fake::FakePeer {
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }

    fn read_bytes(&mut self, len: usize) -> Vec<u8> {
        let bytes = self.read();
        assert_eq!(bytes.len(), len);
        bytes
    }

    fn read_rest(&mut self) -> Vec<u8> {
        assert!(self.has_ended());
        self.read()
    }

    fn shut_down(&mut self) {
        fake::FakePeer::shut_down(self);
    }

    fn reset(self) {
        fake::FakePeer::reset(&self);
    }
}

/// A pattern that repeats as late as possible with single bytes.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|offset| (offset % 251) as u8 ^ (offset / 251) as u8).collect()
}
