//! What a worker holds in memory: requests that are refused, and connections that wait.

use ucall_engine::fake::{FakePeer, SendMode};
use ucall_server::{Drain, Message};

use crate::harness::{Harness, call, post, reply, text};

#[test]
fn requests_are_refused_while_unsent_output_exceeds_the_budget() {
    let mut harness = Harness::with(|config| config.limits.held_bytes_max = 1 << 20);
    let (stuck, other) = (harness.connect(), harness.connect());
    stuck.set_send_mode(SendMode::Stalled);
    stuck.write(call("large", "[1100000]", "1").as_bytes());
    harness.turn();
    other.write(call("echo", "[]", "2").as_bytes());
    harness.turn();
    assert!(text(&other).contains("-32003"));
    let http = harness.connect();
    http.write(post(&call("echo", "[]", "2")).as_bytes());
    harness.turn();
    assert!(text(&http).contains(" 503 "));
    stuck.reset();
    harness.turns(2);
    other.write(call("echo", "[]", "3").as_bytes());
    harness.turn();
    assert_eq!(text(&other), reply("3", "[]"));
}

#[test]
fn bytes_of_deferred_calls_count_until_they_are_released() {
    let mut harness = Harness::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peer = harness.connect();
    for (held_bytes, answer) in [(1 << 20, reply("1", "[]")), ((1 << 20) + 1, "-32003".into())] {
        harness.worker.handler_mut().reserve(held_bytes);
        harness.turn();
        peer.write(call("echo", "[]", "1").as_bytes());
        harness.turn();
        assert!(text(&peer).contains(&answer));
    }
    // The turn that finds so comes with the next call, and serves it.
    harness.worker.handler_mut().reserve(0);
    peer.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&peer), reply("1", "[]"));
}

/// Connections, each with a request that has come but for its last bytes, and waits for memory.
fn memory_waiters(harness: &mut Harness, count: usize) -> Vec<FakePeer> {
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let peers: Vec<FakePeer> = (0..count).map(|_| harness.connect()).collect();
    for peer in &peers {
        peer.write(head.as_bytes());
    }
    harness.turns(2);
    harness.worker.handler_mut().reserve(2 << 20);
    harness.turn();
    for peer in &peers {
        peer.write(b"1\r\n \r\n");
    }
    harness.turns(3);
    peers
}

fn completes(harness: &mut Harness, peer: &FakePeer) -> bool {
    let body = call("echo", "[]", "1");
    peer.write(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes());
    harness.turns(5);
    text(peer).contains(reply("1", "[]").trim_end())
}

#[test]
fn one_memory_waiter_at_a_time_resumes_over_the_budget() {
    let mut harness = Harness::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peers = memory_waiters(&mut harness, 5);
    assert_eq!(harness.stats().connections, 5);
    // Nothing of those that wait is read, so each is found to have left when its turn comes.
    peers.iter().for_each(FakePeer::reset);
    harness.turns(20);
    assert_eq!(harness.stats().connections, 0);
    harness.worker.handler_mut().reserve(0);
    let next = harness.connect();
    next.write(post(&call("echo", "[]", "2")).as_bytes());
    harness.turn();
    assert!(text(&next).contains(" 200 "));
}

#[test]
fn memory_waiters_resume_a_few_a_turn() {
    let mut harness = Harness::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peers = memory_waiters(&mut harness, 200);
    harness.worker.handler_mut().reserve(0);
    harness.turn();
    assert!(harness.worker.deadline().is_some_and(|deadline| deadline <= harness.now()));
    harness.turns(5);
    for peer in &peers {
        assert!(completes(&mut harness, peer));
    }
}

#[test]
fn a_worker_that_drains_and_still_serves_may_be_overloaded() {
    let mut harness = Harness::with(|config| config.limits.held_bytes_max = 1 << 20);
    let peer = harness.connect();
    peer.write(call("later", "[]", "0").as_bytes());
    harness.turn();
    harness.worker.mailbox().send(Message::drain(Drain::Serving));
    for (held_bytes, answer) in [(2 << 20, "-32003".into()), (0, reply("1", "[]"))] {
        harness.worker.handler_mut().reserve(held_bytes);
        harness.turn();
        peer.write(call("echo", "[]", "1").as_bytes());
        harness.turn();
        assert!(text(&peer).contains(&answer), "{held_bytes}");
    }
}
