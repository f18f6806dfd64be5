//! Connections past the limits: which of them give way, and which are refused.

use std::time::Duration;

use ucall_engine::fake::FakePeer;
use ucall_server::Overflow;

use crate::harness::{Harness, call};

/// Long enough to be quiet before a turn.
const MOMENT: Duration = Duration::from_millis(1);

/// An HTTP request that makes its connection a WebSocket.
const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

#[test]
fn idle_connections_give_way_before_websockets_and_these_before_subscribers() {
    let mut harness = Harness::with(|config| config.connections_max = 4);
    let publisher = harness.worker.publisher();
    // In the order of their last bytes: the idle ones are the last.
    let subscriber = harness.connect();
    subscriber.write(call("echo", "[]", "1").as_bytes());
    let id = subscriber.socket().unwrap();
    publisher.subscribe(id, "topic", Overflow::DropOldest).unwrap();
    let websocket = harness.connect();
    websocket.write(UPGRADE.as_bytes());
    let busy = harness.connect();
    busy.write(call("later", "[]", "1").as_bytes());
    harness.advance(MOMENT);
    let idle = harness.connect();
    idle.write(call("echo", "[]", "1").as_bytes());
    let kept = [&subscriber, &websocket, &busy, &idle];
    let closed = |kept: [&FakePeer; 4]| kept.map(FakePeer::is_closed);
    harness.advance(MOMENT);
    harness.advance(MOMENT);
    // Each newcomer has a call in flight, so it does not give way.
    let mut newcomers = Vec::new();
    for expected in [
        [false, false, false, true],
        [false, true, false, true],
        [true, true, false, true],
        [true, true, false, true],
    ] {
        let newcomer = harness.network.connect();
        newcomer.write(call("later", "[]", "1").as_bytes());
        harness.advance(MOMENT);
        assert_eq!(closed(kept), expected);
        newcomers.push(newcomer);
    }
    let sent = websocket.read();
    // Code 1001, "going away".
    assert!(sent.windows(4).any(|it| it == [0x88, 34, 0x03, 0xE9]), "{}", sent.escape_ascii());
    let last = harness.network.connect();
    harness.advance(MOMENT);
    assert!(last.socket().is_none(), "no connection gives way any more");
}

#[test]
fn the_address_with_the_most_idle_connections_gives_way_first() {
    let mut harness = Harness::with(|config| config.connections_max = 5);
    let oldest = harness.connect();
    let host = "2001:db8::1".parse().unwrap();
    let next = "2001:db8::2".parse().unwrap();
    let crowd = [host, next, host, next].map(|host| {
        let peer = harness.network.connect_from(host);
        harness.advance(MOMENT);
        peer
    });
    harness.advance(MOMENT);
    let mut others = Vec::new();
    for count in 1..=3 {
        let other = harness.network.connect_from([10, 0, 0, count].into());
        other.write(call("later", "[]", "1").as_bytes());
        harness.advance(MOMENT);
        let closed: Vec<bool> = crowd.iter().map(FakePeer::is_closed).collect();
        let expected: Vec<bool> = (0..4).map(|index| index < count).collect();
        assert_eq!((closed, oldest.is_closed()), (expected, false));
        others.push(other);
    }
}

#[test]
fn new_connections_give_way_last() {
    let mut harness = Harness::with(|config| config.connections_max = 2);
    let websocket = harness.connect();
    websocket.write(UPGRADE.as_bytes());
    harness.advance(MOMENT);
    // An engine reports its bytes some turns after it was accepted.
    let new = harness.connect();
    harness.advance(MOMENT);
    let newcomer = harness.network.connect();
    harness.advance(MOMENT);
    assert_eq!([&websocket, &new].map(FakePeer::is_closed), [true, false]);
    // One that stays silent is idle.
    harness.advance(Duration::from_millis(200));
    let last = harness.network.connect();
    harness.advance(MOMENT);
    assert_eq!([&new, &newcomer, &last].map(FakePeer::is_closed), [true, false, false]);
}

#[test]
fn a_peer_has_at_most_max_connections_per_peer() {
    let mut harness = Harness::with(|config| config.peer_connections_max = Some(2));
    let host = "2001:db8::1".parse().unwrap();
    let peers = [host, "2001:db8::2".parse().unwrap()].map(|it| harness.network.connect_from(it));
    harness.turns(2);
    for _ in 0..2 {
        let third = harness.network.connect_from(host);
        harness.turns(2);
        assert!(third.is_closed());
    }
    assert_eq!(harness.worker.handler_mut().warnings.len(), 1, "once a sweep");
    let line = harness.worker.handler_mut().warnings[0].clone();
    assert!(line.contains("2001:db8::/64 has 2 connections"), "{line}");
    let other = harness.network.connect_from("2001:db8:0:1::1".parse().unwrap());
    peers[0].reset();
    harness.turns(2);
    let next = harness.network.connect_from(host);
    harness.turns(2);
    assert_eq!([&peers[1], &other, &next].map(FakePeer::is_closed), [false; 3]);
    assert_eq!(harness.stats().connections, 3);
}
