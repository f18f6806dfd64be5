//! Stream sockets: receive, send, pause, shut down.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use ucall_buffer::{Bytes, Payload, Target};
use ucall_engine::{Engine, SendState};

use crate::lab::{LOOPBACK, Lab, Peer, dial, pattern, read, write};

const MEGABYTES: usize = 8 << 20;

pub fn echoes(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    write(&mut peer, b"hello");
    lab.expect(socket, b"hello");
    lab.send(socket, b"hello".to_vec());
    assert_eq!(read(&mut peer, 5), b"hello");
}

pub fn takes_bytes_split_anywhere(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    let bytes = pattern(600);
    for (place, byte) in bytes.iter().enumerate() {
        write(&mut peer, &[*byte]);
        if place % 3 == 0 {
            lab.expect(socket, &bytes[..=place]);
        }
    }
    lab.expect(socket, &bytes);
}

pub fn serves_many_connections(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    let mut peers: Vec<_> = (0..300).map(|_| dial(address)).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        write(peer, format!("{number:05}").as_bytes());
    }
    lab.until(|lab| {
        let all = lab.accepted.iter().all(|(_, socket)| lab.bytes(*socket).len() == 5);
        (all && lab.accepted.len() == 300).then_some(())
    });
    for (_, socket) in std::mem::take(&mut lab.accepted) {
        let bytes = lab.bytes(socket).to_vec();
        lab.send(socket, bytes);
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        assert_eq!(read(peer, 5), format!("{number:05}").as_bytes());
    }
}

pub fn moves_megabytes_both_ways(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    let bytes = pattern(MEGABYTES);
    for last in [false, true] {
        let (mut peer, socket) = lab.connect(address);
        let peer = thread::spawn(move || {
            write(&mut peer, &pattern(MEGABYTES));
            // A slow reader: the engine's send has to wait for it many times.
            let mut back = Vec::new();
            while back.len() < MEGABYTES {
                let piece = (MEGABYTES - back.len()).min(500_000);
                back.extend(read(&mut peer, piece));
                thread::sleep(Duration::from_millis(1));
            }
            back
        });
        lab.expect(socket, &bytes);
        // A peer that happens to be quick may make room for all of it at once.
        let payload = match lab.start_send(socket, bytes.clone().into(), last) {
            SendState::Done(payload) => payload,
            SendState::Pending => {
                let (payload, result) = lab.expect_sent(socket);
                result.unwrap();
                payload
            }
        };
        assert_eq!(payload.len(), MEGABYTES);
        assert!(peer.join().unwrap() == bytes);
        lab.settle();
        assert!(lab.sent.is_empty());
    }
}

/// A peer that reads slowly is told from one that has stopped. An engine's thread that stands still
/// may find all of it sent when it looks again, so it tries again.
pub fn tells_how_a_send_gets_on(lab: &mut Lab<impl Engine>) {
    assert!((0..50).any(|_| sees_how_a_send_gets_on(lab)));
}

fn sees_how_a_send_gets_on(lab: &mut Lab<impl Engine>) -> bool {
    const PIECE: usize = 64 << 10;
    let (_, address) = lab.listen();
    let (mut peer, socket) = lab.connect(address);
    assert_eq!(lab.engine.sent_bytes(socket), 0);
    let state = lab.start_send(socket, pattern(MEGABYTES).into(), false);
    assert!(matches!(state, SendState::Pending), "no socket buffer takes that much");
    let mut taken = lab.until(|lab| Some(lab.engine.sent_bytes(socket)).filter(|now| *now > 0));
    let peer = thread::spawn(move || {
        for _ in 0..MEGABYTES / PIECE {
            read(&mut peer, PIECE);
            thread::sleep(Duration::from_millis(2));
        }
    });
    let mut looks = 0;
    while looks < 2 && lab.sent.is_empty() {
        let now = lab.engine.sent_bytes(socket);
        if now > taken {
            assert!(now < MEGABYTES, "the rest waits for the peer");
            (taken, looks) = (now, looks + 1);
        }
        lab.turn();
    }
    lab.expect_sent(socket).1.unwrap();
    assert_eq!(lab.engine.sent_bytes(socket), 0);
    peer.join().unwrap();
    looks == 2
}

pub fn sends_parts_in_order(lab: &mut Lab<impl Engine>) {
    let (mut peer, socket) = lab.connection();
    for (parts, part_len, last) in [
        (1, 10, false),
        (3, 70_000, false),
        (100, 100, true),
        (3000, 700, false),
        (3000, 700, true),
    ] {
        let bytes = pattern(20 + parts * part_len);
        let mut payload = Payload::from(bytes[..20].to_vec());
        for part in bytes[20..].chunks(part_len) {
            payload.push(Bytes::copy_from_slice(part));
        }
        let mut end = peer.try_clone().unwrap();
        let len = bytes.len();
        let reader = thread::spawn(move || read(&mut end, len));
        if let SendState::Pending = lab.start_send(socket, payload, last) {
            lab.expect_sent(socket).1.unwrap();
        }
        assert!(reader.join().unwrap() == bytes, "{parts} parts of {part_len}");
    }
    // Without a head, too.
    let mut payload = Payload::new();
    payload.push(Bytes::from_static(b"one"));
    payload.push(Bytes::from_static(b"two"));
    lab.send(socket, payload);
    assert_eq!(read(&mut peer, 6), b"onetwo");
}

pub fn sends_an_empty_payload_at_once(lab: &mut Lab<impl Engine, impl Peer>) {
    let (_peer, socket) = lab.connection();
    assert!(matches!(lab.engine.send(socket, Payload::new()), SendState::Done(_)));
}

pub fn refuses_a_second_send_and_returns_it(lab: &mut Lab<impl Engine>) {
    let (mut peer, socket) = lab.connection();
    let SendState::Pending = lab.engine.send(socket, pattern(MEGABYTES).into()) else {
        panic!("no socket buffer takes that much");
    };
    let SendState::Pending = lab.engine.send(socket, b"more".to_vec().into()) else {
        panic!("one send at a time");
    };
    let (payload, result) = lab.expect_sent(socket);
    assert_eq!(
        (payload.head(), result.unwrap_err().kind()),
        (&b"more"[..], io::ErrorKind::ResourceBusy)
    );
    let reader = thread::spawn(move || read(&mut peer, MEGABYTES));
    let (payload, result) = lab.expect_sent(socket);
    assert_eq!((payload.len(), result.is_ok()), (MEGABYTES, true));
    reader.join().unwrap();
}

pub fn adopts_a_connected_socket(lab: &mut Lab<impl Engine>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let ours = dial(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    write(&mut peer, b"early");
    let socket = lab.engine.adopt(ours.into()).unwrap();
    lab.expect(socket, b"early");
    lab.send(socket, b"late".to_vec());
    assert_eq!(read(&mut peer, 4), b"late");
    assert_eq!(
        lab.engine.peer(socket).unwrap(),
        ucall_engine::Peer::Address(peer.local_addr().unwrap())
    );
    lab.engine.close(socket);
    lab.settle();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

pub fn adopts_a_unix_socket(lab: &mut Lab<impl Engine>) {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let socket = lab.engine.adopt(ours.into()).unwrap();
    peer.write_all(b"hello").unwrap();
    lab.expect(socket, b"hello");
    lab.send(socket, b"there".to_vec());
    let mut back = [0; 5];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"there");
    assert_eq!(lab.engine.peer(socket).unwrap(), this_process());
    lab.engine.shutdown(socket);
    assert_eq!(peer.read(&mut back).unwrap(), 0);
    drop(peer);
    lab.expect_end(socket);
}

/// What the kernel says of a Unix socket's other end.
pub fn this_process() -> ucall_engine::Peer {
    let pid = std::process::id() as i32;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    ucall_engine::Peer::Process { pid, uid, gid }
}

pub fn reports_an_arrival_again_until_it_is_taken(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    lab.taking = false;
    write(&mut peer, b"hello");
    lab.until(|lab| (lab.arrivals >= 3).then_some(()));
    write(&mut peer, b" there");
    peer.end();
    lab.settle();
    lab.taking = true;
    lab.expect(socket, b"hello there");
    lab.expect_end(socket);
}

/// Of what has come, some is not asked for in its turn, goes to a target, or is closed upon.
pub fn hands_out_what_came_to_several_sockets(lab: &mut Lab<impl Engine, impl Peer>) {
    let (_, address) = lab.listen();
    let mut pairs: Vec<_> = (0..9).map(|_| lab.connect(address)).collect();
    lab.settle();
    lab.taking = false;
    for (number, (peer, _)) in pairs.iter_mut().enumerate() {
        write(peer, &pattern(100 + number));
        if number % 2 == 1 {
            peer.end();
        }
    }
    let before = lab.arrivals;
    lab.until(|lab| (lab.arrivals >= before + 27).then_some(()));
    let targeted = pairs[1].1;
    lab.engine.receive_into(targeted, Target::from_vec(Vec::new(), 60));
    lab.engine.close(pairs[0].1);
    lab.taking = true;
    let (target, result) = lab.expect_filled(targeted);
    result.unwrap();
    assert_eq!(target.into_vec(), pattern(101)[..60]);
    lab.expect(targeted, &pattern(101)[60..]);
    for (number, (_, socket)) in pairs.iter().enumerate().skip(2) {
        lab.expect(*socket, &pattern(100 + number));
    }
    for (_, socket) in pairs.iter().skip(1).step_by(2) {
        lab.expect_end(*socket);
    }
    assert_eq!(lab.bytes(pairs[0].1), b"");
}

pub fn takes_an_arrival_once(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    write(&mut peer, b"hello");
    lab.expect(socket, b"hello");
    lab.settle();
    assert_eq!((lab.bytes(socket), lab.arrivals), (&b"hello"[..], 1));
}

pub fn pauses_and_resumes(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    write(&mut peer, b"one");
    lab.expect(socket, b"one");
    lab.engine.pause(socket);
    lab.settle();
    write(&mut peer, b"two");
    lab.settle();
    assert_eq!(lab.bytes(socket), b"one");
    lab.engine.resume(socket);
    lab.expect(socket, b"onetwo");
    // Both within one turn, and each one twice.
    for _ in 0..2 {
        lab.engine.pause(socket);
        lab.engine.pause(socket);
        lab.engine.resume(socket);
        lab.engine.resume(socket);
    }
    write(&mut peer, b"three");
    lab.expect(socket, b"onetwothree");
    // Sending goes on meanwhile.
    lab.engine.pause(socket);
    lab.send(socket, b"four".to_vec());
    assert_eq!(read(&mut peer, 4), b"four");
}

pub fn answers_a_peer_that_ended_its_side(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    write(&mut peer, b"question");
    peer.end();
    lab.expect(socket, b"question");
    lab.expect_end(socket);
    lab.send(socket, b"answer".to_vec());
    lab.engine.close(socket);
    lab.settle();
    assert_eq!(peer.read_rest(), b"answer");
}

pub fn ends_its_side_after_what_was_sent(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for (len, last) in [(5, false), (5, true), (MEGABYTES, false), (MEGABYTES, true)] {
        let (mut peer, socket) = lab.connect(address);
        let pending =
            matches!(lab.start_send(socket, pattern(len).into(), last), SendState::Pending);
        lab.engine.shutdown(socket);
        let mut end = peer.try_clone().unwrap();
        let reader = thread::spawn(move || end.read_rest());
        if pending {
            lab.expect_sent(socket).1.unwrap();
        }
        lab.until(|_| reader.is_finished().then_some(()));
        assert!(reader.join().unwrap() == pattern(len));
        // The other direction is as it was.
        write(&mut peer, b"still here");
        lab.expect(socket, b"still here");
    }
}

/// A reset behind more than the kernel reads in one go, while nothing is received: afterwards it
/// may tell of the bytes alone.
pub fn tells_of_a_reset_behind_bytes_when_asked(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    let bytes = pattern(MEGABYTES);
    for _ in 0..3 {
        let (mut peer, socket) = lab.connect(address);
        let warm = bytes.clone();
        let warming = thread::spawn(move || {
            // The kernel makes room for much where much was read.
            write(&mut peer, &warm);
            peer
        });
        lab.until(|lab| (lab.bytes(socket).len() == MEGABYTES).then_some(()));
        let mut peer = warming.join().unwrap();
        lab.engine.pause(socket);
        lab.settle();
        peer.set_nonblocking(true).unwrap();
        while peer.write(&bytes[..65_536]).is_ok() {}
        peer.reset();
        lab.engine.resume(socket);
        lab.settle();
        lab.engine.check(socket);
        lab.until(|lab| lab.streams[&socket].error.as_ref().map(drop));
        assert!(lab.bytes(socket).len() > MEGABYTES);
        lab.engine.check(socket);
        lab.engine.close(socket);
        lab.engine.check(socket);
        lab.turn();
    }
}

pub fn tells_of_a_reset(lab: &mut Lab<impl Engine, impl Peer>) {
    let (peer, socket) = lab.connection();
    peer.reset();
    lab.until(|lab| {
        let stream = lab.streams.get(&socket)?;
        (stream.ended || stream.error.is_some()).then_some(())
    });
    let kind = |error: &io::Error| error.kind();
    assert_eq!(lab.streams[&socket].error.as_ref().map(kind), Some(io::ErrorKind::ConnectionReset));
    let SendState::Pending = lab.engine.send(socket, b"hello?".to_vec().into()) else {
        panic!("nobody is there to take it");
    };
    let (payload, result) = lab.expect_sent(socket);
    assert_eq!((payload.head(), result.is_err()), (&b"hello?"[..], true));
}

pub fn tells_the_peer_address(lab: &mut Lab<impl Engine>) {
    let (peer, socket) = lab.connection();
    match lab.engine.peer(socket) {
        Ok(found) => assert_eq!(found, ucall_engine::Peer::Address(peer.local_addr().unwrap())),
        Err(error) => {
            assert!(!lab.knows_peers);
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        }
    }
}
