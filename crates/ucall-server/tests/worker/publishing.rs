//! Messages that the server starts: to whom, in which order, and what a slow client costs.

use ucall_engine::Id;
use ucall_engine::fake::{FakePeer, SendMode};
use ucall_server::{Overflow, ServerMessage, SubscribeError};

use crate::harness::{Harness, call, reply, text};

fn message(topic: &str, params: &str) -> ServerMessage {
    ServerMessage::new(topic, "m", Some(params.as_bytes()))
}

fn line(params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{params}}}\n")
}

fn id(peer: &FakePeer) -> Id {
    peer.socket().expect("the peer is connected")
}

/// A client of raw TCP, which has called once.
fn client(harness: &mut Harness) -> FakePeer {
    let peer = harness.connect();
    peer.write(call("echo", "[1]", "1").as_bytes());
    harness.turn();
    assert_eq!(text(&peer), reply("1", "[1]"));
    peer
}

fn subscriber(harness: &mut Harness, topic: &str, overflow: Overflow) -> FakePeer {
    let peer = client(harness);
    let subscribed = harness.worker.publisher().subscribe(id(&peer), topic, overflow);
    subscribed.expect("the limits allow it");
    harness.turn();
    peer
}

#[test]
fn a_message_reaches_the_subscribers_of_its_topic_once() {
    let mut harness = Harness::new();
    let news: Vec<_> =
        (0..9).map(|_| subscriber(&mut harness, "news", Overflow::DropOldest)).collect();
    let other = subscriber(&mut harness, "other", Overflow::Close);
    let publisher = harness.worker.publisher();
    publisher.subscribe(id(&news[0]), "news", Overflow::Close).expect("it replaces the first");
    publisher.publish(message("news", "[1]"));
    publisher.publish(message("news", "[2]"));
    publisher.publish(message("nobody", "[3]"));
    publisher.notify(id(&other), message("", "[4]"));
    harness.turns(2);
    for peer in &news {
        assert_eq!(text(peer), line("[1]") + &line("[2]"));
    }
    assert_eq!(text(&other), line("[4]"));
    assert_eq!(harness.stats().subscriptions, 10);
    publisher.unsubscribe(id(&news[1]), "news");
    publisher.publish(message("news", "[5]"));
    harness.turns(2);
    assert_eq!((text(&news[0]), text(&news[1])), (line("[5]"), String::new()));
    assert_eq!(harness.stats().subscriptions, 9);
}

#[test]
fn a_subscription_ends_with_its_connection() {
    let mut harness = Harness::new();
    let peer = subscriber(&mut harness, "news", Overflow::DropOldest);
    let (publisher, connection) = (harness.worker.publisher(), id(&peer));
    peer.reset();
    harness.turns(3);
    assert_eq!(harness.worker.handler_mut().closed, [connection]);
    assert_eq!(harness.stats().subscriptions, 0);
    // A thread that does not know that yet.
    publisher.subscribe(connection, "news", Overflow::DropOldest).expect("the limits allow it");
    publisher.notify(connection, message("", "[1]"));
    harness.turns(2);
    assert_eq!(harness.worker.handler_mut().closed, [connection, connection]);
    assert_eq!(harness.stats().subscriptions, 0);
}

#[test]
fn a_connection_without_a_subscription_or_session_is_not_reported() {
    let mut harness = Harness::new();
    let (quiet, attached) = (client(&mut harness), client(&mut harness));
    harness.worker.publisher().attach(id(&attached));
    harness.turn();
    let attached_id = id(&attached);
    quiet.reset();
    attached.reset();
    harness.turns(3);
    assert_eq!(harness.worker.handler_mut().closed, [attached_id]);
}

#[test]
fn what_a_call_sends_precedes_its_reply() {
    let mut harness = Harness::new();
    let peer = harness.connect();
    peer.write(call("later", "[]", "7").as_bytes());
    harness.turn();
    harness.worker.publisher().notify(id(&peer), message("", "[1]"));
    harness.complete("7", Ok(b"8".to_vec()));
    harness.turn();
    assert_eq!(text(&peer), line("[1]") + &reply("7", "8"));
}

#[test]
fn a_slow_subscriber_holds_no_more_than_its_limit() {
    for (overflow, expected) in [
        (Overflow::DropOldest, "[0][8][9]"),
        (Overflow::DropNewest, "[0][1][2]"),
        (Overflow::Close, ""),
    ] {
        let two = line("[1]").len() * 2;
        let mut harness = Harness::with(|config| config.limits.stream_bytes_max = two);
        let peer = subscriber(&mut harness, "news", overflow);
        let quick = subscriber(&mut harness, "news", Overflow::Close);
        peer.set_send_mode(SendMode::Stalled);
        let mut received = String::new();
        for number in 0..10 {
            harness.worker.publisher().publish(message("news", &format!("[{number}]")));
            harness.turns(2);
            received += &text(&quick);
        }
        assert_eq!(received.lines().count(), 10);
        assert_eq!(peer.is_closed(), overflow == Overflow::Close, "{overflow:?}");
        let dropped = if overflow == Overflow::Close { 0 } else { 7 };
        assert_eq!(harness.stats().dropped_messages, dropped, "{overflow:?}");
        peer.set_send_mode(SendMode::AtOnce);
        harness.turns(4);
        let numbers = text(&peer).replace("{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":", "");
        if overflow != Overflow::Close {
            assert_eq!(numbers.replace("}\n", ""), expected, "{overflow:?}");
        }
    }
}

#[test]
fn a_burst_loses_no_message_of_a_client_that_reads() {
    let mut harness = Harness::new();
    let peer = subscriber(&mut harness, "news", Overflow::DropOldest);
    peer.set_send_mode(SendMode::InSteps(usize::MAX));
    for number in 0..5_000 {
        harness.worker.publisher().publish(message("news", &format!("[{number}]")));
    }
    harness.turns(100);
    let expected: String = (0..5_000).map(|number| line(&format!("[{number}]"))).collect();
    assert_eq!(text(&peer), expected);
    assert_eq!(harness.stats().dropped_messages, 0);
}

#[test]
fn messages_for_a_busy_worker_are_dropped_past_their_limit() {
    let mut harness = Harness::new();
    let peer = subscriber(&mut harness, "news", Overflow::DropOldest);
    let long = format!("[\"{}\"]", "x".repeat(1 << 20));
    for _ in 0..20 {
        harness.worker.publisher().publish(message("news", &long));
    }
    harness.turns(40);
    let received = text(&peer).lines().count() as u64;
    assert_eq!((received, harness.stats().dropped_messages), (15, 5));
}

#[test]
fn subscriptions_have_limits() {
    let mut harness = Harness::with(|config| {
        config.subscriptions_max = 1;
        config.topic_bytes_max = 4;
    });
    let peer = client(&mut harness);
    let publisher = harness.worker.publisher();
    let subscribe = |topic| publisher.subscribe(id(&peer), topic, Overflow::DropOldest);
    assert_eq!(subscribe("12345"), Err(SubscribeError::TopicTooLong(4)));
    assert_eq!(subscribe("1234"), Ok(()));
    assert_eq!(subscribe("1234"), Ok(()));
    assert_eq!(subscribe("x"), Err(SubscribeError::TooManySubscriptions(1)));
}
