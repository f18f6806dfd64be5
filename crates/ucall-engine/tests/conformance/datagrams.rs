//! Datagram sockets.

use std::net::{SocketAddr, UdpSocket};

use ucall_buffer::{Bytes, Payload};
use ucall_engine::{Engine, Id, SendState};

use crate::harness::{Harness, LOOPBACK, TEST_TIMEOUT, pattern};

fn bound(harness: &mut Harness<impl Engine>) -> (Id, SocketAddr, UdpSocket) {
    let ours = UdpSocket::bind(LOOPBACK).unwrap();
    let address = ours.local_addr().unwrap();
    let id = harness.engine.bind_datagrams(ours).unwrap();
    let peer = UdpSocket::bind(LOOPBACK).unwrap();
    peer.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    (id, address, peer)
}

fn send(harness: &mut Harness<impl Engine>, id: Id, payload: impl Into<Payload>, to: &UdpSocket) {
    match harness.engine.send_to(id, payload.into(), to.local_addr().unwrap()) {
        SendState::Done(_) => {}
        SendState::Pending => harness.expect_sent(id).1.unwrap(),
    }
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
    assert_eq!((socket, &bytes[..], from), (id, &b"hello"[..], peer.local_addr().unwrap()));
    let mut payload = Payload::from(b"in ".to_vec());
    payload.push(Bytes::from_static(b"parts"));
    send(harness, id, payload, &peer);
    assert_eq!(received(&peer), (b"in parts".to_vec(), address));
}

pub fn carries_the_largest_and_the_smallest(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    for len in [0, 1, 1500, 65_507] {
        let bytes = pattern(len);
        peer.send_to(&bytes, address).unwrap();
        assert!(harness.turn_until(|harness| harness.datagrams.pop()).1 == bytes, "{len} bytes in");
        send(harness, id, bytes.clone(), &peer);
        assert!(received(&peer).0 == bytes, "{len} bytes out");
    }
    // A datagram above the maximum fails, and the payload is returned.
    let SendState::Pending =
        harness.engine.send_to(id, pattern(65_508).into(), peer.local_addr().unwrap())
    else {
        panic!("no datagram is that long");
    };
    let (payload, result) = harness.expect_sent(id);
    assert_eq!((payload.len(), result.is_err()), (65_508, true));
}

pub fn carries_bursts_in_order(harness: &mut Harness<impl Engine>) {
    let (id, address, peer) = bound(harness);
    for number in 0..100u8 {
        peer.send_to(&[number], address).unwrap();
    }
    harness.turn_until(|harness| (harness.datagrams.len() == 100).then_some(()));
    let numbers: Vec<_> = harness.datagrams.iter().map(|datagram| datagram.1[0]).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    let mut pending = 0;
    for number in 0..100u8 {
        let to = peer.local_addr().unwrap();
        pending += match harness.engine.send_to(id, vec![number].into(), to) {
            SendState::Done(_) => 0,
            SendState::Pending => 1,
        };
    }
    harness.turn_until(|harness| (harness.sent.len() == pending).then_some(()));
    for number in 0..100u8 {
        assert_eq!(received(&peer).0, [number]);
    }
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
    let to = peer.local_addr().unwrap();
    let pending =
        matches!(harness.engine.send_to(id, b"bye".to_vec().into(), to), SendState::Pending);
    harness.engine.close(id);
    harness.turn_until(|harness| (harness.sent.len() == usize::from(pending)).then_some(()));
    harness.turn_until_quiet();
    assert!(harness.datagrams.is_empty());
    // The descriptor is free again.
    UdpSocket::bind(address).unwrap();
}
