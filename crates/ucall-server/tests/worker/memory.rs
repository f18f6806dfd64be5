//! What a worker holds in memory: requests that are refused, and connections that wait.

use std::time::Instant;

use ucall_engine::fake::{Peer, Sends};
use ucall_server::{Drain, Message};

use crate::lab::{Lab, call, post, reply, text};

#[test]
fn newcomers_are_refused_while_too_much_waits_to_be_sent() {
    let mut lab = Lab::with(|config| config.limits.held_bytes_max = 1 << 20);
    let (stuck, other) = (lab.connect(), lab.connect());
    stuck.set_sends(Sends::Stalled);
    stuck.write(call("large", "[1100000]", "1").as_bytes());
    lab.turn();
    other.write(call("echo", "[]", "2").as_bytes());
    lab.turn();
    assert!(text(&other).contains("-32003"));
    let http = lab.connect();
    http.write(post(&call("echo", "[]", "2")).as_bytes());
    lab.turn();
    assert!(text(&http).contains(" 503 "));
    stuck.reset();
    lab.turns(2);
    other.write(call("echo", "[]", "3").as_bytes());
    lab.turn();
    assert_eq!(text(&other), reply("3", "[]"));
}

#[test]
fn what_calls_hold_that_wait_counts_until_they_let_go() {
    let mut lab = Lab::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peer = lab.connect();
    for (held_bytes, answer) in [(1 << 20, reply("1", "[]")), ((1 << 20) + 1, "-32003".into())] {
        lab.worker.handler_mut().hold(held_bytes);
        lab.turn();
        peer.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert!(text(&peer).contains(&answer));
    }
    // The turn that finds so comes with the next call, and serves it.
    lab.worker.handler_mut().hold(0);
    peer.write(call("echo", "[]", "1").as_bytes());
    lab.turn();
    assert_eq!(text(&peer), reply("1", "[]"));
}

/// Connections, each with a request that has come but for its last bytes, and waits for memory.
fn starved(lab: &mut Lab, count: usize) -> Vec<Peer> {
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let peers: Vec<Peer> = (0..count).map(|_| lab.connect()).collect();
    for peer in &peers {
        peer.write(head.as_bytes());
    }
    lab.turns(2);
    lab.worker.handler_mut().hold(2 << 20);
    lab.turn();
    for peer in &peers {
        peer.write(b"1\r\n \r\n");
    }
    lab.turns(3);
    peers
}

fn goes_on(lab: &mut Lab, peer: &Peer) -> bool {
    let body = call("echo", "[]", "1");
    peer.write(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes());
    lab.turns(5);
    text(peer).contains(reply("1", "[]").trim_end())
}

#[test]
fn of_those_that_wait_for_memory_one_at_a_time_goes_on() {
    let mut lab = Lab::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peers = starved(&mut lab, 5);
    assert_eq!(lab.stats().connections, 5);
    // Nothing of those that wait is read, so each is found to have left when its turn comes.
    peers.iter().for_each(Peer::reset);
    lab.turns(20);
    assert_eq!(lab.stats().connections, 0);
    lab.worker.handler_mut().hold(0);
    let next = lab.connect();
    next.write(post(&call("echo", "[]", "2")).as_bytes());
    lab.turn();
    assert!(text(&next).contains(" 200 "));
}

#[test]
fn all_that_wait_for_memory_go_on_when_there_is_some_a_few_a_turn() {
    let mut lab = Lab::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peers = starved(&mut lab, 200);
    lab.worker.handler_mut().hold(0);
    lab.turn();
    assert!(lab.worker.deadline().is_some_and(|deadline| deadline <= Instant::now()));
    lab.turns(5);
    for peer in &peers {
        assert!(goes_on(&mut lab, peer));
    }
}

#[test]
fn a_worker_that_drains_and_still_serves_may_be_overloaded() {
    let mut lab = Lab::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peer = lab.connect();
    peer.write(call("later", "[]", "0").as_bytes());
    lab.turn();
    lab.worker.mailbox().send(Message::Drain(Drain::Serving));
    for (held_bytes, answer) in [(2 << 20, "-32003".into()), (0, reply("1", "[]"))] {
        lab.worker.handler_mut().hold(held_bytes);
        lab.turn();
        peer.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert!(text(&peer).contains(&answer), "{held_bytes}");
    }
}
