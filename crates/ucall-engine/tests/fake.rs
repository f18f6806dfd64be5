//! The faults that the fake engine injects. The conformance suite tests it as an engine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ucall_engine::fake::{Fake, Network, SendMode};
use ucall_engine::{Completion, Engine, Id, Readiness, SendState};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn listening() -> (Fake, Network, Id) {
    let (mut engine, network) = Fake::new();
    let listener = engine.listen(TcpListener::bind(ANY).unwrap()).unwrap();
    (engine, network, listener)
}

fn wait(engine: &mut Fake) -> Vec<Completion> {
    wait_until(engine, None)
}

fn wait_until(engine: &mut Fake, deadline: impl Into<Option<Instant>>) -> Vec<Completion> {
    let mut completions = Vec::new();
    engine.wait(deadline.into(), &mut completions).unwrap();
    completions
}

#[test]
fn accepting_fails_once_and_pauses() {
    let (mut engine, network, listener) = listening();
    network.fail_accept(io::ErrorKind::OutOfMemory);
    let peer = network.connect();
    let completions = wait(&mut engine);
    assert!(matches!(
        &completions[..],
        [Completion::AcceptFailed { error, .. }] if error.kind() == io::ErrorKind::OutOfMemory
    ));
    assert!(network.is_paused(listener));
    assert!(wait(&mut engine).is_empty());
    engine.resume(listener);
    let completions = wait(&mut engine);
    let [Completion::Accepted { socket, .. }] = completions[..] else { panic!() };
    assert_eq!(peer.socket(), Some(socket));
}

#[test]
fn sends_go_in_steps_stall_and_fail() {
    let (mut engine, network, _) = listening();
    let peer = network.connect();
    wait(&mut engine);
    let socket = peer.socket().unwrap();
    peer.set_send_mode(SendMode::InSteps(4));
    assert!(matches!(engine.send(socket, b"0123456789".to_vec().into()), SendState::Pending));
    assert!(wait(&mut engine).is_empty());
    assert_eq!(peer.read(), b"0123");
    peer.set_send_mode(SendMode::Stalled);
    assert!(wait(&mut engine).is_empty());
    assert_eq!(peer.read(), b"");
    peer.set_send_mode(SendMode::AtOnce);
    assert!(matches!(&wait(&mut engine)[..], [Completion::Sent { result: Ok(()), .. }]));
    assert_eq!(peer.read(), b"456789");
    peer.set_send_mode(SendMode::Failing(io::ErrorKind::BrokenPipe));
    assert!(matches!(engine.send(socket, b"x".to_vec().into()), SendState::Pending));
    assert!(matches!(&wait(&mut engine)[..], [Completion::Sent { result: Err(_), .. }]));
}

#[test]
fn completions_can_be_delayed_and_reversed() {
    let (mut engine, network, _) = listening();
    let peers = [network.connect(), network.connect()];
    wait(&mut engine);
    network.set_delay(2);
    network.set_reversed(true);
    for peer in &peers {
        peer.write(b"hello");
    }
    assert!(wait(&mut engine).is_empty());
    assert!(wait(&mut engine).is_empty());
    let completions = wait(&mut engine);
    let sockets: Vec<_> = completions
        .iter()
        .map(|completion| match completion {
            Completion::Received(arrival) => arrival.socket,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sockets, [peers[1].socket().unwrap(), peers[0].socket().unwrap()]);
}

#[test]
fn late_completions_of_a_closed_socket_are_dropped() {
    let (mut engine, network, _) = listening();
    let peer = network.connect();
    wait(&mut engine);
    network.set_delay(1);
    peer.write(b"hello");
    wait(&mut engine);
    engine.close(peer.socket().unwrap());
    assert!(wait(&mut engine).is_empty());
    assert!(peer.is_closed() && peer.has_ended());
    assert_eq!(network.open(), 1);
}

#[test]
fn bytes_come_in_pieces() {
    let (mut engine, network, _) = listening();
    let peer = network.connect();
    peer.write_in_pieces(b"0123456789", 4);
    assert_eq!(peer.unread(), 10);
    let mut pieces = Vec::new();
    while pieces.len() < 3 {
        for completion in wait(&mut engine) {
            if let Completion::Received(arrival) = completion {
                pieces.push(engine.receive(arrival).unwrap().to_vec());
            }
        }
    }
    assert_eq!(pieces, [&b"0123"[..], b"4567", b"89"]);
}

#[test]
fn a_wait_without_events_jumps_to_its_deadline() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (mut engine, network, _) = listening();
    let (clock, start) = (engine.clock(), network.now());
    let (deadline, unix_start) = (start + HOUR, clock.unix_time());
    let peer = network.connect();
    assert_eq!(wait_until(&mut engine, deadline).len(), 1);
    assert_eq!((network.deadline(), network.waits()), (Some(deadline), 1));
    assert_eq!(clock.now(), start, "an event ended the wait");
    network.set_delay(1);
    peer.write(b"x");
    assert!(wait_until(&mut engine, deadline).is_empty());
    assert_eq!(clock.now(), start, "an event is on its way");
    let Some(Completion::Received(arrival)) = wait_until(&mut engine, deadline).pop() else {
        panic!("it arrives")
    };
    assert_eq!(engine.receive(arrival).unwrap(), b"x");
    assert!(wait_until(&mut engine, deadline).is_empty());
    assert_eq!((clock.now(), clock.unix_time()), (deadline, unix_start + HOUR));
    assert!(wait_until(&mut engine, start).is_empty());
    assert_eq!(clock.now(), deadline, "no clock goes back");
    network.advance(HOUR);
    assert_eq!(network.now(), deadline + HOUR);
}

#[test]
fn datagrams_watches_and_wakes_are_simulated() {
    let (mut engine, network) = Fake::new();
    let socket = engine.bind_datagrams(UdpSocket::bind(ANY).unwrap()).unwrap();
    network.write_datagram(socket, b"hello", ANY);
    let Some(Completion::Datagrams(arrived)) = wait(&mut engine).pop() else { panic!() };
    let (bytes, from) = engine.receive_from(arrived).unwrap();
    assert_eq!((&*bytes, from), (&b"hello"[..], ANY.into()));
    engine.send_to(socket, b"", ANY.into());
    assert_eq!(network.read_datagrams(socket), [(Vec::new(), ANY)]);

    let readable = Readiness { readable: true, writable: false };
    let watch = engine.watch(io::stdin().as_fd(), readable).unwrap();
    assert!(wait(&mut engine).is_empty());
    network.make_ready(watch, Readiness { readable: true, writable: true });
    let Some(Completion::Ready { readiness, .. }) = wait(&mut engine).pop() else { panic!() };
    assert_eq!(readiness, readable);
    assert!(wait(&mut engine).is_empty());
    engine.rewatch(watch, readable).unwrap();
    assert_eq!(wait(&mut engine).len(), 1);

    let waker = engine.waker();
    std::thread::spawn(move || waker.wake()).join().unwrap().unwrap();
    assert!(matches!(wait(&mut engine)[..], [Completion::Woken]));
    assert!(wait(&mut engine).is_empty());
}
