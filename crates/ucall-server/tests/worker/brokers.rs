//! Calls that come through brokers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ucall_proto::Drain;
use ucall_server::{BrokeredCall, BrokeredReplies, MemoryBudget, Message, Reservation, Transport};

use crate::harness::{Harness, call, reply, text};

#[derive(Debug, Default)]
struct Replies(Mutex<Vec<(u64, String)>>);

impl BrokeredReplies for Replies {
    fn reply(&self, number: u64, text: &[u8], reserved: Reservation) {
        let large = if text.len() > MemoryBudget::UNRESERVED_BYTES { text.len() } else { 0 };
        assert_eq!(reserved.bytes(), large);
        self.0.lock().unwrap().push((number, String::from_utf8(text.to_vec()).unwrap()));
    }
}

impl Replies {
    fn echo(self: &Arc<Self>, number: u64, params: &str, has_reply: bool) -> Message {
        Message::Call(Box::new(BrokeredCall {
            number,
            method: "echo".into(),
            params: params.as_bytes().to_vec(),
            head: b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            transport: Transport::Nats,
            has_reply,
            replies: self.clone(),
        }))
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[test]
fn a_turn_runs_some_calls_of_brokers_and_all_of_others() {
    let mut harness = Harness::new();
    let (replies, mailbox) = (Arc::new(Replies::default()), harness.worker.mailbox());
    let peer = harness.connect();
    for number in 1..=100 {
        mailbox.send(replies.echo(number, "[1]", true));
    }
    peer.write(call("echo", "[2]", "7").as_bytes());
    harness.turn();
    assert_eq!(text(&peer), reply("7", "[2]"));
    assert_eq!(replies.len(), 32);
    mailbox.send(Message::CancelCall(70));
    harness.turns(4);
    let sent = replies.0.lock().unwrap();
    let numbers: Vec<u64> = sent.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=100).filter(|it| *it != 70).collect::<Vec<_>>());
    assert_eq!(sent[0].1, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[1]}");
}

#[test]
fn a_notification_that_has_begun_is_reported_without_a_text() {
    let mut harness = Harness::new();
    let (replies, mailbox) = (Arc::new(Replies::default()), harness.worker.mailbox());
    mailbox.send(replies.echo(1, "[1]", false));
    harness.turn();
    assert_eq!(*replies.0.lock().unwrap(), [(1, String::new())]);
}

#[test]
fn a_drain_ends_after_the_calls_of_brokers_that_wait() {
    let mut harness = Harness::new();
    let (replies, mailbox) = (Arc::new(Replies::default()), harness.worker.mailbox());
    for number in 1..=100 {
        mailbox.send(replies.echo(number, "[1]", true));
    }
    let (mode, idle_time, timeout) = (Drain::Serving, Duration::ZERO, None);
    mailbox.send(Message::Drain { mode, idle_time, timeout });
    harness.turn_until(Harness::has_stopped);
    assert_eq!(replies.len(), 100);
}

#[test]
fn the_memory_of_a_long_reply_is_reserved() {
    let mut harness = Harness::new();
    let (replies, mailbox) = (Arc::new(Replies::default()), harness.worker.mailbox());
    mailbox.send(replies.echo(1, &format!("[\"{}\"]", "x".repeat(100_000)), true));
    harness.turn();
    assert!(replies.0.lock().unwrap()[0].1.len() > 100_000);
}
