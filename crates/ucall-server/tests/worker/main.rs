//! The worker on the fake engine: what happens when nothing happens at once, and when things break.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod faults;
mod floods;
mod lab;
mod memory;

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::{Lab, Script, call, post, reply, text};
use ucall_engine::fake::{Fake, Peer, Sends};
use ucall_proto::RpcError;
use ucall_proto::http1::AccessRules;
use ucall_server::{Config, Drain, Message, Procedures, Worker};

#[test]
fn a_call_is_one_receive_and_one_send() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    for number in 0..10 {
        peer.write(call("echo", "[1]", &number.to_string()).as_bytes());
        lab.turn();
        assert_eq!(text(&peer), reply(&number.to_string(), "[1]"));
    }
    assert_eq!((lab.stats().calls, lab.stats().connections), (10, 1));
}

#[test]
fn every_cut_and_every_send_step_gives_the_same_bytes() {
    let requests: String = (0..5).map(|id| post(&call("echo", "[1,2]", &id.to_string()))).collect();
    let mut whole = None;
    for piece_len in [1, 2, 3, 7, 50, requests.len()] {
        for sends in
            [Sends::AtOnce, Sends::InSteps(usize::MAX), Sends::InSteps(1), Sends::InSteps(100)]
        {
            let mut lab = Lab::new();
            let peer = lab.connect();
            peer.set_sends(sends);
            peer.write_in_pieces(requests.as_bytes(), piece_len);
            lab.turns(2000);
            let sent = text(&peer);
            let expected = whole.get_or_insert_with(|| sent.clone());
            // The Date may tick between two runs.
            let without_date = |text: &str| -> Vec<String> {
                text.lines().filter(|line| !line.starts_with("Date")).map(str::to_owned).collect()
            };
            assert_eq!(without_date(&sent), without_date(expected), "{piece_len} {sends:?}");
        }
    }
}

#[test]
fn a_peer_that_never_reads_is_read_no_further_and_slows_nobody() {
    let mut lab = Lab::with(|config| config.limits.output_bytes_max = 100_000);
    let slow = lab.connect();
    slow.set_sends(Sends::Stalled);
    for id in 0..100 {
        slow.write(call("large", "[20000]", &id.to_string()).as_bytes());
    }
    let quick = lab.connect();
    for id in 0..50 {
        quick.write(call("echo", "[]", &id.to_string()).as_bytes());
        lab.turn();
        assert_eq!(text(&quick), reply(&id.to_string(), "[]"));
    }
    let socket = slow.socket().unwrap();
    assert!(lab.network.is_paused(socket), "reading goes on");
    assert!(slow.unread() > 0);
    assert!(lab.stats().bytes_sent < 25_000, "more than the first reply was handed over");
    slow.set_sends(Sends::InSteps(50_000));
    lab.turns(300);
    let sent = text(&slow);
    assert_eq!(sent.lines().count(), 100);
    for (id, line) in sent.lines().enumerate() {
        assert!(line.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},")));
        assert_eq!(line.len(), reply(&id.to_string(), "").len() - 1 + 20_002);
    }
    assert!(!lab.network.is_paused(socket));
}

#[test]
fn deferred_replies_come_through_the_mailbox() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    peer.write(
        (call("later", "[]", "1") + &call("echo", "[]", "2") + &call("later", "[]", "3"))
            .as_bytes(),
    );
    lab.turn();
    assert_eq!(text(&peer), reply("2", "[]"));
    lab.complete("3", Ok(b"true".to_vec()));
    assert_eq!(text(&peer), reply("3", "true"));
    lab.complete("3", Ok(b"false".to_vec()));
    lab.complete("1", Err(RpcError::new(7, "no")));
    assert!(text(&peer).contains(r#""id":1,"error":{"code":7,"#));
}

#[test]
fn a_connection_that_closes_cancels_and_late_replies_reach_nobody() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    let socket = peer.socket().unwrap();
    peer.write(post(&call("later", "[]", "1")).as_bytes());
    lab.turn();
    peer.end();
    lab.turn();
    assert!(peer.is_closed());
    assert_eq!(lab.worker.handler_mut().cancelled, [socket]);
    let stranger = lab.connect();
    assert_eq!(stranger.socket().unwrap().index, socket.index, "the place is used again");
    stranger.write(b" ");
    lab.complete("1", Ok(b"1".to_vec()));
    assert_eq!((text(&peer), text(&stranger)), (String::new(), String::new()));
}

#[test]
fn a_call_that_finds_nothing_says_so() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    peer.write(call("nothing", "[]", "1").as_bytes());
    lab.turn();
    assert!(text(&peer).contains(
        r#""code":-32601,"message":"Method not found","data":"there is no method \"nothing\"""#
    ));
}

#[test]
fn the_end_of_a_stream_closes_and_frees() {
    let mut lab = Lab::new();
    let open = lab.network.open();
    for _ in 0..3 {
        let peer = lab.connect();
        peer.write(call("echo", "[]", "1").as_bytes());
        peer.end();
        lab.turns(3);
        assert_eq!(text(&peer), reply("1", "[]"));
        assert!(peer.is_closed());
    }
    assert_eq!((lab.network.open(), lab.stats().connections), (open, 0));
}

#[test]
fn a_reset_or_a_failing_send_closes_only_its_connection() {
    let mut lab = Lab::new();
    let (reset, failing, good) = (lab.connect(), lab.connect(), lab.connect());
    reset.write(b"{");
    reset.reset();
    failing.set_sends(Sends::Failing(ErrorKind::BrokenPipe));
    failing.write(call("echo", "[]", "1").as_bytes());
    lab.turns(3);
    assert!(reset.is_closed() && failing.is_closed() && !good.is_closed());
    good.write(call("echo", "[]", "1").as_bytes());
    lab.turn();
    assert_eq!(text(&good), reply("1", "[]"));
}

#[test]
fn a_refusal_is_sent_then_our_side_ends_then_all_is_closed() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    peer.set_sends(Sends::InSteps(10));
    peer.write(b"GARBAGE\n");
    lab.turns(2);
    assert!(!peer.has_ended(), "the reply goes out first");
    lab.turns(50);
    assert!(text(&peer).starts_with("HTTP/1.1 400 "));
    assert!(peer.has_ended() && !peer.is_closed());
    peer.write(b"more that nobody reads");
    lab.turn();
    assert!(!peer.is_closed());
    peer.end();
    lab.turn();
    assert!(peer.is_closed());
}

/// io_uring need not say that a reply is out, and nothing else comes from a peer that has ended.
#[test]
fn what_is_to_close_behind_a_send_does_not_wait_to_hear_of_it() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    peer.set_sends(Sends::Stalled);
    peer.write(call("echo", "[]", "1").as_bytes());
    lab.turn();
    peer.end();
    lab.turn();
    assert!(!peer.is_closed(), "the reply goes out first");
    peer.set_sends(Sends::InSteps(usize::MAX));
    lab.worker.turn(None).unwrap();
    assert!(lab.network.deadline().is_some_and(|deadline| deadline <= Instant::now()));
    assert!(text(&peer) == reply("1", "[]") && peer.is_closed());
}

#[test]
fn the_longest_idle_connection_makes_room_for_a_newcomer() {
    let mut lab = Lab::with(|config| config.connections_max = 3);
    let peers = [lab.connect(), lab.connect(), lab.connect()];
    for index in [1, 0, 2] {
        peers[index].write(call("echo", "[]", "1").as_bytes());
        lab.turn();
    }
    let newcomer = lab.connect();
    assert_eq!(peers.each_ref().map(Peer::is_closed), [false, true, false]);
    newcomer.write(call("echo", "[]", "1").as_bytes());
    lab.turn();
    assert_eq!(text(&newcomer), reply("1", "[]"));
}

#[test]
fn with_none_idle_accepting_waits_until_one_ends() {
    let mut lab = Lab::with(|config| config.connections_max = 2);
    let busy = [lab.connect(), lab.connect()];
    for peer in &busy {
        peer.write(call("later", "[]", "1").as_bytes());
    }
    lab.turns(2);
    let third = lab.connect();
    third.write(call("later", "[]", "1").as_bytes());
    lab.turns(2);
    let fourth = lab.connect();
    lab.turns(5);
    assert!(fourth.socket().is_none(), "accepted past the limit");
    busy[0].reset();
    lab.turns(5);
    assert!(fourth.socket().is_some());
}

#[test]
fn those_who_come_together_do_not_drive_each_other_out() {
    let mut lab = Lab::with(|config| config.connections_max = 2);
    let busy = [lab.connect(), lab.connect()];
    for peer in &busy {
        peer.write(call("later", "[]", "1").as_bytes());
    }
    lab.turn();
    // All are accepted before any of their calls is read.
    let crowd: Vec<Peer> = (0..10).map(|_| lab.network.connect()).collect();
    for peer in &crowd {
        peer.write(call("echo", "[]", "1").as_bytes());
    }
    lab.turns(3);
    for peer in crowd.iter().filter(|peer| peer.socket().is_some()) {
        assert_eq!(text(peer), reply("1", "[]"));
    }
}

#[test]
fn an_accept_that_fails_is_told_and_tried_again() {
    let mut lab = Lab::new();
    lab.network.fail_accept(ErrorKind::OutOfMemory);
    let peer = lab.network.connect();
    lab.turns(3);
    assert!(peer.socket().is_none());
    assert!(lab.worker.handler_mut().warnings[0].contains("cannot accept a connection"));
    lab.until(|_| peer.socket().is_some());
}

#[test]
fn an_accept_that_fails_takes_the_place_of_the_longest_idle_connection() {
    let mut lab = Lab::new();
    let peers = [lab.connect(), lab.connect()];
    for index in [1, 0] {
        peers[index].write(call("echo", "[]", "1").as_bytes());
        lab.turn();
    }
    lab.network.fail_accept(ErrorKind::OutOfMemory);
    let newcomer = lab.network.connect();
    lab.turns(3);
    assert_eq!(peers.each_ref().map(Peer::is_closed), [false, true]);
    assert!(newcomer.socket().is_some());
    assert!(lab.worker.handler_mut().warnings[0].contains("cannot accept a connection"));
}

#[test]
fn a_peer_that_takes_nothing_is_closed_and_a_slow_one_is_not() {
    until_in_time(Duration::from_secs(1), |pace| {
        let mut lab = Lab::with(|config| config.limits.send_timeout = Duration::from_millis(2500));
        let (stuck, slow) = (lab.connect(), lab.connect());
        stuck.set_sends(Sends::Stalled);
        slow.set_sends(Sends::InSteps(10));
        for peer in [&stuck, &slow] {
            peer.write(call("large", "[100000]", "1").as_bytes());
        }
        lab.until(|_| {
            pace.step();
            stuck.is_closed()
        });
        !slow.is_closed()
    });
}

#[test]
fn a_large_body_arrives_whole_through_a_target() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    let params = format!("[\"{}\"]", "y".repeat(300_000));
    let request = post(&call("echo", &params, "1"));
    for piece_len in [1000, 70_000, 300_000] {
        peer.write_in_pieces(request.as_bytes(), piece_len);
        // Another request right behind must not end up in the target.
        peer.write(post(&call("echo", "[2]", "2")).as_bytes());
        lab.turns(400);
        let sent = text(&peer);
        assert!(sent.contains(&params), "{piece_len}");
        assert!(sent.ends_with(reply("2", "[2]").trim_end()), "{piece_len}");
    }
}

#[test]
fn a_large_body_that_comes_slowly_has_time_and_one_that_stops_has_not() {
    let request = post(&call("echo", &format!("[\"{}\"]", "y".repeat(300_000)), "1"));
    until_in_time(Duration::from_millis(500), |pace| {
        let mut lab = Lab::with(|config| config.limits.body_timeout = Duration::from_millis(1500));
        let (slow, stopped) = (lab.connect(), lab.connect());
        for peer in [&slow, &stopped] {
            peer.write(&request.as_bytes()[..1000]);
        }
        let (began, mut sent) = (Instant::now(), 1000);
        lab.until(|_| {
            pace.step();
            slow.write(&request.as_bytes()[sent..sent + 1]);
            sent += 1;
            stopped.is_closed() && began.elapsed() > Duration::from_secs(4)
        });
        assert!(text(&stopped).contains(" 408 "));
        pace.step();
        slow.write(&request.as_bytes()[sent..]);
        lab.turns(50);
        text(&slow).contains("yyyy")
    });
}

#[test]
fn a_body_cut_short_closes() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    let request = post(&call("echo", &format!("[\"{}\"]", "y".repeat(300_000)), "1"));
    peer.write(&request.as_bytes()[..100_000]);
    lab.turns(3);
    peer.end();
    lab.turns(3);
    assert!(peer.is_closed());
    assert_eq!(lab.stats().connections, 0);
}

#[test]
fn stop_ends_the_turn_that_reads_it() {
    let mut lab = Lab::new();
    lab.worker.mailbox().send(Message::Stop);
    assert!(lab.worker.turn(None).unwrap().stopped);
    assert!(!lab.worker.turn(Some(Instant::now())).unwrap().stopped);
}

#[test]
fn completions_late_and_out_of_order_lose_nothing() {
    let mut lab = Lab::new();
    lab.network.set_reversed(true);
    let peers: Vec<Peer> = (0..20).map(|_| lab.connect()).collect();
    lab.network.set_delay(3);
    for round in 0..5 {
        for (index, peer) in peers.iter().enumerate() {
            peer.write_in_pieces(
                call("echo", &format!("[{index}]"), &round.to_string()).as_bytes(),
                17,
            );
        }
    }
    lab.turns(200);
    for (index, peer) in peers.iter().enumerate() {
        let expected: String =
            (0..5).map(|round| reply(&round.to_string(), &format!("[{index}]"))).collect();
        assert_eq!(text(peer), expected);
    }
}

#[test]
fn a_drain_serves_what_had_come_then_refuses_then_ends() {
    until_in_time(Duration::from_millis(100), |pace| {
        let mut lab = Lab::new();
        let (busy, quiet) = (lab.connect(), lab.connect());
        busy.write(call("later", "[]", "1").as_bytes());
        quiet.write(call("echo", "[]", "1").as_bytes());
        lab.turn();
        assert_eq!(text(&quiet), reply("1", "[]"));
        pace.step();
        lab.worker.mailbox().send(Message::Drain(Drain::Refusing));
        lab.turn();
        busy.write(call("echo", "[2]", "2").as_bytes());
        lab.turn();
        if text(&busy) != reply("2", "[2]") || quiet.is_closed() {
            return false;
        }
        // What comes from here on does so after its caller could know.
        lab.until(|_| quiet.is_closed());
        assert!(!busy.is_closed());
        busy.write(call("echo", "[3]", "3").as_bytes());
        lab.turn();
        assert!(text(&busy).contains(r#""id":3,"error":{"code":-32002,"#));
        lab.complete("1", Ok(b"1".to_vec()));
        assert_eq!(text(&busy), reply("1", "1"));
        busy.end();
        lab.until(|lab| lab.worker.turn(Some(Instant::now())).unwrap().stopped);
        true
    });
}

#[test]
fn a_call_that_came_after_the_last_look_is_answered_although_a_drain_is_late() {
    let mut lab = Lab::new();
    let peer = Rc::new(lab.connect());
    peer.write(call("echo", "[]", "1").as_bytes());
    lab.turn();
    assert_eq!(text(&peer), reply("1", "[]"));
    lab.worker.mailbox().send(Message::Drain(Drain::Refusing));
    lab.turn();
    let late = peer.clone();
    lab.worker.handler_mut().after_wait = Some(Box::new(move || {
        late.write(call("echo", "[]", "2").as_bytes());
        std::thread::sleep(Duration::from_millis(150));
    }));
    lab.turn();
    assert!(lab.worker.handler_mut().after_wait.is_none());
    lab.turn();
    assert!(text(&peer).contains(r#""id":2,"#));
    lab.until(|_| peer.is_closed());
}

#[test]
fn a_drain_ends_in_time_whatever_runs() {
    let mut lab = Lab::with(|config| config.drain_timeout = Duration::from_millis(50));
    let peer = lab.connect();
    peer.write(call("later", "[]", "1").as_bytes());
    lab.turn();
    lab.worker.mailbox().send(Message::Drain(Drain::Refusing));
    lab.turn();
    std::thread::sleep(Duration::from_millis(60));
    assert!(lab.worker.turn(Some(Instant::now())).unwrap().stopped);
}

#[test]
fn a_descriptor_of_an_event_loop_ends_a_turn_once_a_wait() {
    use std::io::Write;
    use std::os::fd::AsFd;
    let (engine, _network) = Fake::new();
    let config = Config::new(AccessRules::new(true, &[], &[]).unwrap());
    let procedures = Arc::new(Procedures::new());
    let mut worker = Worker::new(engine, Script::default(), procedures, config);
    let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
    worker.watch_loop(reader.as_fd()).unwrap();
    writer.write_all(b"x").unwrap();
    worker.unwatch_loop();
    assert!(!worker.turn(Some(Instant::now())).unwrap().ready);
    assert!(worker.rest(), "nothing waits");
    worker.mailbox().send(Message::Look);
    assert!(!worker.rest(), "a message does");
    assert_eq!(worker.deadline(), None);
}

/// Whether a test has kept up with the limits in time that it sets.
struct Pace {
    at: Instant,
    longest: Duration,
}

impl Pace {
    /// From one to the next not long may pass.
    fn step(&mut self) {
        self.longest = self.longest.max(self.at.elapsed());
        self.at = Instant::now();
    }
}

/// Tries what has to be done in time until it holds; that it may not was for want of a processor.
fn until_in_time(step_max: Duration, mut holds: impl FnMut(&mut Pace) -> bool) {
    loop {
        let mut pace = Pace { at: Instant::now(), longest: Duration::ZERO };
        if holds(&mut pace) {
            return;
        }
        pace.step();
        assert!(pace.longest >= step_max, "there was time");
    }
}

#[test]
fn what_is_refused_behind_a_deferred_call_waits_for_it() {
    let mut lab = Lab::new();
    let peer = lab.connect();
    peer.write((post(&call("later", "[]", "1")) + &post("{")).as_bytes());
    lab.turns(3);
    assert_eq!(text(&peer), "");
    lab.complete("1", Ok(b"true".to_vec()));
    lab.turns(3);
    assert_eq!(text(&peer).matches("HTTP/1.1 200").count(), 2);
}
