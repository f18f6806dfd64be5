//! Streams whose readers are fast, slow or gone.

use ucall_engine::fake::SendMode;
use ucall_server::Overflow;

use crate::harness::{Harness, call, reply, text};

fn stream(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"stream","id":{id},"_meta":{{"progressToken":{id}}}}}"#)
}

fn item(id: u32, value: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"$/progress\",\
        \"params\":{{\"token\":{id},\"value\":{value}}}}}\n"
    )
}

/// A value whose item is longer than a kilobyte.
fn kilobyte(number: usize) -> String {
    format!("\"{number} {}\"", "x".repeat(1_000))
}

impl Harness {
    pub fn items(
        &mut self,
        id: &str,
        overflow: Overflow,
        values: impl IntoIterator<Item = String>,
    ) {
        let now = self.now();
        let handler = self.worker.handler_mut();
        let token = handler.deferred[id.as_bytes()];
        handler.items.extend(values.into_iter().map(|value| (token, overflow, value)));
        // The outcome of a call that has ended only wakes the worker.
        let ended = handler.calls.insert(None, None, now, ());
        handler.calls.remove(ended);
        handler.calls.outcomes().send(ended, Ok(Vec::new()));
        self.turn();
    }
}

#[test]
fn items_of_a_turn_leave_in_one_send_before_the_reply() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(stream(1).as_bytes());
    harness.turn();
    harness.items("1", Overflow::Pause, ["1", "2", "3"].map(String::from));
    assert_eq!(text(&peer), [item(1, "1"), item(1, "2"), item(1, "3")].concat());
    harness.complete("1", Ok(b"null".to_vec()));
    assert_eq!(text(&peer), reply("1", "null"));
    assert!(harness.worker.handler_mut().paused.is_empty());
}

#[test]
fn a_slow_reader_pauses_its_stream_and_no_call() {
    let mut harness = Harness::with(|config| config.limits.stream_bytes_max = 4_000);
    let peer = harness.connect();
    peer.write(stream(1).as_bytes());
    harness.turn();
    peer.set_send_mode(SendMode::Stalled);
    harness.items("1", Overflow::Pause, (0..3).map(kilobyte));
    assert!(harness.worker.handler_mut().paused.is_empty(), "these are in flight");
    harness.items("1", Overflow::Pause, (3..8).map(kilobyte));
    assert_eq!(harness.worker.handler_mut().paused.len(), 1);
    assert!(harness.worker.handler_mut().resumed.is_empty());
    // The connection is read on, or a cancel would not be seen.
    peer.write(call("echo", "[5]", "2").as_bytes());
    harness.turn();
    assert_eq!(peer.unread(), 0);
    peer.set_send_mode(SendMode::InSteps(usize::MAX));
    harness.turns(3);
    let mut expected: Vec<String> = (0..8).map(|number| item(1, &kilobyte(number))).collect();
    expected.push(reply("2", "[5]"));
    assert_eq!(text(&peer), expected.concat());
    let handler = harness.worker.handler_mut();
    assert_eq!(handler.resumed, handler.paused);
}

#[test]
fn items_that_wait_do_not_count_as_replies_that_wait() {
    let mut harness = Harness::with(|config| config.limits.output_bytes_max = 1_000);
    let peer = harness.connect();
    peer.write(stream(1).as_bytes());
    harness.turn();
    peer.set_send_mode(SendMode::Stalled);
    harness.items("1", Overflow::Pause, (0..8).map(kilobyte));
    for id in ["2", "3"] {
        peer.write(call("echo", "[5]", id).as_bytes());
        harness.turn();
        assert_eq!(peer.unread(), 0, "{id}");
    }
    assert_eq!(harness.stats().calls, 3);
}

#[test]
fn the_oldest_or_the_newest_items_are_dropped() {
    let numbers = |sent: &str| -> Vec<usize> {
        let values = sent.split("\"value\":\"").skip(1);
        values.map(|value| value.split(' ').next().unwrap().parse().unwrap()).collect()
    };
    for (overflow, is_kept) in
        [(Overflow::DropOldest, [0, 17, 18, 19]), (Overflow::DropNewest, [0, 1, 2, 3])]
    {
        let mut harness = Harness::with(|config| config.limits.stream_bytes_max = 3_100);
        let peer = harness.connect();
        peer.write(stream(1).as_bytes());
        harness.turn();
        peer.set_send_mode(SendMode::Stalled);
        for number in 0..20 {
            harness.items("1", overflow, [kilobyte(number)]);
        }
        assert!(harness.worker.handler_mut().paused.is_empty());
        peer.set_send_mode(SendMode::InSteps(usize::MAX));
        harness.complete("1", Ok(b"null".to_vec()));
        harness.turns(3);
        let sent = text(&peer);
        assert_eq!(numbers(&sent), is_kept, "{overflow:?}");
        assert!(sent.ends_with(&reply("1", "null")), "the reply comes last");
    }
}

#[test]
fn a_reader_that_may_not_be_slow_is_disconnected() {
    let mut harness = Harness::with(|config| config.limits.stream_bytes_max = 3_100);
    let peer = harness.connect();
    peer.write(stream(1).as_bytes());
    harness.turn();
    peer.set_send_mode(SendMode::Stalled);
    for number in 0..6 {
        harness.items("1", Overflow::Close, [kilobyte(number)]);
    }
    assert!(peer.is_closed());
    assert_eq!(harness.worker.handler_mut().cancelled.len(), 1);
}

#[test]
fn what_waits_for_a_reader_that_leaves_is_released() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(stream(1).as_bytes());
    harness.turn();
    peer.set_send_mode(SendMode::Stalled);
    for number in 0..6 {
        harness.items("1", Overflow::DropOldest, [kilobyte(number)]);
    }
    let budget = harness.worker.handler_mut().calls.budget().clone();
    assert!(budget.bytes() > 5_000);
    peer.reset();
    harness.turns(2);
    assert_eq!(budget.bytes(), 0);
    harness.items("1", Overflow::Pause, ["1".to_owned()]);
}

#[test]
fn a_call_is_cancelled_by_its_id_and_its_late_items_are_dropped() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(stream(7).as_bytes());
    harness.turn();
    peer.write(br#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}"#);
    harness.turn();
    let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32800,"message":"Request cancelled"}}"#;
    assert_eq!(text(&peer), format!("{error}\n"));
    assert_eq!(harness.worker.handler_mut().cancelled_calls.len(), 1);
    harness.items("7", Overflow::Pause, ["1".to_owned()]);
    harness.complete("7", Ok(b"1".to_vec()));
    assert_eq!(text(&peer), "");
    // With an id it is a call of a method that does not exist.
    peer.write(call("$/cancelRequest", "[]", "8").as_bytes());
    harness.turn();
    assert!(text(&peer).contains("-32601"));
}

#[test]
fn items_of_many_streams_leave_once_a_turn() {
    let mut harness = Harness::new();
    let peers: Vec<_> = (0..6).map(|_| harness.connect()).collect();
    for (id, peer) in (0..).zip(&peers) {
        peer.write(stream(id).as_bytes());
    }
    harness.turn();
    let handler = harness.worker.handler_mut();
    for value in ["1", "2", "3"] {
        for id in 0..6 {
            let token = handler.deferred[id.to_string().as_bytes()];
            handler.items.push_back((token, Overflow::Pause, value.to_owned()));
        }
    }
    harness.items("0", Overflow::Pause, []);
    for (id, peer) in (0..).zip(&peers) {
        assert_eq!(peer.sends(), 1);
        assert_eq!(text(peer), [item(id, "1"), item(id, "2"), item(id, "3")].concat());
    }
}
