//! Closing and dropping with pending operations, and late events.

use std::io::{self, Read};
use std::net::UdpSocket;
use std::os::fd::AsFd;

use ucall_buffer::Target;
use ucall_engine::{Engine, Id, Readiness, SendState};

use crate::harness::{Harness, LOOPBACK, TestPeer, dial, pattern, read, write};

pub fn forgets_closed_ids(harness: &mut Harness<impl Engine>) {
    let (mut peer, socket) = harness.connection();
    write(&mut peer, b"hello");
    harness.engine.close(socket);
    harness.engine.close(socket);
    harness.engine.pause(socket);
    harness.engine.resume(socket);
    harness.engine.shutdown(socket);
    assert_eq!(harness.engine.peer(socket).unwrap_err().kind(), io::ErrorKind::NotConnected);
    harness.turn_until_quiet();
    assert!(harness.bytes(socket).is_empty() && harness.arrivals == 0);
    // It ends, one way or the other.
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
}

pub fn returns_a_payload_when_closed(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for (turns, last) in [(0, false), (0, true), (3, false), (3, true)] {
        let (_peer, socket) = harness.connect(address);
        let state = harness.start_send(socket, pattern(8 << 20).into(), last);
        assert!(matches!(state, SendState::Pending), "no socket buffer takes that much");
        for _ in 0..turns {
            harness.turn();
        }
        harness.engine.close(socket);
        let (payload, result) = harness.expect_sent(socket);
        assert_eq!(payload.len(), 8 << 20);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}

pub fn sends_the_last_bytes_before_it_closes(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for last in [false, true] {
        let (mut peer, socket) = harness.connect(address);
        let pending =
            matches!(harness.start_send(socket, b"bye".to_vec().into(), last), SendState::Pending);
        harness.engine.close(socket);
        if pending {
            harness.expect_sent(socket).1.unwrap();
        }
        harness.turn_until_quiet();
        assert_eq!(peer.read_rest(), b"bye");
    }
}

/// The next connection reuses the descriptor and the slot, while the shutdown may still be pending.
pub fn a_shutdown_reaches_no_later_connection(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for _ in 0..300 {
        let (_peer, socket) = harness.connect(address);
        harness.engine.shutdown(socket);
        harness.engine.close(socket);
        let (mut later, socket) = harness.connect(address);
        harness.turn();
        harness.send(socket, b"hello".to_vec());
        assert_eq!(read(&mut later, 5), b"hello");
        harness.engine.close(socket);
    }
}

pub fn returns_what_an_unknown_id_was_given(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let unknown = Id { index: 7, generation: 3 };
    let SendState::Pending = harness.engine.send(unknown, b"hello".to_vec().into()) else {
        panic!("no receiver");
    };
    let (payload, result) = harness.expect_sent(unknown);
    assert_eq!((payload.head(), result.is_err()), (&b"hello"[..], true));
    harness.engine.send_to(unknown, b"hello", LOOPBACK.into());
    assert!(harness.engine.receive_from(unknown).is_err());
    harness.fill(unknown, 10).1.unwrap_err();
    harness.engine.rewatch(unknown, Readiness { readable: true, writable: false }).unwrap();
    harness.turn_until_quiet();
    assert!(harness.ready.is_empty());
}

pub fn gives_a_new_generation_to_a_reused_index(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (_, address) = harness.listen();
    let (_old_peer, old) = harness.connect(address);
    harness.engine.receive_into(old, Target::from_vec(Vec::new(), 10));
    harness.turn_until_quiet();
    harness.engine.close(old);
    harness.turn_until_quiet();
    let (mut peer, new) = harness.connect(address);
    assert_eq!(new.index, old.index);
    assert_ne!(new.generation, old.generation);
    // What is done to the old one leaves the new one alone.
    harness.engine.close(old);
    harness.engine.pause(old);
    assert!(matches!(harness.engine.send(old, b"wrong".to_vec().into()), SendState::Pending));
    write(&mut peer, b"hello");
    harness.expect(new, b"hello");
    harness.send(new, b"right".to_vec());
    assert_eq!(read(&mut peer, 5), b"right");
}

pub fn closes_with_unread_bytes(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for _ in 0..50 {
        let (mut peer, socket) = harness.connect(address);
        harness.takes_arrivals = false;
        let before = harness.arrivals;
        write(&mut peer, &pattern(40_000));
        harness.turn_until(|harness| (harness.arrivals > before).then_some(()));
        harness.engine.close(socket);
        harness.takes_arrivals = true;
    }
    // The engine's memory is all there again.
    let (mut peer, socket) = harness.connect(address);
    write(&mut peer, b"hello");
    harness.expect(socket, b"hello");
}

pub fn drops_with_everything_in_flight(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    let datagrams = UdpSocket::bind(LOOPBACK).unwrap();
    let datagrams = harness.engine.bind_datagrams(datagrams).unwrap();
    let (pipe, _other_end) = io::pipe().unwrap();
    harness.engine.watch(pipe.as_fd(), Readiness { readable: true, writable: false }).unwrap();
    let (mut peers, long) = (Vec::new(), pattern(8 << 20));
    for number in 0..40 {
        let (mut peer, socket) = harness.connect(address);
        match number % 4 {
            0 => drop(harness.engine.send(socket, long.clone().into())),
            1 => harness.engine.receive_into(socket, Target::from_vec(Vec::new(), 1 << 20)),
            2 => harness.engine.pause(socket),
            _ => {}
        }
        write(&mut peer, b"hello");
        peers.push(peer);
    }
    harness.engine.send_to(datagrams, b"hello", LOOPBACK.into());
    let waker = harness.engine.waker();
    waker.wake().unwrap();
    harness.engine = (harness.make)();
    let (_, address) = harness.listen();
    harness.connect(address);
    for peer in &mut peers {
        while peer.read(&mut [0; 4096]).unwrap_or(0) > 0 {}
    }
}

pub fn survives_churn(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for round in 0..300 {
        let mut peer = dial(address);
        write(&mut peer, b"hello");
        let (_, socket) = harness.turn_until(|harness| harness.accepted.pop());
        harness.expect(socket, b"hello");
        harness.send(socket, b"there".to_vec());
        assert_eq!(read(&mut peer, 5), b"there");
        if round % 2 == 0 {
            drop(peer);
            harness.expect_end(socket);
        }
        harness.engine.close(socket);
        assert!(socket.index < 8, "places are used again");
    }
}
