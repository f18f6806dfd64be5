//! The worker on the fake engine: calls, connections, large bodies and drains. Other parts have
//! modules of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod admission_queues;
mod brokers;
mod datagram_limits;
mod datagrams;
mod eviction;
mod faults;
mod frames;
mod growth;
mod harness;
mod mcp;
mod memory;
mod native;
mod publishing;
#[cfg(target_os = "linux")]
#[path = "../../../ucall-engine/tests/skipped/mod.rs"]
mod skipped;
mod streams;
mod timeouts;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use harness::{Harness, ScriptedHandler, call, post, reply, text};
use ucall_engine::fake::{Fake, FakePeer, SendMode};
use ucall_proto::RpcError;
use ucall_proto::http1::AccessRules;
use ucall_server::{AnyWorker, Message, Procedures, Worker, WorkerConfig};

#[test]
fn a_call_is_one_receive_and_one_send() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    for number in 0..10 {
        peer.write(call("echo", "[1]", &number.to_string()).as_bytes());
        harness.turn();
        assert_eq!(text(&peer), reply(&number.to_string(), "[1]"));
    }
    assert_eq!((harness.stats().calls, harness.stats().connections), (10, 1));
}

#[test]
fn every_cut_and_every_send_step_gives_the_same_bytes() {
    let requests: String = (0..5).map(|id| post(&call("echo", "[1,2]", &id.to_string()))).collect();
    let mut whole = None;
    for piece_len in [1, 2, 3, 7, 50, requests.len()] {
        for sends in [
            SendMode::AtOnce,
            SendMode::InSteps(usize::MAX),
            SendMode::InSteps(1),
            SendMode::InSteps(100),
        ] {
            let mut harness = Harness::new();
            let peer = harness.connect();
            peer.set_send_mode(sends);
            peer.write_in_pieces(requests.as_bytes(), piece_len);
            harness.turns(2000);
            let sent = text(&peer);
            let expected = whole.get_or_insert_with(|| sent.clone());
            assert_eq!(&sent, expected, "{piece_len} {sends:?}");
        }
    }
}

#[test]
fn a_peer_that_never_reads_is_paused_and_delays_no_other() {
    let mut harness = Harness::with(|config| config.limits.output_bytes_max = 100_000);
    let slow = harness.connect();
    slow.set_send_mode(SendMode::Stalled);
    for id in 0..100 {
        slow.write(call("large", "[20000]", &id.to_string()).as_bytes());
    }
    let quick = harness.connect();
    for id in 0..50 {
        quick.write(call("echo", "[]", &id.to_string()).as_bytes());
        harness.turn();
        assert_eq!(text(&quick), reply(&id.to_string(), "[]"));
    }
    let socket = slow.socket().unwrap();
    assert!(harness.network.is_paused(socket), "reading goes on");
    assert!(slow.unread() > 0);
    assert!(harness.stats().bytes_sent < 25_000, "more than the first reply was handed over");
    slow.set_send_mode(SendMode::InSteps(50_000));
    harness.turns(300);
    let sent = text(&slow);
    assert_eq!(sent.lines().count(), 100);
    for (id, line) in sent.lines().enumerate() {
        assert!(line.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},")));
        assert_eq!(line.len(), reply(&id.to_string(), "").len() - 1 + 20_002);
    }
    assert!(!harness.network.is_paused(socket));
}

#[test]
fn a_deferred_call_is_answered_once_in_any_order() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(
        (call("later", "[]", "1") + &call("echo", "[]", "2") + &call("later", "[]", "3"))
            .as_bytes(),
    );
    harness.turn();
    assert_eq!(text(&peer), reply("2", "[]"));
    harness.complete("3", Ok(b"true".to_vec()));
    assert_eq!(text(&peer), reply("3", "true"));
    harness.complete("3", Ok(b"false".to_vec()));
    harness.complete("1", Err(RpcError::new(7, "no")));
    assert!(text(&peer).contains(r#""id":1,"error":{"code":7,"#));
}

#[test]
fn a_passed_deadline_precedes_an_outcome_of_the_same_turn() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let limited = call("later", "[]", "1").replace("}", r#","_meta":{"timeout_ms":500}}"#);
    peer.write(limited.as_bytes());
    harness.turn();
    let (network, handler) = (harness.network.clone(), harness.worker.handler_mut());
    let (outcomes, token) = (handler.calls.outcomes().clone(), handler.deferred[&b"1"[..]]);
    handler.after_wait = Some(Box::new(move || {
        network.advance(Duration::from_millis(500));
        outcomes.send(token, Ok(b"true".to_vec()));
    }));
    harness.turn();
    assert!(text(&peer).contains(r#""id":1,"error":{"code":-32001,"#));
}

#[test]
fn a_closing_connection_cancels_its_calls_and_late_replies_are_dropped() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let socket = peer.socket().unwrap();
    peer.write(post(&call("later", "[]", "1")).as_bytes());
    harness.turn();
    peer.set_send_mode(SendMode::Failing(ErrorKind::BrokenPipe));
    peer.shut_down();
    harness.turn();
    harness.turn();
    assert!(peer.is_closed());
    assert_eq!(harness.worker.handler_mut().cancelled, [socket]);
    let successor = harness.connect();
    assert_eq!(successor.socket().unwrap().index, socket.index, "the place is used again");
    successor.write(b" ");
    harness.complete("1", Ok(b"1".to_vec()));
    assert_eq!((text(&peer), text(&successor)), (String::new(), String::new()));
}

#[test]
fn a_call_of_an_unknown_method_gets_an_error() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(call("nothing", "[]", "1").as_bytes());
    harness.turn();
    assert!(text(&peer).contains(
        r#""code":-32601,"message":"Method not found","data":"there is no method \"nothing\"""#
    ));
}

#[test]
fn eof_closes_and_frees_a_connection() {
    let mut harness = Harness::new();
    let open = harness.network.open();
    for _ in 0..3 {
        let peer = harness.connect();
        peer.write(call("echo", "[]", "1").as_bytes());
        peer.shut_down();
        harness.turns(3);
        assert_eq!(text(&peer), reply("1", "[]"));
        assert!(peer.is_closed());
    }
    assert_eq!((harness.network.open(), harness.stats().connections), (open, 0));
}

#[test]
fn a_reset_or_a_failing_send_closes_only_its_connection() {
    let mut harness = Harness::new();
    let (reset, failing, good) = (harness.connect(), harness.connect(), harness.connect());
    reset.write(b"{");
    reset.reset();
    failing.set_send_mode(SendMode::Failing(ErrorKind::BrokenPipe));
    failing.write(call("echo", "[]", "1").as_bytes());
    harness.turns(3);
    assert!(reset.is_closed() && failing.is_closed() && !good.is_closed());
    good.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&good), reply("1", "[]"));
}

#[test]
fn a_refusal_is_sent_then_shut_down_then_closed() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.set_send_mode(SendMode::InSteps(10));
    peer.write(b"GARBAGE\n");
    harness.turns(2);
    assert!(!peer.has_ended(), "the reply goes out first");
    harness.turns(50);
    assert!(text(&peer).starts_with("HTTP/1.1 400 "));
    assert!(peer.has_ended() && !peer.is_closed());
    peer.write(b"more that nobody reads");
    harness.turn();
    assert!(!peer.is_closed());
    peer.shut_down();
    harness.turn();
    assert!(peer.is_closed());
}

/// io_uring need not say that a reply is out, and nothing else comes from a peer that has ended.
#[test]
fn a_close_after_a_send_polls_for_its_completion() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.set_send_mode(SendMode::Stalled);
    peer.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    peer.shut_down();
    harness.turn();
    assert!(!peer.is_closed(), "the reply goes out first");
    peer.set_send_mode(SendMode::InSteps(usize::MAX));
    harness.worker.turn(None).unwrap();
    assert_eq!(harness.network.deadline(), Some(harness.now()));
    assert!(text(&peer) == reply("1", "[]") && peer.is_closed());
}

#[test]
fn the_longest_idle_connection_is_evicted_for_a_new_one() {
    let mut harness = Harness::with(|config| config.connections_max = 3);
    let peers = [harness.connect(), harness.connect(), harness.connect()];
    for index in [1, 0, 2] {
        peers[index].write(call("echo", "[]", "1").as_bytes());
        harness.advance(Duration::from_millis(1));
    }
    let new_peer = harness.connect();
    assert_eq!(peers.each_ref().map(FakePeer::is_closed), [false, true, false]);
    new_peer.write(call("echo", "[]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&new_peer), reply("1", "[]"));
}

#[test]
fn without_an_idle_connection_accepting_pauses() {
    let mut harness = Harness::with(|config| config.connections_max = 2);
    let busy = [harness.connect(), harness.connect()];
    for peer in &busy {
        peer.write(call("later", "[]", "1").as_bytes());
    }
    harness.turns(2);
    let third = harness.connect();
    third.write(call("later", "[]", "1").as_bytes());
    harness.turns(2);
    let fourth = harness.connect();
    harness.turns(5);
    assert!(fourth.socket().is_none(), "accepted past the limit");
    busy[0].reset();
    harness.turns(5);
    assert!(fourth.socket().is_some());
}

#[test]
fn connections_accepted_together_do_not_evict_each_other() {
    let mut harness = Harness::with(|config| config.connections_max = 2);
    let busy = [harness.connect(), harness.connect()];
    for peer in &busy {
        peer.write(call("later", "[]", "1").as_bytes());
    }
    harness.turn();
    // All are accepted before any of their calls is read.
    let others: Vec<FakePeer> = (0..10).map(|_| harness.network.connect()).collect();
    for peer in &others {
        peer.write(call("echo", "[]", "1").as_bytes());
    }
    harness.turns(3);
    for peer in others.iter().filter(|peer| peer.socket().is_some()) {
        assert_eq!(text(peer), reply("1", "[]"));
    }
}

#[test]
fn a_failed_accept_is_logged_and_retried() {
    let mut harness = Harness::new();
    harness.network.fail_accept(ErrorKind::OutOfMemory);
    let peer = harness.network.connect();
    harness.turns(3);
    assert!(peer.socket().is_none());
    assert!(harness.worker.handler_mut().warnings[0].contains("cannot accept a connection"));
    harness.turn_until(|_| peer.socket().is_some());
}

#[test]
fn a_failed_accept_evicts_the_longest_idle_connection() {
    let mut harness = Harness::new();
    let peers = [harness.connect(), harness.connect()];
    for index in [1, 0] {
        peers[index].write(call("echo", "[]", "1").as_bytes());
        harness.advance(Duration::from_millis(1));
    }
    harness.network.fail_accept(ErrorKind::OutOfMemory);
    let new_peer = harness.network.connect();
    harness.turns(3);
    assert_eq!(peers.each_ref().map(FakePeer::is_closed), [false, true]);
    assert!(new_peer.socket().is_some());
    assert!(harness.worker.handler_mut().warnings[0].contains("cannot accept a connection"));
}

#[test]
fn a_large_body_arrives_whole_through_a_target() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let params = format!("[\"{}\"]", "y".repeat(300_000));
    let request = post(&call("echo", &params, "1"));
    for piece_len in [1000, 70_000, 300_000] {
        peer.write_in_pieces(request.as_bytes(), piece_len);
        // Another request right behind must not end up in the target.
        peer.write(post(&call("echo", "[2]", "2")).as_bytes());
        harness.turns(400);
        let sent = text(&peer);
        assert!(sent.contains(&params), "{piece_len}");
        assert!(sent.ends_with(reply("2", "[2]").trim_end()), "{piece_len}");
    }
}

#[test]
fn a_truncated_body_closes_the_connection() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    let request = post(&call("echo", &format!("[\"{}\"]", "y".repeat(300_000)), "1"));
    peer.write(&request.as_bytes()[..100_000]);
    harness.turns(3);
    peer.shut_down();
    harness.turns(3);
    assert!(peer.is_closed());
    assert_eq!(harness.stats().connections, 0);
}

#[test]
fn stop_ends_the_turn_that_reads_it() {
    let mut harness = Harness::new();
    harness.worker.mailbox().send(Message::Stop);
    assert!(harness.worker.turn(None).unwrap().stopped);
    assert!(!harness.has_stopped());
}

#[test]
fn late_and_reordered_completions_lose_nothing() {
    let mut harness = Harness::new();
    harness.network.set_reversed(true);
    let peers: Vec<FakePeer> = (0..20).map(|_| harness.connect()).collect();
    harness.network.set_delay(3);
    for round in 0..5 {
        for (index, peer) in peers.iter().enumerate() {
            peer.write_in_pieces(
                call("echo", &format!("[{index}]"), &round.to_string()).as_bytes(),
                17,
            );
        }
    }
    harness.turns(200);
    for (index, peer) in peers.iter().enumerate() {
        let expected: String =
            (0..5).map(|round| reply(&round.to_string(), &format!("[{index}]"))).collect();
        assert_eq!(text(peer), expected);
    }
}

#[test]
fn the_descriptor_of_an_event_loop_ends_one_turn_a_wait() {
    use std::io::Write;
    use std::os::fd::AsFd;
    let (engine, network) = Fake::new();
    let config = WorkerConfig::new(AccessRules::new(true, &[], &[]).unwrap());
    let (procedures, now) = (Arc::new(Procedures::new()), network.now());
    let mut worker = Worker::new(engine, ScriptedHandler::new(now), procedures, config);
    let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
    worker.watch_loop(reader.as_fd()).unwrap();
    writer.write_all(b"x").unwrap();
    worker.unwatch_loop();
    assert!(!worker.turn(Some(now)).unwrap().ready);
    assert!(worker.prepare_to_wait(), "nothing waits");
    worker.mailbox().wake_flag().notify();
    assert!(!worker.prepare_to_wait(), "a message does");
    assert_eq!(worker.deadline(), None);
}

#[test]
fn a_refusal_after_a_deferred_call_waits_for_it() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write((post(&call("later", "[]", "1")) + &post("{")).as_bytes());
    harness.turns(3);
    assert_eq!(text(&peer), "");
    harness.complete("1", Ok(b"true".to_vec()));
    harness.turns(3);
    assert_eq!(text(&peer).matches("HTTP/1.1 200").count(), 2);
}
