//! Thousands of accepts, hang-ups and handshakes: a turn handles a few of each, later turns handle
//! the others, and each turn answers the calls of other connections.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use ucall_engine::fake::FakePeer;
use ucall_proto::http1::AccessRules;
use ucall_proto::tls::{ClientConfig, ClientSettings, TicketSecret, TlsConnection, Trust};
use ucall_server::{AnyWorker, IdentityFiles, Procedures, Tls, TlsFiles, Worker};

use crate::harness::{Harness, ScriptedHandler, call, post, reply, text};

#[test]
fn many_expired_connections_delay_no_call() {
    let mut harness = Harness::with(|config| config.limits.head_timeout = Duration::from_millis(1));
    let served = harness.connect();
    let slow: Vec<FakePeer> = (0..500).map(|_| harness.network.connect()).collect();
    harness.turns(40);
    for peer in &slow {
        peer.write(b"POST / HTTP/1.1\r\n");
    }
    harness.turn();
    let answered = || slow.iter().filter(|peer| peer.has_ended()).count();
    harness.network.advance(Duration::from_secs(2));
    let mut before = 0;
    for _ in 0..200 {
        served.write(call("echo", "[]", "1").as_bytes());
        harness.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        let now = answered();
        assert!(now - before <= 4, "{} in one turn", now - before);
        before = now;
    }
    assert_eq!(before, slow.len(), "one sweep answers all");
}

#[test]
fn many_new_connections_delay_no_call() {
    let mut harness = Harness::new();
    let served = harness.connect();
    let new_peers: Vec<FakePeer> = (0..500).map(|_| harness.network.connect()).collect();
    new_peers[499].write(call("echo", "[]", "1").as_bytes());
    let mut before = 1;
    for _ in 0..32 {
        served.write(call("echo", "[]", "1").as_bytes());
        harness.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        let now = harness.stats().connections;
        assert!((1..=16).contains(&(now - before)), "{} in one turn", now - before);
        // Nothing keeps the worker from going on at once.
        assert!(now == 501 || harness.worker.deadline().unwrap() <= harness.now());
        before = now;
    }
    assert_eq!(before, 501);
    harness.turn();
    assert_eq!(text(&new_peers[499]), reply("1", "[]"));
}

/// Lets peers leave all at once; checks that a few are closed in each turn, and a call is answered.
fn hang_up_together(how: fn(&FakePeer)) {
    let mut harness = Harness::new();
    let served = harness.connect();
    let others: Vec<FakePeer> = (0..500).map(|_| harness.network.connect()).collect();
    harness.turns(40);
    assert_eq!(harness.stats().connections, 501);
    others.iter().for_each(how);
    let mut before = 501;
    for _ in 0..63 {
        served.write(call("echo", "[]", "1").as_bytes());
        harness.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        let now = harness.stats().connections;
        assert!((1..=8).contains(&(before - now)), "{} in one turn", before - now);
        assert!(now == 1 || harness.worker.deadline().unwrap() <= harness.now());
        before = now;
    }
    assert_eq!((before, harness.network.open()), (1, 2));
}

#[test]
fn many_hang_ups_delay_no_call() {
    hang_up_together(FakePeer::shut_down);
    hang_up_together(FakePeer::reset);
}

#[test]
fn hung_up_connections_are_closed_before_idle_ones() {
    let mut harness = Harness::with(|config| config.connections_max = 100);
    let others: Vec<FakePeer> = (0..100).map(|_| harness.network.connect()).collect();
    harness.turns(20);
    let (idle, hung_up) = others.split_at(50);
    hung_up.iter().for_each(FakePeer::reset);
    let new_peers: Vec<FakePeer> = (0..50).map(|_| harness.network.connect()).collect();
    harness.turns(20);
    assert!(idle.iter().all(|peer| !peer.is_closed()));
    assert!(new_peers.iter().all(|peer| peer.socket().is_some() && !peer.is_closed()));
}

#[test]
fn a_pipelining_connection_is_read_one_buffer_a_turn() {
    let mut harness = Harness::new();
    let (served, pipelining) = (harness.connect(), harness.connect());
    let piece = post(&call("echo", "[]", "1")).repeat(500);
    for _ in 0..10 {
        pipelining.write(piece.as_bytes());
    }
    for _ in 0..10 {
        served.write(call("echo", "[]", "1").as_bytes());
        harness.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        assert_eq!(text(&pipelining).matches("HTTP/1.1 200").count(), 500);
    }
}

/// A client of TLS at the far end of a connection.
pub struct TlsPeer {
    pub peer: FakePeer,
    pub tls: TlsConnection,
    pub received: Vec<u8>,
}

impl TlsPeer {
    pub fn begin(harness: &mut Harness, config: Arc<ClientConfig>) -> Self {
        Self::begin_on(harness.network.connect(), config)
    }

    pub fn begin_on(peer: FakePeer, config: Arc<ClientConfig>) -> Self {
        let mut hello = Vec::new();
        let tls =
            TlsConnection::client(config, "localhost".try_into().unwrap(), &mut hello).unwrap();
        peer.write(&hello);
        Self { peer, tls, received: Vec::new() }
    }

    /// Hears what the worker has sent, and answers; `false` when that was nothing.
    pub fn exchange(&mut self) -> bool {
        let (mut bytes, mut out) = (self.peer.read(), Vec::new());
        let is_new = !bytes.is_empty();
        let received = &mut self.received;
        self.tls.receive(&mut bytes, &mut out, |piece| received.extend_from_slice(piece)).unwrap();
        if !out.is_empty() {
            self.peer.write(&out);
        }
        is_new
    }

    pub fn call(&mut self) {
        let mut out = Vec::new();
        self.tls.send(call("echo", "[]", "1").as_bytes(), &mut out).unwrap();
        self.peer.write(&out);
    }
}

/// A worker under TLS, and what its clients need.
pub fn tls_harness() -> (Harness, Arc<ClientConfig>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("identity.pem");
    let client = write_identity(&file);
    (tls_harness_of(&file), client)
}

/// Writes a new certificate with its key. Returns what clients need to trust it.
pub fn write_identity(file: &Path) -> Arc<ClientConfig> {
    write_identity_of(file, CertificateParams::new(["localhost".to_owned()]).unwrap())
}

/// [`write_identity`] for a certificate of other params.
pub fn write_identity_of(file: &Path, params: CertificateParams) -> Arc<ClientConfig> {
    let signing_key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&signing_key).unwrap();
    let (new, pem) = (file.with_extension("new"), cert.pem());
    std::fs::write(&new, pem.clone() + &signing_key.serialize_pem()).unwrap();
    std::fs::rename(new, file).unwrap();
    trusting(pem.as_bytes())
}

/// What clients need that trust a certificate and have no session to resume.
pub fn trusting(pem: &[u8]) -> Arc<ClientConfig> {
    let trust = Trust::Authorities(pem);
    ClientSettings { trust, identity: None, alpn: &[] }.build().unwrap()
}

pub fn tls_harness_of(file: &Path) -> Harness {
    let identity = IdentityFiles { certificates: vec![file.to_owned()], private_key: None };
    let files = TlsFiles { identities: vec![identity], ..TlsFiles::default() };
    let tls = Arc::new(Tls::load(files, TicketSecret::new([7; 32])).unwrap());
    Harness::with(|config| config.tls = Some(tls))
}

#[test]
fn many_handshakes_delay_no_call() {
    let (mut harness, client) = tls_harness();
    let mut served = TlsPeer::begin(&mut harness, client.clone());
    for _ in 0..6 {
        harness.turn();
        served.exchange();
    }
    let mut others: Vec<TlsPeer> =
        (0..100).map(|_| TlsPeer::begin(&mut harness, client.clone())).collect();
    let mut connected = 0;
    for turn in 0..300 {
        served.received.clear();
        served.call();
        harness.turn();
        served.exchange();
        assert_eq!(String::from_utf8_lossy(&served.received), reply("1", "[]"), "in turn {turn}");
        let stepped = others.iter_mut().filter_map(|it| it.exchange().then_some(())).count();
        assert!(stepped <= 1, "{stepped} handshakes in one turn");
        connected = others.iter().filter(|it| !it.tls.is_handshaking()).count();
        if connected == others.len() {
            break;
        }
        assert!(harness.worker.deadline().unwrap() <= harness.now());
    }
    assert_eq!(connected, 100, "some never agree");
    others.iter_mut().for_each(TlsPeer::call);
    harness.turns(300);
    for it in &mut others {
        it.exchange();
        assert_eq!(String::from_utf8_lossy(&it.received), reply("1", "[]"));
    }
}

/// io_uring reports all buffers that one connection filled between two waits, up to 32 of them.
#[cfg(target_os = "linux")]
#[test]
fn a_pipelining_connection_on_io_uring_is_read_a_few_buffers_a_turn() {
    use ucall_engine::uring::{Config, Features, Uring};
    const READ_BYTES_MAX: usize = (64 + 16) * 1024;

    let features = match Features::probe() {
        Ok(features) => features,
        Err(unavailable) => return crate::skipped::report(&unavailable),
    };
    let engine = Uring::new(Config::default(), features).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pipelining = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let access = AccessRules::new(true, &[], &[]).unwrap();
    let procedures = Arc::new(Procedures::new());
    let mut worker = Worker::new(
        engine,
        ScriptedHandler::new(Instant::now()),
        procedures,
        ucall_server::WorkerConfig::new(access),
    );
    worker.listen(listener.into()).unwrap();
    while worker.counters().stats().accepted == 0 {
        worker.turn(Some(Instant::now() + Duration::from_millis(1))).unwrap();
    }
    let one = call("none", "[]", "null");
    let sent = one.repeat(1_000_000 / one.len()).into_bytes();
    pipelining.set_nonblocking(true).unwrap();
    let (mut before, mut written, mut full_turns) = (0, 0, 0);
    while before < sent.len() as u64 {
        written += pipelining.write(&sent[written..]).unwrap_or(0);
        worker.turn(Some(Instant::now() + Duration::from_millis(10))).unwrap();
        drop(pipelining.read(&mut [0; 1 << 20]));
        let now = worker.counters().stats().bytes_received;
        assert!(now - before <= READ_BYTES_MAX as u64, "{} bytes in one turn", now - before);
        full_turns += usize::from(now - before > 48 * 1024);
        before = now;
    }
    assert!(full_turns > 0, "there was never more than a turn takes");
}
