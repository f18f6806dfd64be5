//! Listeners.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ucall_engine::{Engine, Listener, Sharing, bind, bind_unix};

use crate::harness::{Harness, LOOPBACK, TestPeer, dial, write};
use crate::streams::this_process;

pub fn pauses_and_resumes_a_listener(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (listener, address) = harness.listen();
    let (_first, _) = harness.connect(address);
    harness.engine.pause(listener);
    harness.turn_until_quiet();
    let mut second = harness.dial(address);
    write(&mut second, b"let me in");
    harness.turn_until_quiet();
    assert!(harness.accepted.is_empty());
    harness.engine.resume(listener);
    let (_, socket) = harness.turn_until(|harness| harness.accepted.pop());
    harness.expect(socket, b"let me in");
    harness.engine.pause(listener);
    harness.engine.resume(listener);
    harness.connect(address);
}

pub fn accepts_from_a_unix_socket(harness: &mut Harness<impl Engine>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (unix, _file) = bind_unix(&path, 0o600).unwrap();
    let listener = harness.engine.listen(unix).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    let (from, socket) = harness.turn_until(|harness| harness.accepted.pop());
    assert_eq!(from, listener);
    peer.write_all(b"hello").unwrap();
    harness.expect(socket, b"hello");
    match harness.engine.peer(socket) {
        Ok(found) => assert_eq!(found, this_process()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
    }
}

pub fn distinguishes_listeners(harness: &mut Harness<impl Engine>) {
    let (left, left_address) = harness.listen();
    let (right, right_address) = harness.listen();
    for (listener, address) in [(left, left_address), (right, right_address), (left, left_address)]
    {
        let _peer = dial(address);
        assert_eq!(harness.turn_until(|harness| harness.accepted.pop()).0, listener);
    }
}

pub fn a_shared_listener_pauses_after_each_connection(harness: &mut Harness<impl Engine>) {
    let socket = bind(LOOPBACK, false).unwrap();
    let address = socket.local_addr().unwrap();
    let shared = Listener::from(socket).shared(Sharing::Processes);
    let listener = harness.engine.listen(shared).unwrap();
    let _peers = [dial(address), dial(address), dial(address)];
    for _ in 0..3 {
        harness.turn_until(|harness| harness.accepted.pop());
        harness.turn_until_quiet();
        assert!(harness.accepted.is_empty());
        harness.engine.resume(listener);
    }
    // Now it waits, and wakes itself and others when it leaves.
    harness.turn_until_quiet();
    harness.engine.pause(listener);
    harness.turn_until_quiet();
    let _peer = dial(address);
    harness.turn_until_quiet();
    assert!(harness.accepted.is_empty());
    harness.engine.resume(listener);
    harness.turn_until(|harness| harness.accepted.pop());
}

pub fn a_shared_listener_may_be_ended_elsewhere(harness: &mut Harness<impl Engine>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (unix, _file) = bind_unix(&path, 0o600).unwrap();
    for socket in [Listener::from(bind(LOOPBACK, false).unwrap()), Listener::from(unix)] {
        for sharing in [Sharing::Processes, Sharing::None] {
            let shared = socket.try_clone().unwrap().shared(sharing);
            let listener = harness.engine.listen(shared.try_clone().unwrap()).unwrap();
            harness.turn_until_quiet();
            shared.stop_queueing();
            shared.shut_down();
            harness.turn_until_quiet();
            harness.engine.resume(listener);
            harness.turn_until_quiet();
            assert!(harness.accepted.is_empty() && harness.accept_failed.is_empty());
            harness.engine.close(listener);
        }
    }
}

pub fn a_shared_listener_that_pauses_leaves_its_connection_to_others(
    harness: &mut Harness<impl Engine>,
) {
    let socket = bind(LOOPBACK, false).unwrap();
    let address = socket.local_addr().unwrap();
    let shared = Listener::from(socket).shared(Sharing::Processes);
    let listener = harness.engine.listen(shared.try_clone().unwrap()).unwrap();
    harness.turn_until_quiet();
    let mut other = (harness.make)();
    other.listen(shared).unwrap();
    let mut completions = Vec::new();
    let mut wait_in_other = || {
        let soon = other.clock().now() + Duration::from_millis(1);
        other.wait(Some(soon), &mut completions).unwrap();
        !completions.is_empty()
    };
    assert!(!wait_in_other());
    // The first in the queue is woken, and does not accept.
    let _peer = dial(address);
    harness.engine.pause(listener);
    let is_accepted = (0..500).any(|_| {
        harness.turn();
        !harness.accepted.is_empty() || wait_in_other()
    });
    assert!(is_accepted, "a connection waits in vain");
}

pub fn closing_a_listener_stops_listening(harness: &mut Harness<impl Engine>) {
    let (listener, address) = harness.listen();
    let (mut peer, socket) = harness.connect(address);
    harness.engine.close(listener);
    harness.turn_until_quiet();
    assert!(TcpStream::connect(address).is_err());
    write(&mut peer, b"still here");
    harness.expect(socket, b"still here");
    bind(address, false).unwrap();
}

pub fn rebinds_at_once_after_a_drop(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for _ in 0..20 {
        let (_peer, _) = harness.connect(address);
        // The old engine, with a listener and a connection, is dropped here.
        harness.engine = (harness.make)();
        harness.engine.listen(bind(address, false).unwrap()).unwrap();
    }
}
