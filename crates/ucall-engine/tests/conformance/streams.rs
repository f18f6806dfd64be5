//! Stream sockets: receive, send, pause, shut down.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use ucall_buffer::{Bytes, Payload, Target};
use ucall_engine::{Engine, Id, SendState};

use crate::harness::{Harness, LOOPBACK, TestPeer, dial, pattern, read, write};

const MEGABYTES: usize = 8 << 20;

pub fn echoes(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    write(&mut peer, b"hello");
    harness.expect(socket, b"hello");
    harness.send(socket, b"hello".to_vec());
    assert_eq!(read(&mut peer, 5), b"hello");
}

/// Other code runs between two waits, and a reply does not wait for it.
pub fn submits_what_it_has_without_a_wait(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    let (mut peer, socket) = harness.connect(address);
    let _ = harness.engine.send_last(socket, Payload::from(b"hello".to_vec()));
    harness.engine.submit().unwrap();
    assert_eq!(read(&mut peer, 5), b"hello");
    harness.engine.close(socket);
    harness.engine.submit().unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

pub fn takes_bytes_split_anywhere(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    let bytes = pattern(600);
    for (offset, byte) in bytes.iter().enumerate() {
        write(&mut peer, &[*byte]);
        if offset % 3 == 0 {
            harness.expect(socket, &bytes[..=offset]);
        }
    }
    harness.expect(socket, &bytes);
}

pub fn serves_many_connections(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    let mut peers: Vec<_> = (0..300).map(|_| dial(address)).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        write(peer, format!("{number:05}").as_bytes());
    }
    harness.turn_until(|harness| {
        let all = harness.accepted.iter().all(|(_, socket)| harness.bytes(*socket).len() == 5);
        (all && harness.accepted.len() == 300).then_some(())
    });
    for (_, socket) in std::mem::take(&mut harness.accepted) {
        let bytes = harness.bytes(socket).to_vec();
        harness.send(socket, bytes);
    }
    for (number, peer) in peers.iter_mut().enumerate() {
        assert_eq!(read(peer, 5), format!("{number:05}").as_bytes());
    }
}

pub fn moves_megabytes_both_ways(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    let bytes = pattern(MEGABYTES);
    for last in [false, true] {
        let (mut peer, socket) = harness.connect(address);
        let peer = thread::spawn(move || {
            write(&mut peer, &pattern(MEGABYTES));
            // A slow reader: the engine's send waits for buffer space many times.
            let mut back = Vec::new();
            while back.len() < MEGABYTES {
                let piece = (MEGABYTES - back.len()).min(500_000);
                back.extend(read(&mut peer, piece));
                thread::sleep(Duration::from_millis(1));
            }
            back
        });
        harness.expect(socket, &bytes);
        // A fast peer may make room for all of it at once.
        let payload = match harness.start_send(socket, bytes.clone().into(), last) {
            SendState::Done(payload) => payload,
            SendState::Pending => {
                let (payload, result) = harness.expect_sent(socket);
                result.unwrap();
                payload
            }
        };
        assert_eq!(payload.len(), MEGABYTES);
        assert!(peer.join().unwrap() == bytes);
        harness.turn_until_quiet();
        assert!(harness.sent.is_empty());
    }
}

/// A slow peer differs from a stalled one. If the engine's thread was not scheduled, all bytes may
/// have been sent before the first check, so the test retries.
pub fn reports_the_progress_of_a_send(harness: &mut Harness<impl Engine>) {
    assert!((0..50).any(|_| observes_the_progress_of_a_send(harness)));
}

fn observes_the_progress_of_a_send(harness: &mut Harness<impl Engine>) -> bool {
    const PIECE: usize = 64 << 10;
    let (_, address) = harness.listen();
    let (mut peer, socket) = harness.connect(address);
    assert_eq!(harness.engine.sent_bytes(socket), 0);
    let state = harness.start_send(socket, pattern(MEGABYTES).into(), false);
    assert!(matches!(state, SendState::Pending), "no socket buffer takes that much");
    let mut taken = harness
        .turn_until(|harness| Some(harness.engine.sent_bytes(socket)).filter(|now| *now > 0));
    let peer = thread::spawn(move || {
        for _ in 0..MEGABYTES / PIECE {
            read(&mut peer, PIECE);
            thread::sleep(Duration::from_millis(2));
        }
    });
    let mut polls = 0;
    while polls < 2 && harness.sent.is_empty() {
        let now = harness.engine.sent_bytes(socket);
        if now > taken {
            assert!(now < MEGABYTES, "the rest waits for the peer");
            (taken, polls) = (now, polls + 1);
        }
        harness.turn();
    }
    harness.expect_sent(socket).1.unwrap();
    assert_eq!(harness.engine.sent_bytes(socket), 0);
    peer.join().unwrap();
    polls == 2
}

pub fn sends_parts_in_order(harness: &mut Harness<impl Engine>) {
    let (mut peer, socket) = harness.connection();
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
        if let SendState::Pending = harness.start_send(socket, payload, last) {
            harness.expect_sent(socket).1.unwrap();
        }
        assert!(reader.join().unwrap() == bytes, "{parts} parts of {part_len}");
    }
    // Without a head, too.
    let mut payload = Payload::new();
    payload.push(Bytes::from_static(b"one"));
    payload.push(Bytes::from_static(b"two"));
    harness.send(socket, payload);
    assert_eq!(read(&mut peer, 6), b"onetwo");
}

pub fn sends_an_empty_payload_at_once(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (_peer, socket) = harness.connection();
    assert!(matches!(harness.engine.send(socket, Payload::new()), SendState::Done(_)));
}

pub fn refuses_a_second_send_and_returns_it(harness: &mut Harness<impl Engine>) {
    let (mut peer, socket) = harness.connection();
    let SendState::Pending = harness.engine.send(socket, pattern(MEGABYTES).into()) else {
        panic!("no socket buffer takes that much");
    };
    let SendState::Pending = harness.engine.send(socket, b"more".to_vec().into()) else {
        panic!("one send at a time");
    };
    let (payload, result) = harness.expect_sent(socket);
    assert_eq!(
        (payload.head(), result.unwrap_err().kind()),
        (&b"more"[..], io::ErrorKind::ResourceBusy)
    );
    let reader = thread::spawn(move || read(&mut peer, MEGABYTES));
    let (payload, result) = harness.expect_sent(socket);
    assert_eq!((payload.len(), result.is_ok()), (MEGABYTES, true));
    reader.join().unwrap();
}

pub fn adopts_a_connected_socket(harness: &mut Harness<impl Engine>) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let ours = dial(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    write(&mut peer, b"early");
    let socket = harness.engine.adopt(ours.into()).unwrap();
    harness.expect(socket, b"early");
    harness.send(socket, b"late".to_vec());
    assert_eq!(read(&mut peer, 4), b"late");
    assert_eq!(
        harness.engine.peer(socket).unwrap(),
        ucall_engine::Peer::Address(peer.local_addr().unwrap())
    );
    harness.engine.close(socket);
    harness.turn_until_quiet();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

pub fn adopts_a_unix_socket(harness: &mut Harness<impl Engine>) {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let socket = harness.engine.adopt(ours.into()).unwrap();
    peer.write_all(b"hello").unwrap();
    harness.expect(socket, b"hello");
    harness.send(socket, b"there".to_vec());
    let mut back = [0; 5];
    peer.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"there");
    assert_eq!(harness.engine.peer(socket).unwrap(), this_process());
    harness.engine.shutdown(socket);
    assert_eq!(peer.read(&mut back).unwrap(), 0);
    drop(peer);
    harness.expect_end(socket);
}

pub fn finds_that_a_unix_peer_has_left(harness: &mut Harness<impl Engine>) {
    let (ours, peer) = UnixStream::pair().unwrap();
    let socket = harness.engine.adopt(ours.into()).unwrap();
    assert!(!harness.engine.has_peer_left(socket));
    peer.shutdown(Shutdown::Write).unwrap();
    harness.expect_end(socket);
    assert!(!harness.engine.has_peer_left(socket), "it still reads");
    drop(peer);
    assert!(harness.engine.has_peer_left(socket));
}

pub fn reports_a_peer_that_leaves_after_its_end(harness: &mut Harness<impl Engine>) {
    let (ours, peer) = UnixStream::pair().unwrap();
    let socket = harness.engine.adopt(ours.into()).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    expect_arrival_after_end(harness, socket, || drop(peer));

    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = harness.engine.adopt(listener.accept().unwrap().0.into()).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    expect_arrival_after_end(harness, socket, || drop(peer));
}

/// A TCP peer that has left answers bytes with a reset.
fn expect_arrival_after_end(harness: &mut Harness<impl Engine>, socket: Id, leave: impl FnOnce()) {
    harness.expect_end(socket);
    harness.engine.check(socket);
    harness.turn_until_quiet();
    harness.may_leave_after_end = true;
    let before = harness.arrivals;
    leave();
    let _ = harness.engine.send(socket, Payload::from(b"probe".to_vec()));
    harness.turn_until(|harness| (harness.arrivals > before).then_some(()));
    harness.engine.close(socket);
    harness.turn_until_quiet();
}

/// The kernel's report about a Unix socket's peer.
pub fn this_process() -> ucall_engine::Peer {
    let pid = std::process::id() as i32;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    ucall_engine::Peer::Process { pid, uid, gid }
}

pub fn reports_an_arrival_again_until_it_is_taken(
    harness: &mut Harness<impl Engine, impl TestPeer>,
) {
    let (mut peer, socket) = harness.connection();
    harness.takes_arrivals = false;
    write(&mut peer, b"hello");
    harness.turn_until(|harness| (harness.arrivals >= 3).then_some(()));
    write(&mut peer, b" there");
    peer.shut_down();
    harness.turn_until_quiet();
    harness.takes_arrivals = true;
    harness.expect(socket, b"hello there");
    harness.expect_end(socket);
}

/// Some arrivals are not taken in their turn, go to a target, or are followed by a close.
pub fn delivers_the_bytes_of_several_sockets(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (_, address) = harness.listen();
    let mut pairs: Vec<_> = (0..9).map(|_| harness.connect(address)).collect();
    harness.turn_until_quiet();
    harness.takes_arrivals = false;
    for (number, (peer, _)) in pairs.iter_mut().enumerate() {
        write(peer, &pattern(100 + number));
        if number % 2 == 1 {
            peer.shut_down();
        }
    }
    let before = harness.arrivals;
    harness.turn_until(|harness| (harness.arrivals >= before + 27).then_some(()));
    let targeted = pairs[1].1;
    harness.engine.receive_into(targeted, Target::from_vec(Vec::new(), 60));
    harness.engine.close(pairs[0].1);
    harness.takes_arrivals = true;
    let (target, result) = harness.expect_filled(targeted);
    result.unwrap();
    assert_eq!(target.into_vec(), pattern(101)[..60]);
    harness.expect(targeted, &pattern(101)[60..]);
    for (number, (_, socket)) in pairs.iter().enumerate().skip(2) {
        harness.expect(*socket, &pattern(100 + number));
    }
    for (_, socket) in pairs.iter().skip(1).step_by(2) {
        harness.expect_end(*socket);
    }
    assert_eq!(harness.bytes(pairs[0].1), b"");
}

pub fn takes_an_arrival_once(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    write(&mut peer, b"hello");
    harness.expect(socket, b"hello");
    harness.turn_until_quiet();
    assert_eq!((harness.bytes(socket), harness.arrivals), (&b"hello"[..], 1));
}

pub fn pauses_and_resumes(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    write(&mut peer, b"one");
    harness.expect(socket, b"one");
    harness.engine.pause(socket);
    harness.turn_until_quiet();
    write(&mut peer, b"two");
    harness.turn_until_quiet();
    assert_eq!(harness.bytes(socket), b"one");
    harness.engine.resume(socket);
    harness.expect(socket, b"onetwo");
    // Both within one turn, and each one twice.
    for _ in 0..2 {
        harness.engine.pause(socket);
        harness.engine.pause(socket);
        harness.engine.resume(socket);
        harness.engine.resume(socket);
    }
    write(&mut peer, b"three");
    harness.expect(socket, b"onetwothree");
    // Sending continues meanwhile.
    harness.engine.pause(socket);
    harness.send(socket, b"four".to_vec());
    assert_eq!(read(&mut peer, 4), b"four");
}

/// Writes until the kernel takes no more.
fn write_all_it_takes(peer: &mut TcpStream) {
    peer.set_nonblocking(true).expect("an open socket");
    let bytes = vec![b'x'; 1 << 20];
    while peer.write(&bytes).is_ok() {}
}

/// As in a server that reads 64 KiB of a connection in a turn.
pub fn a_fast_peer_leaves_buffers_to_others(harness: &mut Harness<impl Engine>) {
    const TURNS: usize = 200;
    let (mut peer, socket) = harness.connection();
    let mut completions = Vec::new();
    let mut reported = Vec::new();
    for _ in 0..TURNS {
        write_all_it_takes(&mut peer);
        let deadline = harness.engine.clock().now() + Duration::from_secs(10);
        harness.engine.wait(Some(deadline), &mut completions).expect("a wait");
        let arrivals = completions.drain(..).filter_map(|it| it.received());
        let arrivals: Vec<_> = arrivals.filter(|it| it.socket == socket).collect();
        reported.push(arrivals.len());
        for arrival in arrivals.into_iter().take(4) {
            harness.engine.receive(arrival).expect("bytes");
        }
    }
    assert!(reported[TURNS - 1] <= 8, "{reported:?}");
}

pub fn a_stream_that_resumes_receives_little_at_once(harness: &mut Harness<impl Engine>) {
    let (mut peer, socket) = harness.connection();
    harness.engine.pause(socket);
    harness.turn_until_quiet();
    write_all_it_takes(&mut peer);
    let before = harness.bytes(socket).len();
    harness.engine.resume(socket);
    let received = |it: &mut Harness<_>| Some(it.bytes(socket).len() - before).filter(|it| *it > 0);
    let received = harness.turn_until(received);
    assert!(received <= 64 << 10, "{received} bytes in one turn");
}

pub fn sends_to_a_peer_that_shut_down_its_side(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    write(&mut peer, b"question");
    peer.shut_down();
    harness.expect(socket, b"question");
    harness.expect_end(socket);
    harness.send(socket, b"answer".to_vec());
    harness.engine.close(socket);
    harness.turn_until_quiet();
    assert_eq!(peer.read_rest(), b"answer");
}

pub fn shuts_down_after_the_send_in_flight(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    for (len, last) in [(5, false), (5, true), (MEGABYTES, false), (MEGABYTES, true)] {
        let (mut peer, socket) = harness.connect(address);
        let pending =
            matches!(harness.start_send(socket, pattern(len).into(), last), SendState::Pending);
        harness.engine.shutdown(socket);
        let mut end = peer.try_clone().unwrap();
        let reader = thread::spawn(move || end.read_rest());
        if pending {
            harness.expect_sent(socket).1.unwrap();
        }
        harness.turn_until(|_| reader.is_finished().then_some(()));
        assert!(reader.join().unwrap() == pattern(len));
        // The other direction is unaffected.
        write(&mut peer, b"still here");
        harness.expect(socket, b"still here");
    }
}

/// A reset after more bytes than one read of the kernel, while nothing is received: the kernel may
/// then report the bytes alone.
pub fn reports_a_reset_after_bytes_when_checked(harness: &mut Harness<impl Engine>) {
    let (_, address) = harness.listen();
    let bytes = pattern(MEGABYTES);
    for _ in 0..3 {
        let (mut peer, socket) = harness.connect(address);
        let warm = bytes.clone();
        let warming = thread::spawn(move || {
            // The kernel enlarges the buffer of a socket that is read quickly.
            write(&mut peer, &warm);
            peer
        });
        harness.turn_until(|harness| (harness.bytes(socket).len() == MEGABYTES).then_some(()));
        let mut peer = warming.join().unwrap();
        harness.engine.pause(socket);
        harness.turn_until_quiet();
        peer.set_nonblocking(true).unwrap();
        while peer.write(&bytes[..65_536]).is_ok() {}
        peer.reset();
        harness.engine.resume(socket);
        harness.turn_until_quiet();
        harness.engine.check(socket);
        harness.turn_until(|harness| harness.streams[&socket].error.as_ref().map(drop));
        assert!(harness.bytes(socket).len() > MEGABYTES);
        harness.engine.check(socket);
        harness.engine.close(socket);
        harness.engine.check(socket);
        harness.turn();
    }
}

pub fn reports_a_reset(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (peer, socket) = harness.connection();
    peer.reset();
    harness.turn_until(|harness| {
        let stream = harness.streams.get(&socket)?;
        (stream.ended || stream.error.is_some()).then_some(())
    });
    let kind = |error: &io::Error| error.kind();
    assert_eq!(
        harness.streams[&socket].error.as_ref().map(kind),
        Some(io::ErrorKind::ConnectionReset)
    );
    let SendState::Pending = harness.engine.send(socket, b"hello?".to_vec().into()) else {
        panic!("no receiver");
    };
    let (payload, result) = harness.expect_sent(socket);
    assert_eq!((payload.head(), result.is_err()), (&b"hello?"[..], true));
}

pub fn reports_the_peer_address(harness: &mut Harness<impl Engine>) {
    let (peer, socket) = harness.connection();
    match harness.engine.peer(socket) {
        Ok(found) => assert_eq!(found, ucall_engine::Peer::Address(peer.local_addr().unwrap())),
        Err(error) => {
            assert!(!harness.knows_peers);
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        }
    }
}
