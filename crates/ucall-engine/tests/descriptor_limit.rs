//! Exhausted descriptors and slots. A process of its own, because the limit applies to the process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[cfg(target_os = "linux")]
mod skipped;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use ucall_engine::posix::Posix;
use ucall_engine::{Completion, Engine, Id, bind};

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Takes turns until `accepted` connections were accepted or accepting failed; returns whether it
/// failed.
fn accept(engine: &mut impl Engine, sockets: &mut Vec<Id>, accepted: usize) -> bool {
    let started = Instant::now();
    let mut failed = false;
    while sockets.len() < accepted && !failed {
        assert!(started.elapsed() < TEST_TIMEOUT, "waited in vain");
        let mut completions = Vec::new();
        let deadline = Instant::now() + Duration::from_millis(20);
        engine.wait(Some(deadline), &mut completions).unwrap();
        for completion in completions {
            match completion {
                Completion::Accepted { socket, .. } => sockets.push(socket),
                Completion::AcceptFailed { .. } => failed = true,
                _ => {}
            }
        }
    }
    failed
}

fn set_limit(limit: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
}

fn descriptors_open() -> u64 {
    std::fs::read_dir("/dev/fd").unwrap().count() as u64
}

/// The limit leaves room for a few connections. The next one waits until one of them closes, and
/// the process neither spins nor ends.
fn posix_pauses_at_the_limit_on_descriptors() {
    let before = getrlimit(Resource::Nofile).current.unwrap();
    let mut engine = Posix::new().unwrap();
    let listener = bind(LOOPBACK, false).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = engine.listen(listener).unwrap();
    let _peers: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    set_limit(descriptors_open() + 3);
    let mut sockets = Vec::new();
    assert!(accept(&mut engine, &mut sockets, 8));
    assert!((1..8).contains(&sockets.len()), "{} fitted", sockets.len());
    // Paused: nothing more happens by itself.
    let calls = engine.system_calls();
    engine.wait(Some(Instant::now() + Duration::from_millis(50)), &mut Vec::new()).unwrap();
    assert!(engine.system_calls() - calls <= 3, "it spins");
    // Still none: it fails again, once.
    engine.resume(listener);
    assert!(accept(&mut engine, &mut sockets, 8));
    // One connection closes, one is accepted, and the next one still waits.
    let fitted = sockets.len();
    engine.close(sockets.pop().unwrap());
    engine.resume(listener);
    accept(&mut engine, &mut sockets, fitted);
    assert_eq!(sockets.len(), fitted);
    set_limit(before);
    engine.resume(listener);
    assert!(!accept(&mut engine, &mut sockets, 7));
}

#[cfg(target_os = "linux")]
fn uring_pauses_when_its_slots_are_taken() {
    use ucall_engine::uring::{Config, Features, Uring};
    let features = match Features::probe() {
        Ok(features) => features,
        Err(unavailable) => return skipped::report(&unavailable),
    };
    let config = Config { sockets_max: 5, ..Config::default() };
    let mut engine = Uring::new(config, features).unwrap();
    let listener = bind(LOOPBACK, false).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = engine.listen(listener).unwrap();
    let mut peers: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut sockets = Vec::new();
    assert!(accept(&mut engine, &mut sockets, 6));
    assert_eq!(sockets.len(), 5);
    // Newcomers wait, and resuming alone does not help.
    peers.extend((0..3).map(|_| TcpStream::connect(address).unwrap()));
    engine.resume(listener);
    assert!(accept(&mut engine, &mut sockets, 6));
    assert_eq!(sockets.len(), 5);
    for socket in sockets.drain(..) {
        engine.close(socket);
    }
    engine.resume(listener);
    assert!(!accept(&mut engine, &mut sockets, 3));
    assert_eq!(sockets.len(), 3);
}

/// The engine starts with a smaller table than `sockets_max`.
#[cfg(target_os = "linux")]
fn uring_starts_under_a_low_limit() {
    use ucall_engine::uring::{Config, Features, Uring};
    let features = match Features::probe() {
        Ok(features) => features,
        Err(unavailable) => return skipped::report(&unavailable),
    };
    let before = getrlimit(Resource::Nofile).current.unwrap();
    set_limit(descriptors_open() + 16);
    let mut engine = Uring::new(Config::default(), features).unwrap();
    let listener = bind(LOOPBACK, false).unwrap();
    let address = listener.local_addr().unwrap();
    engine.listen(listener).unwrap();
    let _peers: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(!accept(&mut engine, &mut Vec::new(), 4));
    set_limit(before);
}

#[test]
fn engines_live_within_their_limits() {
    posix_pauses_at_the_limit_on_descriptors();
    #[cfg(target_os = "linux")]
    {
        uring_pauses_when_its_slots_are_taken();
        uring_starts_under_a_low_limit();
    }
}
