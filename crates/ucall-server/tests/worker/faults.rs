//! Everything that can break under a worker, at every step of an exchange: peers, sends, accepting,
//! and the order and time in which it hears of them.
//!
//! After each fault the same worker must answer the next call and have given back all it held: no
//! connection, no place in the engine, no payload and no target may stay behind.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use ucall_engine::fake::{Peer, Sends};
use ucall_server::Message;

use crate::lab::{Lab, call, post, reply, text};

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
fn complete_all(lab: &mut Lab) {
    for call in std::mem::take(&mut lab.worker.handler_mut().unfinished) {
        lab.worker.mailbox().send(Message::Complete(call, Ok(b"true".to_vec())));
    }
    lab.turn();
}

/// The worker has given back everything, and answers.
fn check_sound(lab: &mut Lab, what: &str) {
    complete_all(lab);
    lab.turns(2 * TURNS);
    assert_eq!((lab.stats().connections, lab.network.open()), (0, 1), "{what}: stays open");
    assert_eq!(lab.network.held(), 0, "{what}: is held");
    let peer = lab.connect();
    peer.write(call("echo", "[\"next\"]", "9").as_bytes());
    lab.turns(TURNS);
    assert_eq!(text(&peer), reply("9", "[\"next\"]"), "{what}: the next call");
    peer.end();
    lab.turns(TURNS);
    assert!(peer.is_closed(), "{what}: the next call's connection");
}

type Break = (&'static str, fn(&Peer));

const BREAKS: [Break; 5] = [
    ("reset", Peer::reset),
    ("ended", Peer::end),
    ("ended, then reset", |peer| {
        peer.end();
        peer.reset();
    }),
    ("sends fail, then reset", |peer| {
        peer.set_sends(Sends::Failing(ErrorKind::BrokenPipe));
        peer.reset();
    }),
    ("reads nothing, then reset", |peer| {
        peer.set_sends(Sends::Stalled);
        peer.reset();
    }),
];

#[test]
fn a_request_may_break_off_between_any_two_bytes() {
    let mut lab = Lab::new();
    for (name, request) in exchanges() {
        for (how, break_off) in BREAKS {
            for at in 0..=request.len() {
                let peer = lab.connect();
                peer.write(&request[..at]);
                lab.turns(2);
                break_off(&peer);
                lab.turn();
                check_sound(&mut lab, &format!("{name}, {how} at {at}"));
            }
        }
    }
}

#[test]
fn a_reply_may_break_off_between_any_two_bytes() {
    let mut lab = Lab::new();
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::OutOfMemory, ErrorKind::Other];
    for (name, request) in exchanges() {
        for after in 0.. {
            let peer = lab.connect();
            peer.set_sends(Sends::InSteps(1));
            peer.write(&request);
            lab.turn();
            lab.turns(after);
            let is_through = peer.is_closed() || after > 500;
            peer.set_sends(Sends::Failing(kinds[after % kinds.len()]));
            complete_all(&mut lab);
            lab.turns(TURNS);
            peer.reset();
            check_sound(&mut lab, &format!("{name}, failing after {after}"));
            if is_through {
                break;
            }
        }
    }
}

#[test]
fn a_large_body_may_break_off_around_its_place() {
    let mut lab = Lab::new();
    let params = format!("[\"{}\"]", "y".repeat(LARGE_BODY));
    let request = post(&call("echo", &params, "1"));
    let head_len = request.find("\r\n\r\n").unwrap() + 4;
    let ends = [head_len - 1, head_len, head_len + 1, LARGE_BODY / 2, request.len() - 1];
    for (how, break_off) in BREAKS {
        for at in ends.into_iter().chain([request.len()]) {
            for piece_len in [1000, LARGE_BODY] {
                let peer = lab.connect();
                peer.write_in_pieces(&request.as_bytes()[..at], piece_len);
                lab.turns(LARGE_BODY / piece_len + TURNS);
                break_off(&peer);
                lab.turn();
                check_sound(&mut lab, &format!("{how} at {at} in {piece_len}"));
            }
        }
    }
}

#[test]
fn arrivals_that_are_nothing_change_nothing() {
    for (name, request) in exchanges() {
        let expected = {
            let mut lab = Lab::new();
            let peer = lab.connect();
            peer.write_in_pieces(&request, 5);
            lab.turns(request.len());
            complete_all(&mut lab);
            without_date(&text(&peer))
        };
        let mut lab = Lab::new();
        let peer = lab.connect();
        peer.alarm_falsely(5 * request.len());
        for piece in request.chunks(5) {
            lab.turns(2);
            peer.write(piece);
            lab.turns(2);
        }
        complete_all(&mut lab);
        assert_eq!(without_date(&text(&peer)), expected, "{name}");
        peer.reset();
        check_sound(&mut lab, name);
    }
}

/// The Date may tick between two runs.
fn without_date(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.starts_with("Date")).map(str::to_owned).collect()
}

#[test]
fn accepting_may_fail_in_every_way_and_again() {
    let mut lab = Lab::new();
    // One with nothing under way would have to make room.
    let old = lab.connect();
    old.write(call("later", "[]", "0").as_bytes());
    lab.turn();
    for kind in [ErrorKind::OutOfMemory, ErrorKind::ConnectionAborted, ErrorKind::Other] {
        lab.network.fail_accept(kind);
        let newcomer = lab.network.connect();
        newcomer.write(call("echo", "[]", "1").as_bytes());
        newcomer.end();
        for id in ["1", "2", "3"] {
            old.write(call("echo", "[]", id).as_bytes());
            lab.turn();
            assert_eq!(text(&old), reply(id, "[]"), "{kind}: the others are served");
        }
        // It is tried again when a second has passed.
        let mut heard = String::new();
        lab.until(|_| {
            heard += &text(&newcomer);
            heard == reply("1", "[]")
        });
    }
    assert_eq!(lab.worker.handler_mut().warnings.len(), 3, "one line for each failure");
    old.end();
    check_sound(&mut lab, "after failures to accept");
}

/// Chance that is the same each time: the generator of POSIX's `rand_r`.
struct Chance(u32);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        (self.0 >> 16) as usize % end
    }
}

/// Any of the things that may happen to a connection.
fn happen(peer: &Peer, requests: &[(&str, Vec<u8>)], chance: &mut Chance) {
    let (_, request) = &requests[chance.below(requests.len())];
    match chance.below(16) {
        0..6 => peer.write_in_pieces(request, 1 + chance.below(request.len())),
        6 => peer.write(&request[..chance.below(request.len())]),
        7 => peer.write(b"\xff\0\r\n{"),
        8 => peer.end(),
        9 => peer.reset(),
        10 => peer.set_sends(Sends::Stalled),
        11 => peer.set_sends(Sends::InSteps(1 + chance.below(100))),
        12 => peer.set_sends(Sends::AtOnce),
        13 => peer.set_sends(Sends::Failing(ErrorKind::BrokenPipe)),
        14 => peer.alarm_falsely(3),
        _ => {}
    }
}

#[test]
fn a_storm_of_all_faults_at_once_leaves_nothing_behind() {
    let requests = exchanges();
    for seed in 0..12 {
        let mut chance = Chance(seed);
        let mut lab = Lab::with(|config| config.connections_max = 10);
        lab.network.set_reversed(seed % 2 == 0);
        lab.network.set_delay(chance.below(4));
        let mut peers = Vec::new();
        for _ in 0..400 {
            if peers.len() < 20 {
                peers.push(lab.network.connect());
            }
            let index = chance.below(peers.len());
            happen(&peers[index], &requests, &mut chance);
            if chance.below(20) == 0 {
                lab.network.fail_accept(ErrorKind::OutOfMemory);
                complete_all(&mut lab);
            }
            if peers[index].is_closed() {
                peers.swap_remove(index);
            }
            lab.turn();
        }
        for peer in &peers {
            peer.reset();
        }
        lab.network.set_delay(0);
        // Accepting may be paused by a failure; it is tried again within a second.
        let until = Instant::now() + Duration::from_secs(60);
        while !peers.iter().all(Peer::is_closed) {
            assert!(Instant::now() < until, "storm {seed}: stays open");
            std::thread::sleep(Duration::from_millis(5));
            complete_all(&mut lab);
            lab.turns(20);
        }
        check_sound(&mut lab, &format!("storm {seed}"));
    }
}
