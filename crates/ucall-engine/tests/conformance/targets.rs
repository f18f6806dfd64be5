//! Receiving into memory of the caller's.

use std::io;
use std::thread;

use ucall_buffer::Target;
use ucall_engine::Engine;

use crate::lab::{Lab, Peer, pattern, write};

pub fn fills_what_comes_later(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    lab.engine.receive_into(socket, Target::from_vec(Vec::new(), 10));
    lab.settle();
    write(&mut peer, b"01234");
    lab.until(|lab| (lab.engine.filled_bytes(socket) == 5).then_some(()));
    assert!(lab.filled.is_empty());
    write(&mut peer, b"56789after");
    let (target, result) = lab.expect_filled(socket);
    result.unwrap();
    assert_eq!(lab.engine.filled_bytes(socket), 0);
    assert_eq!(target.into_vec(), b"0123456789");
    lab.expect(socket, b"after");
}

/// The peer writes `early` bytes that are reported but not taken before the target is given, then
/// the rest; what is too much for the target comes in the ordinary way.
pub fn fills_every_mix_of_early_and_late_bytes(lab: &mut Lab<impl Engine, impl Peer>) {
    let (_, address) = lab.listen();
    for early in [0, 1, 100, 20_000, 70_000] {
        for len in [1, 99, 100, 101, 30_000, 150_000] {
            for surplus in [0, 10, 40_000] {
                let all = pattern(len.max(early) + surplus);
                let (mut peer, socket) = lab.connect(address);
                lab.taking = false;
                let before = lab.arrivals;
                write(&mut peer, &all[..early]);
                lab.until(|lab| (early == 0 || lab.arrivals > before).then_some(()));
                lab.engine.receive_into(socket, Target::from_vec(Vec::new(), len));
                lab.taking = true;
                let rest = all[early..].to_vec();
                let writer = thread::spawn(move || {
                    write(&mut peer, &rest);
                    peer
                });
                let (target, result) = lab.expect_filled(socket);
                let case = format!("{early} early, {len} wanted, {surplus} too many");
                result.expect(&case);
                assert!(target.into_vec() == all[..len], "{case}");
                lab.expect(socket, &all[len..]);
                writer.join().unwrap().end();
                lab.expect_end(socket);
                lab.engine.close(socket);
            }
        }
    }
}

pub fn fills_one_target_after_another(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    let all = pattern(50_000);
    let bytes = all.clone();
    let writer = thread::spawn(move || {
        write(&mut peer, &bytes);
        peer
    });
    // Whatever is reported between two targets is not taken, and so belongs to the next.
    lab.taking = false;
    let mut place = 0;
    for len in [1, 2, 5000, 20_000, 3, 17_000] {
        let (bytes, result) = lab.fill(socket, len);
        result.unwrap();
        assert!(bytes == all[place..][..len], "{len} bytes from {place} on");
        place += len;
    }
    lab.taking = true;
    lab.expect(socket, &all[place..]);
    drop(writer.join().unwrap());
}

pub fn fills_megabytes(lab: &mut Lab<impl Engine, impl Peer>) {
    const LEN: usize = 16 << 20;
    let (mut peer, socket) = lab.connection();
    let writer = thread::spawn(move || {
        write(&mut peer, &pattern(LEN));
        peer
    });
    let (bytes, result) = lab.fill(socket, LEN - lab.bytes(socket).len());
    result.unwrap();
    assert!(bytes == pattern(LEN));
    write(&mut writer.join().unwrap(), b"end");
    lab.expect(socket, b"end");
}

pub fn fills_a_vector_behind_its_contents(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    lab.engine.receive_into(socket, Target::from_vec(b"body".to_vec(), 5));
    write(&mut peer, b"guard");
    assert_eq!(lab.expect_filled(socket).0.into_vec(), b"bodyguard");
}

pub fn spare_room_takes_what_comes_along(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    lab.taking = false;
    let before = lab.arrivals;
    write(&mut peer, b"0123456789");
    lab.until(|lab| (lab.arrivals > before).then_some(()));
    lab.engine.receive_into(socket, Target::with_spare(b"<".to_vec(), 4, 4));
    lab.taking = true;
    let (target, result) = lab.expect_filled(socket);
    result.unwrap();
    assert_eq!(target.into_vec(), b"<01234567");
    lab.expect(socket, b"89");
    // Nothing is waited for beyond what is wanted.
    lab.engine.receive_into(socket, Target::with_spare(Vec::new(), 4, 1000));
    write(&mut peer, b"next");
    let (target, result) = lab.expect_filled(socket);
    result.unwrap();
    assert_eq!(target.into_vec(), b"next");
}

pub fn fills_while_paused(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    lab.engine.pause(socket);
    lab.settle();
    write(&mut peer, b"0123456789after");
    let (bytes, result) = lab.fill(socket, 10);
    result.unwrap();
    assert_eq!(bytes, b"0123456789");
    lab.engine.resume(socket);
    lab.expect(socket, b"after");
}

pub fn returns_an_empty_target_at_once(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    let (bytes, result) = lab.fill(socket, 0);
    result.unwrap();
    assert!(bytes.is_empty());
    write(&mut peer, b"after");
    lab.expect(socket, b"after");
}

pub fn returns_a_target_when_the_stream_ends(lab: &mut Lab<impl Engine, impl Peer>) {
    let (_, address) = lab.listen();
    for early in [true, false] {
        let (mut peer, socket) = lab.connect(address);
        lab.taking = false;
        write(&mut peer, b"half");
        lab.settle();
        if early {
            peer.end();
            lab.settle();
        }
        lab.taking = true;
        lab.engine.receive_into(socket, Target::from_vec(Vec::new(), 10));
        lab.settle();
        peer.end();
        let (target, result) = lab.expect_filled(socket);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(target.into_vec(), b"half");
        lab.expect_end(socket);
    }
}

pub fn returns_a_target_of_a_stream_that_has_ended(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    peer.end();
    lab.expect_end(socket);
    let (bytes, result) = lab.fill(socket, 10);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(bytes.is_empty());
}

pub fn returns_a_target_when_closed(lab: &mut Lab<impl Engine, impl Peer>) {
    let (_, address) = lab.listen();
    for turns in [0, 1, 4] {
        let (mut peer, socket) = lab.connect(address);
        lab.engine.receive_into(socket, Target::from_vec(Vec::new(), 10));
        write(&mut peer, b"half");
        for _ in 0..turns {
            lab.turn();
        }
        lab.engine.close(socket);
        let (_, result) = lab.expect_filled(socket);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
        lab.settle();
        assert!(lab.filled.is_empty());
    }
}

pub fn refuses_a_second_target_and_returns_it(lab: &mut Lab<impl Engine, impl Peer>) {
    let (mut peer, socket) = lab.connection();
    lab.engine.receive_into(socket, Target::from_vec(Vec::new(), 4));
    let (_, result) = lab.fill(socket, 10);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    write(&mut peer, b"1234");
    assert_eq!(lab.expect_filled(socket).0.into_vec(), b"1234");
}
