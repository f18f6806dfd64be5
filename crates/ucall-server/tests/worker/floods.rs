//! What comes by the thousand is done a little a turn, and all of it in the end, while calls on
//! other connections are answered in each turn.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use ucall_engine::fake::Peer;
use ucall_proto::http1::AccessRules;
use ucall_proto::tls::{ClientConfig, ClientSettings, Stage, TicketSecret, Trust};
use ucall_server::{IdentityFiles, Procedures, Tls, TlsFiles, Worker};

use crate::lab::{Lab, Script, call, post, reply, text};

#[test]
fn thousands_that_are_due_at_once_keep_nobody_from_his_turn() {
    let mut lab = Lab::with(|config| config.limits.head_timeout = Duration::from_millis(1));
    let served = lab.connect();
    let slow: Vec<Peer> = (0..500).map(|_| lab.network.connect()).collect();
    lab.turns(20);
    for peer in &slow {
        peer.write(b"POST / HTTP/1.1\r\n");
    }
    lab.turn();
    let answered = || slow.iter().filter(|peer| peer.has_ended()).count();
    let until = Instant::now() + Duration::from_secs(60);
    let mut before = 0;
    while before < slow.len() {
        assert!(Instant::now() < until, "some are never answered");
        served.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        let now = answered();
        assert!(now - before <= 4, "{} in one turn", now - before);
        let is_over = now == before;
        before = now;
        if is_over {
            // Between two sweeps, which are a second apart.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn thousands_that_connect_at_once_keep_nobody_from_his_turn() {
    let mut lab = Lab::new();
    let served = lab.connect();
    let newcomers: Vec<Peer> = (0..500).map(|_| lab.network.connect()).collect();
    newcomers[499].write(call("echo", "[]", "1").as_bytes());
    let mut before = 1;
    for _ in 0..32 {
        served.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        let now = lab.stats().connections;
        assert!((1..=16).contains(&(now - before)), "{} in one turn", now - before);
        // Nothing keeps the worker from going on at once.
        assert!(now == 501 || lab.worker.deadline().unwrap() <= Instant::now());
        before = now;
    }
    assert_eq!(before, 501);
    lab.turn();
    assert_eq!(text(&newcomers[499]), reply("1", "[]"));
}

/// Lets peers leave all at once; checks that a few are closed in each turn, and a call is answered.
fn let_leave(how: fn(&Peer)) {
    let mut lab = Lab::new();
    let served = lab.connect();
    let crowd: Vec<Peer> = (0..500).map(|_| lab.network.connect()).collect();
    lab.turns(40);
    assert_eq!(lab.stats().connections, 501);
    crowd.iter().for_each(how);
    let mut before = 501;
    for _ in 0..63 {
        served.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        let now = lab.stats().connections;
        assert!((1..=8).contains(&(before - now)), "{} in one turn", before - now);
        assert!(now == 1 || lab.worker.deadline().unwrap() <= Instant::now());
        before = now;
    }
    assert_eq!((before, lab.network.open()), (1, 2));
}

#[test]
fn thousands_that_leave_at_once_keep_nobody_from_his_turn() {
    let_leave(Peer::end);
    let_leave(Peer::reset);
}

#[test]
fn those_who_have_left_make_room_before_any_who_are_idle() {
    let mut lab = Lab::with(|config| config.connections_max = 100);
    let crowd: Vec<Peer> = (0..100).map(|_| lab.network.connect()).collect();
    lab.turns(20);
    let (idle, leavers) = crowd.split_at(50);
    leavers.iter().for_each(Peer::reset);
    let newcomers: Vec<Peer> = (0..50).map(|_| lab.network.connect()).collect();
    lab.turns(20);
    assert!(idle.iter().all(|peer| !peer.is_closed()));
    assert!(newcomers.iter().all(|peer| peer.socket().is_some() && !peer.is_closed()));
}

#[test]
fn a_connection_that_pipelines_is_read_a_buffer_a_turn() {
    let mut lab = Lab::new();
    let (served, greedy) = (lab.connect(), lab.connect());
    let piece = post(&call("echo", "[]", "1")).repeat(500);
    for _ in 0..10 {
        greedy.write(piece.as_bytes());
    }
    for _ in 0..10 {
        served.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert_eq!(text(&served), reply("1", "[]"));
        assert_eq!(text(&greedy).matches("HTTP/1.1 200").count(), 500);
    }
}

/// A client of TLS at the far end of a connection.
struct Secure {
    peer: Peer,
    stage: Stage,
    heard: Vec<u8>,
}

impl Secure {
    fn begin(lab: &mut Lab, config: Arc<ClientConfig>) -> Self {
        let mut hello = Vec::new();
        let stage = Stage::client(config, "localhost".try_into().unwrap(), &mut hello).unwrap();
        let peer = lab.network.connect();
        peer.write(&hello);
        Self { peer, stage, heard: Vec::new() }
    }

    /// Hears what the worker has sent, and answers; `false` when that was nothing.
    fn go_on(&mut self) -> bool {
        let (mut bytes, mut out) = (self.peer.read(), Vec::new());
        let is_new = !bytes.is_empty();
        let heard = &mut self.heard;
        self.stage.receive(&mut bytes, &mut out, |piece| heard.extend_from_slice(piece)).unwrap();
        if !out.is_empty() {
            self.peer.write(&out);
        }
        is_new
    }

    fn call(&mut self) {
        let mut out = Vec::new();
        self.stage.send(call("echo", "[]", "1").as_bytes(), &mut out).unwrap();
        self.peer.write(&out);
    }
}

/// A worker under TLS, and what its clients need.
fn secure_lab() -> (Lab, Arc<ClientConfig>) {
    let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let CertifiedKey { cert, signing_key } = made;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("identity.pem");
    std::fs::write(&file, cert.pem() + &signing_key.serialize_pem()).unwrap();
    let identity = IdentityFiles { certificates: vec![file.clone()], private_key: None };
    let files = TlsFiles { identities: vec![identity], ..TlsFiles::default() };
    let tls = Arc::new(Tls::load(files, TicketSecret::new([7; 32])).unwrap());
    let pem = cert.pem();
    let trust = Trust::Authorities(pem.as_bytes());
    let client = ClientSettings { trust, identity: None, alpn: &[] }.build().unwrap();
    (Lab::with(|config| config.tls = Some(tls)), client)
}

#[test]
fn a_flood_of_handshakes_keeps_nobody_from_his_turn() {
    let (mut lab, client) = secure_lab();
    let mut served = Secure::begin(&mut lab, client.clone());
    for _ in 0..6 {
        lab.turn();
        served.go_on();
    }
    let mut crowd: Vec<Secure> =
        (0..100).map(|_| Secure::begin(&mut lab, client.clone())).collect();
    let mut agreed = 0;
    for turn in 0..300 {
        served.heard.clear();
        served.call();
        lab.turn();
        served.go_on();
        assert_eq!(String::from_utf8_lossy(&served.heard), reply("1", "[]"), "in turn {turn}");
        let stepped = crowd.iter_mut().filter_map(|it| it.go_on().then_some(())).count();
        assert!(stepped <= 1, "{stepped} handshakes in one turn");
        agreed = crowd.iter().filter(|it| !it.stage.is_handshaking()).count();
        if agreed == crowd.len() {
            break;
        }
        assert!(lab.worker.deadline().unwrap() <= Instant::now());
    }
    assert_eq!(agreed, 100, "some never agree");
    crowd.iter_mut().for_each(Secure::call);
    lab.turns(300);
    for it in &mut crowd {
        it.go_on();
        assert_eq!(String::from_utf8_lossy(&it.heard), reply("1", "[]"));
    }
}

/// io_uring reports all buffers that one connection filled between two waits, up to 32 of them.
#[cfg(target_os = "linux")]
#[test]
fn a_connection_that_pipelines_on_io_uring_is_read_a_few_buffers_a_turn() {
    use ucall_engine::uring::{Config, Features, Uring};
    const READ_BYTES_MAX: usize = (64 + 16) * 1024;

    let Ok(features) = Features::probe() else { return };
    let engine = Uring::new(Config::default(), features).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut greedy = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let access = AccessRules::new(true, &[], &[]).unwrap();
    let procedures = Arc::new(Procedures::new());
    let mut worker =
        Worker::new(engine, Script::default(), procedures, ucall_server::Config::new(access));
    worker.listen(listener).unwrap();
    while worker.counters().stats().accepted == 0 {
        worker.turn(Some(Instant::now() + Duration::from_millis(1))).unwrap();
    }
    let one = call("none", "[]", "null");
    let sent = one.repeat(1_000_000 / one.len()).into_bytes();
    greedy.set_nonblocking(true).unwrap();
    let (mut before, mut written, mut full_turns) = (0, 0, 0);
    while before < sent.len() as u64 {
        written += greedy.write(&sent[written..]).unwrap_or(0);
        worker.turn(Some(Instant::now() + Duration::from_millis(10))).unwrap();
        drop(greedy.read(&mut [0; 1 << 20]));
        let now = worker.counters().stats().bytes_received;
        assert!(now - before <= READ_BYTES_MAX as u64, "{} bytes in one turn", now - before);
        full_turns += usize::from(now - before > 48 * 1024);
        before = now;
    }
    assert!(full_turns > 0, "there was never more than a turn takes");
}
