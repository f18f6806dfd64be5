//! Datagram sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use ucall_engine::{Engine, Id};

use crate::harness::{Harness, LOOPBACK, TEST_TIMEOUT, pattern};

fn bound(harness: &mut Harness<impl Engine>) -> (Id, SocketAddr, UdpSocket) {
    let ours = UdpSocket::bind(LOOPBACK).unwrap();
    let address = ours.local_addr().unwrap();
    let id = harness.engine.bind_datagrams(ours).unwrap();
    (id, address, client())
}

fn client() -> UdpSocket {
    let peer = UdpSocket::bind(LOOPBACK).unwrap();
    peer.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    peer
}

fn send(harness: &mut Harness<impl Engine>, id: Id, bytes: &[u8], to: &UdpSocket) {
    harness.engine.send_to(id, bytes, to.local_addr().unwrap().into());
    harness.engine.flush_datagrams(id);
    harness.turn();
}

fn received(peer: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = vec![0; 1 << 16];
    let (len, from) = peer.recv_from(&mut bytes).unwrap();
    bytes.truncate(len);
    (bytes, from)
}

pub fn carries_datagrams_both_ways(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    peer.send_to(b"hello", address).unwrap();
    let (socket, bytes, from) = harness.turn_until(|harness| harness.datagrams.pop());
    assert_eq!((socket, &bytes[..], from), (id, &b"hello"[..], peer.local_addr().unwrap().into()));
    send(harness, id, b"in parts", &peer);
    assert_eq!(received(&peer), (b"in parts".to_vec(), address));
}

pub fn carries_the_largest_and_the_smallest(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    for len in [0, 1, 1500, 65_507] {
        let bytes = pattern(len);
        peer.send_to(&bytes, address).unwrap();
        assert!(harness.turn_until(|harness| harness.datagrams.pop()).1 == bytes, "{len} bytes in");
        send(harness, id, &bytes, &peer);
        assert!(received(&peer).0 == bytes, "{len} bytes out");
    }
    // A datagram above the maximum is dropped, and those beside it are sent.
    assert_eq!(harness.engine.datagram_drops(id).sent, 0);
    let to = peer.local_addr().unwrap().into();
    harness.engine.send_to(id, b"before", to);
    harness.engine.send_to(id, &pattern(65_508), to);
    send(harness, id, b"after", &peer);
    assert_eq!((received(&peer).0, received(&peer).0), (b"before".to_vec(), b"after".to_vec()));
    harness.turn_until(|harness| (harness.engine.datagram_drops(id).sent == 1).then_some(()));
}

pub fn carries_bursts_in_order(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    for number in 0..100u8 {
        peer.send_to(&[number], address).unwrap();
    }
    harness.turn_until(|harness| (harness.datagrams.len() == 100).then_some(()));
    let numbers: Vec<_> = harness.datagrams.iter().map(|datagram| datagram.1[0]).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    for number in 0..100u8 {
        harness.engine.send_to(id, &[number], peer.local_addr().unwrap().into());
    }
    harness.engine.flush_datagrams(id);
    harness.turn();
    for number in 0..100u8 {
        assert_eq!(received(&peer).0, [number]);
    }
}

/// A turn takes a few datagrams and asks for the others in the next one. The last of these turns
/// takes all that are left and does not know it: a later one is reported all the same.
pub fn reports_again_what_the_caller_has_left(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    harness.takes_datagrams = false;
    for number in 0..200u8 {
        peer.send_to(&[number], address).unwrap();
    }
    let (mut numbers, mut expected) = (Vec::new(), 200);
    while numbers.len() < 201 {
        if numbers.len() == 200 && expected == 200 {
            expected = 201;
            peer.send_to(&[200], address).unwrap();
        }
        let before = harness.datagram_reports;
        harness.turn_until(|harness| (harness.datagram_reports > before).then_some(()));
        for _ in 0..7.min(expected - numbers.len()) {
            match harness.engine.receive_from(id) {
                Ok((bytes, _)) => numbers.push(bytes[0]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        harness.engine.resume(id);
    }
    assert_eq!(numbers, (0..=200).collect::<Vec<_>>());
}

/// A socket that is bound to all addresses, of IPv4 and of both families.
pub fn replies_from_the_address_that_was_asked(harness: &mut Harness<impl Engine>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    for (bind, asked) in [("0.0.0.0:0", "127.0.0.3"), ("[::]:0", "127.0.0.5"), ("[::]:0", "::1")] {
        let ours = match UdpSocket::bind(bind) {
            Ok(ours) => ours,
            Err(error) => {
                println!("skipped {bind}: {error}");
                continue;
            }
        };
        let asked = SocketAddr::new(asked.parse().unwrap(), ours.local_addr().unwrap().port());
        let id = harness.engine.bind_datagrams(ours).unwrap();
        let any: IpAddr = if asked.is_ipv4() { [127, 0, 0, 1].into() } else { asked.ip() };
        let peer = UdpSocket::bind((any, 0)).unwrap();
        peer.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        peer.connect(asked).unwrap();
        peer.send(b"hello").unwrap();
        let (_, _, path) = harness.turn_until(|harness| harness.datagrams.pop());
        assert_eq!(path.local.map(|local| local.ip.to_canonical()), Some(asked.ip()), "{bind}");
        harness.engine.send_to(id, b"there", path);
        harness.engine.flush_datagrams(id);
        harness.turn();
        // A connected socket takes no reply from another address.
        assert_eq!(received(&peer), (b"there".to_vec(), asked), "{bind}");
        harness.engine.close(id);
    }
}

pub fn counts_the_datagrams_that_it_drops(harness: &mut Harness<impl Engine>) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let (id, address, peer) = bound(harness);
    harness.turn_until_quiet();
    harness.takes_datagrams = false;
    // The default buffer of a socket holds fewer, the engine's included.
    for _ in 0..2_000 {
        peer.send_to(&[0; 1_000], address).unwrap();
    }
    harness.takes_datagrams = true;
    harness.engine.resume(id);
    harness.turn_until_quiet();
    // The count comes with the first datagram after the drops.
    peer.send_to(b"later", address).unwrap();
    harness.turn_until(|harness| {
        harness.datagrams.iter().any(|(_, bytes, _)| bytes == b"later").then_some(())
    });
    let (taken, drops) = (harness.datagrams.len() as u64, harness.engine.datagram_drops(id));
    assert_eq!(taken + drops.received, 2_001);
    assert!(drops.received > 0 && drops.sent == 0, "{drops:?}");
}

pub fn many_datagrams_share_system_calls(harness: &mut Harness<impl Engine>) {
    const ROUNDS: u64 = 200;
    const CLIENTS: u64 = 32;
    if !cfg!(target_os = "linux") {
        return;
    }
    let (id, address, peer) = bound(harness);
    harness.turn_until_quiet();
    let before = harness.engine.system_calls();
    for _ in 0..ROUNDS {
        for number in 0..CLIENTS {
            peer.send_to(&[number as u8], address).unwrap();
        }
        let mut answered = 0;
        while answered < CLIENTS {
            harness.turn();
            for (_, bytes, path) in std::mem::take(&mut harness.datagrams) {
                harness.engine.send_to(id, &bytes, path);
                answered += 1;
            }
            harness.engine.flush_datagrams(id);
        }
        harness.turn();
        (0..CLIENTS).for_each(|_| drop(received(&peer)));
    }
    let calls = harness.engine.system_calls() - before;
    let per_datagram = calls as f64 / (ROUNDS * CLIENTS) as f64;
    println!("{per_datagram} system calls a datagram");
    let budget = if harness.has_multishot { 0.3 } else { 1.3 };
    assert!(per_datagram <= budget, "{per_datagram} system calls a datagram");
}

pub fn pauses_and_resumes_datagrams(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    harness.turn_until_quiet();
    harness.engine.pause(id);
    harness.turn_until_quiet();
    peer.send_to(b"hello", address).unwrap();
    harness.turn_until_quiet();
    assert!(harness.datagrams.is_empty());
    harness.engine.resume(id);
    assert_eq!(harness.turn_until(|harness| harness.datagrams.pop()).1, b"hello");
}

pub fn closes_datagrams(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    peer.send_to(b"hello", address).unwrap();
    harness.engine.send_to(id, b"bye", peer.local_addr().unwrap().into());
    harness.engine.close(id);
    // What was queued is sent.
    assert_eq!(received(&peer).0, b"bye");
    harness.turn_until_quiet();
    assert!(harness.datagrams.is_empty());
    // The descriptor is free again.
    UdpSocket::bind(address).unwrap();
}
