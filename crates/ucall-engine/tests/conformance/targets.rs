//! Receiving into memory of the caller's.

use std::io;
use std::thread;

use ucall_buffer::Target;
use ucall_engine::Engine;

use crate::harness::{Harness, TestPeer, pattern, write};

pub fn fills_with_bytes_that_arrive_later(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    harness.engine.receive_into(socket, Target::from_vec(Vec::new(), 10));
    harness.turn_until_quiet();
    write(&mut peer, b"01234");
    harness.turn_until(|harness| (harness.engine.filled_bytes(socket) == 5).then_some(()));
    assert!(harness.filled.is_empty());
    write(&mut peer, b"56789after");
    let (target, result) = harness.expect_filled(socket);
    result.unwrap();
    assert_eq!(harness.engine.filled_bytes(socket), 0);
    assert_eq!(target.into_vec(), b"0123456789");
    harness.expect(socket, b"after");
}

/// The peer writes `early` bytes, which are reported but not taken before the target is given, then
/// the rest. Bytes beyond the target arrive in the ordinary way.
pub fn fills_every_mix_of_early_and_late_bytes(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (_, address) = harness.listen();
    for early in [0, 1, 100, 20_000, 70_000] {
        for len in [1, 99, 100, 101, 30_000, 150_000] {
            for surplus in [0, 10, 40_000] {
                let all = pattern(len.max(early) + surplus);
                let (mut peer, socket) = harness.connect(address);
                harness.takes_arrivals = false;
                let before = harness.arrivals;
                write(&mut peer, &all[..early]);
                harness
                    .turn_until(|harness| (early == 0 || harness.arrivals > before).then_some(()));
                harness.engine.receive_into(socket, Target::from_vec(Vec::new(), len));
                harness.takes_arrivals = true;
                let rest = all[early..].to_vec();
                let writer = thread::spawn(move || {
                    write(&mut peer, &rest);
                    peer
                });
                let (target, result) = harness.expect_filled(socket);
                let case = format!("{early} early, {len} wanted, {surplus} too many");
                result.expect(&case);
                assert!(target.into_vec() == all[..len], "{case}");
                harness.expect(socket, &all[len..]);
                writer.join().unwrap().shut_down();
                harness.expect_end(socket);
                harness.engine.close(socket);
            }
        }
    }
}

pub fn fills_one_target_after_another(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    let all = pattern(50_000);
    let bytes = all.clone();
    let writer = thread::spawn(move || {
        write(&mut peer, &bytes);
        peer
    });
    // Whatever is reported between two targets is not taken, and so belongs to the next.
    harness.takes_arrivals = false;
    let mut offset = 0;
    for len in [1, 2, 5000, 20_000, 3, 17_000] {
        let (bytes, result) = harness.fill(socket, len);
        result.unwrap();
        assert!(bytes == all[offset..][..len], "{len} bytes from {offset} on");
        offset += len;
    }
    harness.takes_arrivals = true;
    harness.expect(socket, &all[offset..]);
    drop(writer.join().unwrap());
}

pub fn fills_megabytes(harness: &mut Harness<impl Engine, impl TestPeer>) {
    const LEN: usize = 16 << 20;
    let (mut peer, socket) = harness.connection();
    let writer = thread::spawn(move || {
        write(&mut peer, &pattern(LEN));
        peer
    });
    let (bytes, result) = harness.fill(socket, LEN - harness.bytes(socket).len());
    result.unwrap();
    assert!(bytes == pattern(LEN));
    write(&mut writer.join().unwrap(), b"end");
    harness.expect(socket, b"end");
}

pub fn fills_a_vector_after_its_contents(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    harness.engine.receive_into(socket, Target::from_vec(b"body".to_vec(), 5));
    write(&mut peer, b"guard");
    assert_eq!(harness.expect_filled(socket).0.into_vec(), b"bodyguard");
}

pub fn extra_room_takes_bytes_that_arrive_together(
    harness: &mut Harness<impl Engine, impl TestPeer>,
) {
    let (mut peer, socket) = harness.connection();
    harness.takes_arrivals = false;
    let before = harness.arrivals;
    write(&mut peer, b"0123456789");
    harness.turn_until(|harness| (harness.arrivals > before).then_some(()));
    harness.engine.receive_into(socket, Target::with_extra(b"<".to_vec(), 4, 4));
    harness.takes_arrivals = true;
    let (target, result) = harness.expect_filled(socket);
    result.unwrap();
    assert_eq!(target.into_vec(), b"<01234567");
    harness.expect(socket, b"89");
    // The engine waits for no byte beyond the target's length.
    harness.engine.receive_into(socket, Target::with_extra(Vec::new(), 4, 1000));
    write(&mut peer, b"next");
    let (target, result) = harness.expect_filled(socket);
    result.unwrap();
    assert_eq!(target.into_vec(), b"next");
}

pub fn fills_while_paused(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    harness.engine.pause(socket);
    harness.turn_until_quiet();
    write(&mut peer, b"0123456789after");
    let (bytes, result) = harness.fill(socket, 10);
    result.unwrap();
    assert_eq!(bytes, b"0123456789");
    harness.engine.resume(socket);
    harness.expect(socket, b"after");
}

pub fn returns_an_empty_target_at_once(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    let (bytes, result) = harness.fill(socket, 0);
    result.unwrap();
    assert!(bytes.is_empty());
    write(&mut peer, b"after");
    harness.expect(socket, b"after");
}

pub fn returns_a_target_when_the_stream_ends(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (_, address) = harness.listen();
    for early in [true, false] {
        let (mut peer, socket) = harness.connect(address);
        harness.takes_arrivals = false;
        write(&mut peer, b"half");
        harness.turn_until_quiet();
        if early {
            peer.shut_down();
            harness.turn_until_quiet();
        }
        harness.takes_arrivals = true;
        harness.engine.receive_into(socket, Target::from_vec(Vec::new(), 10));
        harness.turn_until_quiet();
        peer.shut_down();
        let (target, result) = harness.expect_filled(socket);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(target.into_vec(), b"half");
        harness.expect_end(socket);
    }
}

pub fn returns_a_target_of_a_stream_that_has_ended(
    harness: &mut Harness<impl Engine, impl TestPeer>,
) {
    let (mut peer, socket) = harness.connection();
    peer.shut_down();
    harness.expect_end(socket);
    let (bytes, result) = harness.fill(socket, 10);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(bytes.is_empty());
}

pub fn returns_a_target_when_closed(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (_, address) = harness.listen();
    for turns in [0, 1, 4] {
        let (mut peer, socket) = harness.connect(address);
        harness.engine.receive_into(socket, Target::from_vec(Vec::new(), 10));
        write(&mut peer, b"half");
        for _ in 0..turns {
            harness.turn();
        }
        harness.engine.close(socket);
        let (_, result) = harness.expect_filled(socket);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
        harness.turn_until_quiet();
        assert!(harness.filled.is_empty());
    }
}

pub fn refuses_a_second_target_and_returns_it(harness: &mut Harness<impl Engine, impl TestPeer>) {
    let (mut peer, socket) = harness.connection();
    harness.engine.receive_into(socket, Target::from_vec(Vec::new(), 4));
    let (_, result) = harness.fill(socket, 10);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    write(&mut peer, b"1234");
    assert_eq!(harness.expect_filled(socket).0.into_vec(), b"1234");
}
