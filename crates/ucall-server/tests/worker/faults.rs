//! Everything that can break under a worker, at every step of an exchange: peers, sends, accepting,
//! and the order and time in which it hears of them.
//!
//! After each fault the same worker must answer the next call and have given back all it held: no
//! connection, no place in the engine, no payload and no target may stay behind.

use std::io::ErrorKind;
use std::time::Duration;

use ucall_engine::fake::{FakePeer, SendMode};

use crate::harness::{Harness, call, post, reply, text};

/// More turns than any exchange here takes that comes in one piece.
const TURNS: usize = 6;
/// A body that goes straight to its place takes this many, or more.
const LARGE_BODY: usize = 100_000;

/// Requests of every kind that there is, by name.
fn exchanges() -> Vec<(&'static str, Vec<u8>)> {
    let sum = |id: &str| call("echo", "[1]", id);
    let batch = format!("[{},{},7]", sum("1"), call("later", "[]", "2"));
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\n";
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n4\r\n{}\r\n{:x}\r\n{}\r\n0\r\nX: y\r\n\r\n",
        &sum("1")[..4],
        sum("1").len() - 4,
        &sum("1")[4..],
    );
    let expecting = post(&sum("1")).replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    let closing = post(&sum("1")).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let texts = [
        ("http", post(&sum("1"))),
        ("pipelined", [post(&sum("1")), post(&call("later", "[]", "2")), post(&sum("3"))].concat()),
        ("batch", post(&batch)),
        ("chunked", chunked),
        ("expecting", expecting),
        ("closing", closing),
        ("refused", post(&sum("1")) + "GARBAGE\r\n\r\n"),
        ("raw", [sum("1"), call("later", "[]", "2"), sum("3")].concat()),
        ("raw batch", batch),
        ("raw, broken", sum("1") + "{]"),
    ];
    texts.map(|(name, text)| (name, text.into_bytes())).into()
}

/// Finishes all deferred calls, as if their handlers had taken until now.
fn complete_all(harness: &mut Harness) {
    let handler = harness.worker.handler_mut();
    let calls = std::mem::take(&mut handler.unfinished).into_iter();
    handler.calls.outcomes().send_all(calls.map(|token| (token, Ok(b"true".to_vec()))));
    harness.turn();
}

/// The worker has given back everything, and answers.
fn check_recovered(harness: &mut Harness, what: &str) {
    complete_all(harness);
    harness.turns(2 * TURNS);
    assert_eq!((harness.stats().connections, harness.network.open()), (0, 1), "{what}: stays open");
    assert_eq!(harness.network.outstanding(), 0, "{what}: is held");
    let peer = harness.connect();
    peer.write(call("echo", "[\"next\"]", "9").as_bytes());
    harness.turns(TURNS);
    assert_eq!(text(&peer), reply("9", "[\"next\"]"), "{what}: the next call");
    peer.shut_down();
    harness.turns(TURNS);
    assert!(peer.is_closed(), "{what}: the next call's connection");
}

type Disconnect = (&'static str, fn(&FakePeer));

const DISCONNECTS: [Disconnect; 5] = [
    ("reset", FakePeer::reset),
    ("ended", FakePeer::shut_down),
    ("ended, then reset", |peer| {
        peer.shut_down();
        peer.reset();
    }),
    ("sends fail, then reset", |peer| {
        peer.set_send_mode(SendMode::Failing(ErrorKind::BrokenPipe));
        peer.reset();
    }),
    ("reads nothing, then reset", |peer| {
        peer.set_send_mode(SendMode::Stalled);
        peer.reset();
    }),
];

#[test]
fn a_request_may_be_cut_between_any_two_bytes() {
    let mut harness = Harness::new();
    for (name, request) in exchanges() {
        for (how, disconnect) in DISCONNECTS {
            for at in 0..=request.len() {
                let peer = harness.connect();
                peer.write(&request[..at]);
                harness.turns(2);
                disconnect(&peer);
                harness.turn();
                check_recovered(&mut harness, &format!("{name}, {how} at {at}"));
            }
        }
    }
}

#[test]
fn a_reply_may_be_cut_between_any_two_bytes() {
    let mut harness = Harness::new();
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::OutOfMemory, ErrorKind::Other];
    for (name, request) in exchanges() {
        for after in 0.. {
            let peer = harness.connect();
            peer.set_send_mode(SendMode::InSteps(1));
            peer.write(&request);
            harness.turn();
            harness.turns(after);
            let is_through = peer.is_closed() || after > 500;
            peer.set_send_mode(SendMode::Failing(kinds[after % kinds.len()]));
            complete_all(&mut harness);
            harness.turns(TURNS);
            peer.reset();
            check_recovered(&mut harness, &format!("{name}, failing after {after}"));
            if is_through {
                break;
            }
        }
    }
}

#[test]
fn a_large_body_may_be_cut_around_its_target() {
    let mut harness = Harness::new();
    let params = format!("[\"{}\"]", "y".repeat(LARGE_BODY));
    let request = post(&call("echo", &params, "1"));
    let head_len = request.find("\r\n\r\n").unwrap() + 4;
    let ends = [head_len - 1, head_len, head_len + 1, LARGE_BODY / 2, request.len() - 1];
    for (how, disconnect) in DISCONNECTS {
        for at in ends.into_iter().chain([request.len()]) {
            for piece_len in [1000, LARGE_BODY] {
                let peer = harness.connect();
                peer.write_in_pieces(&request.as_bytes()[..at], piece_len);
                harness.turns(LARGE_BODY / piece_len + TURNS);
                disconnect(&peer);
                harness.turn();
                check_recovered(&mut harness, &format!("{how} at {at} in {piece_len}"));
            }
        }
    }
}

#[test]
fn spurious_arrivals_change_nothing() {
    for (name, request) in exchanges() {
        let expected = {
            let mut harness = Harness::new();
            let peer = harness.connect();
            peer.write_in_pieces(&request, 5);
            harness.turns(request.len());
            complete_all(&mut harness);
            text(&peer)
        };
        let mut harness = Harness::new();
        let peer = harness.connect();
        peer.report_spuriously(5 * request.len());
        for piece in request.chunks(5) {
            harness.turns(2);
            peer.write(piece);
            harness.turns(2);
        }
        complete_all(&mut harness);
        assert_eq!(text(&peer), expected, "{name}");
        peer.reset();
        check_recovered(&mut harness, name);
    }
}

#[test]
fn accepting_may_fail_in_every_way_repeatedly() {
    let mut harness = Harness::new();
    // One with nothing in flight would have to make room.
    let old = harness.connect();
    old.write(call("later", "[]", "0").as_bytes());
    harness.turn();
    for kind in [ErrorKind::OutOfMemory, ErrorKind::ConnectionAborted, ErrorKind::Other] {
        harness.network.fail_accept(kind);
        let new_peer = harness.network.connect();
        new_peer.write(call("echo", "[]", "1").as_bytes());
        new_peer.shut_down();
        for id in ["1", "2", "3"] {
            old.write(call("echo", "[]", id).as_bytes());
            harness.turn();
            assert_eq!(text(&old), reply(id, "[]"), "{kind}: the others are served");
        }
        // It is tried again by the next sweep.
        let mut received = String::new();
        let waited = harness.turn_until(|_| {
            received += &text(&new_peer);
            received == reply("1", "[]")
        });
        assert!(waited <= Duration::from_secs(1));
    }
    assert_eq!(harness.worker.handler_mut().warnings.len(), 3, "one line for each failure");
    old.shut_down();
    check_recovered(&mut harness, "after failures to accept");
}

/// Chance that is the same each time: the generator of POSIX's `rand_r`.
struct Random(u32);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        (self.0 >> 16) as usize % end
    }
}

/// Any of the things that may happen to a connection.
fn event(peer: &FakePeer, requests: &[(&str, Vec<u8>)], random: &mut Random) {
    let (_, request) = &requests[random.below(requests.len())];
    match random.below(16) {
        0..6 => peer.write_in_pieces(request, 1 + random.below(request.len())),
        6 => peer.write(&request[..random.below(request.len())]),
        7 => peer.write(b"\xff\0\r\n{"),
        8 => peer.shut_down(),
        9 => peer.reset(),
        10 => peer.set_send_mode(SendMode::Stalled),
        11 => peer.set_send_mode(SendMode::InSteps(1 + random.below(100))),
        12 => peer.set_send_mode(SendMode::AtOnce),
        13 => peer.set_send_mode(SendMode::Failing(ErrorKind::BrokenPipe)),
        14 => peer.report_spuriously(3),
        _ => {}
    }
}

#[test]
fn random_faults_leave_nothing_behind() {
    let requests = exchanges();
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut harness = Harness::with(|config| config.connections_max = 10);
        harness.network.set_reversed(seed % 2 == 0);
        harness.network.set_delay(random.below(4));
        let mut peers = Vec::new();
        for _ in 0..400 {
            if peers.len() < 20 {
                peers.push(harness.network.connect());
            }
            let index = random.below(peers.len());
            event(&peers[index], &requests, &mut random);
            if random.below(20) == 0 {
                harness.network.fail_accept(ErrorKind::OutOfMemory);
                complete_all(&mut harness);
            }
            if peers[index].is_closed() {
                peers.swap_remove(index);
            }
            harness.turn();
        }
        for peer in &peers {
            peer.reset();
        }
        harness.network.set_delay(0);
        // Accepting may be paused by a failure; it is tried again within a second.
        harness.turn_until(|harness| {
            complete_all(harness);
            peers.iter().all(FakePeer::is_closed)
        });
        check_recovered(&mut harness, &format!("storm {seed}"));
    }
}
