//! Closing, dropping, and what comes late.

use std::io::{self, Read};
use std::net::UdpSocket;
use std::os::fd::AsFd;

use ucall_buffer::{Payload, Target};
use ucall_engine::{Engine, Id, Readiness, SendState};

use crate::lab::{LOOPBACK, Lab, Peer, dial, pattern, read, write};

pub fn forgets_what_was_closed(lab: &mut Lab<impl Engine>) {
    let (mut peer, socket) = lab.connection();
    write(&mut peer, b"hello");
    lab.engine.close(socket);
    lab.engine.close(socket);
    lab.engine.pause(socket);
    lab.engine.resume(socket);
    lab.engine.shutdown(socket);
    assert_eq!(lab.engine.peer(socket).unwrap_err().kind(), io::ErrorKind::NotConnected);
    lab.settle();
    assert!(lab.bytes(socket).is_empty() && lab.arrivals == 0);
    // It ends, one way or the other.
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
}

pub fn returns_a_payload_when_closed(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for (turns, last) in [(0, false), (0, true), (3, false), (3, true)] {
        let (_peer, socket) = lab.connect(address);
        let state = lab.start_send(socket, pattern(8 << 20).into(), last);
        assert!(matches!(state, SendState::Pending), "no socket buffer takes that much");
        for _ in 0..turns {
            lab.turn();
        }
        lab.engine.close(socket);
        let (payload, result) = lab.expect_sent(socket);
        assert_eq!(payload.len(), 8 << 20);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}

pub fn sends_the_last_bytes_before_it_closes(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for last in [false, true] {
        let (mut peer, socket) = lab.connect(address);
        let pending =
            matches!(lab.start_send(socket, b"bye".to_vec().into(), last), SendState::Pending);
        lab.engine.close(socket);
        if pending {
            lab.expect_sent(socket).1.unwrap();
        }
        lab.settle();
        assert_eq!(peer.read_rest(), b"bye");
    }
}

/// The next connection takes over the numbers of the one before it, whose shutdown may be late.
pub fn a_shutdown_reaches_no_later_connection(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for _ in 0..300 {
        let (_peer, socket) = lab.connect(address);
        lab.engine.shutdown(socket);
        lab.engine.close(socket);
        let (mut later, socket) = lab.connect(address);
        lab.turn();
        lab.send(socket, b"hello".to_vec());
        assert_eq!(read(&mut later, 5), b"hello");
        lab.engine.close(socket);
    }
}

pub fn returns_what_is_given_to_an_unknown_id(lab: &mut Lab<impl Engine, impl Peer>) {
    let stranger = Id { index: 7, generation: 3 };
    let SendState::Pending = lab.engine.send(stranger, b"hello".to_vec().into()) else {
        panic!("nobody is there to take it");
    };
    let (payload, result) = lab.expect_sent(stranger);
    assert_eq!((payload.head(), result.is_err()), (&b"hello"[..], true));
    let SendState::Pending = lab.engine.send_to(stranger, Payload::new(), LOOPBACK) else {
        panic!("nobody is there to take it");
    };
    lab.expect_sent(stranger).1.unwrap_err();
    lab.fill(stranger, 10).1.unwrap_err();
    lab.engine.rewatch(stranger, Readiness { readable: true, writable: false }).unwrap();
    lab.settle();
    assert!(lab.ready.is_empty());
}

pub fn gives_a_new_generation_to_a_reused_index(lab: &mut Lab<impl Engine, impl Peer>) {
    let (_, address) = lab.listen();
    let (_old_peer, old) = lab.connect(address);
    lab.engine.receive_into(old, Target::from_vec(Vec::new(), 10));
    lab.settle();
    lab.engine.close(old);
    lab.settle();
    let (mut peer, new) = lab.connect(address);
    assert_eq!(new.index, old.index);
    assert_ne!(new.generation, old.generation);
    // What is done to the old one leaves the new one alone.
    lab.engine.close(old);
    lab.engine.pause(old);
    assert!(matches!(lab.engine.send(old, b"wrong".to_vec().into()), SendState::Pending));
    write(&mut peer, b"hello");
    lab.expect(new, b"hello");
    lab.send(new, b"right".to_vec());
    assert_eq!(read(&mut peer, 5), b"right");
}

pub fn closes_with_unread_bytes(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for _ in 0..50 {
        let (mut peer, socket) = lab.connect(address);
        lab.taking = false;
        let before = lab.arrivals;
        write(&mut peer, &pattern(40_000));
        lab.until(|lab| (lab.arrivals > before).then_some(()));
        lab.engine.close(socket);
        lab.taking = true;
    }
    // The engine's memory is all there again.
    let (mut peer, socket) = lab.connect(address);
    write(&mut peer, b"hello");
    lab.expect(socket, b"hello");
}

pub fn drops_with_everything_under_way(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    let datagrams = UdpSocket::bind(LOOPBACK).unwrap();
    let datagrams = lab.engine.bind_datagrams(datagrams).unwrap();
    let (pipe, _other_end) = io::pipe().unwrap();
    lab.engine.watch(pipe.as_fd(), Readiness { readable: true, writable: false }).unwrap();
    let mut peers = Vec::new();
    for number in 0..40 {
        let (mut peer, socket) = lab.connect(address);
        match number % 4 {
            0 => drop(lab.engine.send(socket, pattern(8 << 20).into())),
            1 => lab.engine.receive_into(socket, Target::from_vec(Vec::new(), 1 << 20)),
            2 => lab.engine.pause(socket),
            _ => {}
        }
        write(&mut peer, b"hello");
        peers.push(peer);
    }
    drop(lab.engine.send_to(datagrams, b"hello".to_vec().into(), LOOPBACK));
    let waker = lab.engine.waker();
    waker.wake().unwrap();
    lab.engine = (lab.make)();
    let (_, address) = lab.listen();
    lab.connect(address);
    for peer in &mut peers {
        while peer.read(&mut [0; 4096]).unwrap_or(0) > 0 {}
    }
}

pub fn survives_churn(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for round in 0..300 {
        let mut peer = dial(address);
        write(&mut peer, b"hello");
        let (_, socket) = lab.until(|lab| lab.accepted.pop());
        lab.expect(socket, b"hello");
        lab.send(socket, b"there".to_vec());
        assert_eq!(read(&mut peer, 5), b"there");
        if round % 2 == 0 {
            drop(peer);
            lab.expect_end(socket);
        }
        lab.engine.close(socket);
        assert!(socket.index < 8, "places are used again");
    }
}
