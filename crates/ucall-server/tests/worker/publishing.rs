//! Messages that the server starts: to whom, in which order, and what a slow client costs.

use ucall_engine::Id;
use ucall_engine::fake::{FakePeer, SendMode};
use ucall_proto::Drain;
use ucall_server::{Message, Overflow, ServerMessage, SubscribeError};

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
fn what_a_call_sends_precedes_its_reply_to_a_slow_client() {
    let mut harness = Harness::with(|config| config.limits.output_bytes_max = 10_000);
    let peer = subscriber(&mut harness, "news", Overflow::DropOldest);
    peer.set_send_mode(SendMode::Stalled);
    peer.write(call("echo", "[0]", "6").as_bytes());
    peer.write(call("later", "[]", "7").as_bytes());
    harness.turn();
    let publisher = harness.worker.publisher();
    let long = format!("[\"{}\"]", "x".repeat(20_000));
    publisher.publish(message("news", "[2]"));
    publisher.notify(id(&peer), message("", &long));
    publisher.notify(id(&peer), message("", "[1]"));
    harness.turn();
    harness.complete("7", Ok(b"8".to_vec()));
    // The notification counts as a part of the reply, so the next request waits.
    let calls = harness.stats().calls;
    peer.write(call("echo", "[9]", "9").as_bytes());
    harness.turns(2);
    assert_eq!(harness.stats().calls, calls);
    peer.set_send_mode(SendMode::InSteps(usize::MAX));
    harness.turns(6);
    let expected = [
        reply("6", "[0]"),
        line(&long),
        line("[1]"),
        reply("7", "8"),
        line("[2]"),
        reply("9", "[9]"),
    ];
    assert_eq!(text(&peer), expected.concat());
}

#[test]
fn a_slow_subscriber_holds_no_more_than_its_limit() {
    for (overflow, expected, in_bytes) in [
        (Overflow::DropOldest, "[0][8][9]", false),
        (Overflow::DropOldest, "[0][8][9]", true),
        (Overflow::DropNewest, "[0][1][2]", false),
        (Overflow::DropNewest, "[0][1][2]", true),
        (Overflow::Close, "", false),
        (Overflow::Close, "", true),
    ] {
        let two = line("[1]").len() * 2;
        let mut harness = Harness::with(|config| match in_bytes {
            true => config.limits.waiting_message_bytes_max = two,
            false => config.limits.waiting_messages_max = 2,
        });
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
fn a_topic_with_few_messages_loses_none_to_one_with_many() {
    for overflow in [Overflow::DropNewest, Overflow::Close] {
        let mut harness = Harness::with(|config| config.limits.waiting_messages_max = 4);
        let peer = subscriber(&mut harness, "many", Overflow::DropOldest);
        let publisher = harness.worker.publisher();
        publisher.subscribe(id(&peer), "few", overflow).expect("the limits allow it");
        peer.set_send_mode(SendMode::Stalled);
        for number in 0..10 {
            publisher.publish(message("many", &format!("[{number}]")));
            harness.turns(2);
        }
        publisher.publish(message("few", "[\"first\"]"));
        publisher.publish(message("few", "[\"second\"]"));
        publisher.publish(message("many", "[10]"));
        harness.turns(2);
        peer.set_send_mode(SendMode::AtOnce);
        harness.turns(4);
        let expected = ["[0]", "[9]", "[\"first\"]", "[\"second\"]", "[10]"].map(line).concat();
        assert_eq!(text(&peer), expected, "{overflow:?}");
        assert_eq!(harness.stats().dropped_messages, 8);
    }
}

#[test]
fn messages_of_topics_keep_their_order_for_a_slow_subscriber() {
    let mut harness = Harness::new();
    let peer = subscriber(&mut harness, "a", Overflow::DropOldest);
    let publisher = harness.worker.publisher();
    publisher.subscribe(id(&peer), "b", Overflow::Close).expect("the limits allow it");
    peer.set_send_mode(SendMode::Stalled);
    let topics = ["a", "a", "a", "b", "b", "a", "b"];
    for (number, topic) in topics.iter().enumerate() {
        publisher.publish(message(topic, &format!("[{number}]")));
        harness.turn();
    }
    peer.set_send_mode(SendMode::AtOnce);
    harness.turns(4);
    let expected: String = (0..topics.len()).map(|number| line(&format!("[{number}]"))).collect();
    assert_eq!(text(&peer), expected);
}

#[test]
fn the_end_of_a_send_is_polled_for_while_messages_wait() {
    let mut harness = Harness::new();
    let peer = subscriber(&mut harness, "news", Overflow::DropOldest);
    peer.set_send_mode(SendMode::Stalled);
    for _ in 0..3 {
        let long = format!("[\"{}\"]", "x".repeat(20_000));
        harness.worker.publisher().publish(message("news", &long));
        harness.turns(2);
    }
    peer.set_send_mode(SendMode::InSteps(usize::MAX));
    harness.turn();
    // The second is in flight, and the third waits for its end, which io_uring may not report.
    peer.set_send_mode(SendMode::Stalled);
    let before = harness.stats().system_calls;
    harness.turn();
    assert_eq!(harness.stats().system_calls - before, 2, "a poll, then a wait");
}

#[test]
fn messages_that_wait_are_sent_before_the_connection_ends() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Close] {
        for is_draining in [false, true] {
            let mut harness = Harness::new();
            let peer = subscriber(&mut harness, "news", overflow);
            peer.set_send_mode(SendMode::Stalled);
            for number in 0..3 {
                let long = format!("[\"{number}{}\"]", "x".repeat(20_000));
                harness.worker.publisher().publish(message("news", &long));
                harness.turns(2);
            }
            match is_draining {
                true => harness.worker.mailbox().send(Message::drain(Drain::Refusing)),
                // The last of the connection: it is answered with an error.
                false => peer.write(b"}"),
            }
            harness.turns(2);
            peer.set_send_mode(SendMode::InSteps(usize::MAX));
            harness.turns(8);
            let sent = text(&peer);
            let begins: Vec<_> = sent.lines().map(|line| &line[..42.min(line.len())]).collect();
            let messages = begins.iter().filter(|begin| begin.contains("\"method\":\"m\""));
            assert_eq!(messages.count(), 3, "{overflow:?}: {begins:?}");
        }
    }
}

#[test]
fn a_message_that_waits_for_many_is_reserved_once() {
    let mut harness = Harness::new();
    let budget = harness.worker.handler_mut().calls.budget().clone();
    // With the bytes of the subscriptions so far.
    let (peers, held): (Vec<_>, Vec<_>) = (0..3)
        .map(|_| (subscriber(&mut harness, "news", Overflow::DropOldest), budget.bytes()))
        .unzip();
    for peer in &peers {
        peer.set_send_mode(SendMode::Stalled);
    }
    let publisher = harness.worker.publisher();
    publisher.publish(message("news", "[1]"));
    harness.turns(2);
    assert_eq!(budget.bytes(), held[2], "it is being sent");
    let long = message("news", &format!("[\"{}\"]", "x".repeat(1_000)));
    publisher.publish(long.clone());
    harness.turns(2);
    assert_eq!(budget.bytes(), held[2] + long.bytes().len());
    peers[0].reset();
    peers[1].reset();
    harness.turns(2);
    assert_eq!(budget.bytes(), held[0] + long.bytes().len());
    peers[2].reset();
    harness.turns(2);
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn a_client_of_many_topics_holds_no_more_than_one_of_a_single_topic() {
    let mut harness = Harness::new();
    let peer = client(&mut harness);
    let publisher = harness.worker.publisher();
    let topics: Vec<_> = (0..1_024).map(|number| number.to_string()).collect();
    for topic in &topics {
        let subscribed = publisher.subscribe(id(&peer), topic, Overflow::DropOldest);
        subscribed.expect("the limits allow it");
    }
    harness.turns(2);
    let budget = harness.worker.handler_mut().calls.budget().clone();
    let subscriptions = budget.bytes();
    peer.set_send_mode(SendMode::Stalled);
    let params = format!("[\"{}\"]", "x".repeat(10_000));
    for topic in topics.iter().cycle().take(2 * 1_024) {
        publisher.publish(message(topic, &params));
        harness.turn();
        let held = budget.bytes() - subscriptions;
        assert!(held <= (1 << 20) + 3 * params.len(), "{held}");
    }
    assert!(harness.stats().dropped_messages > 1_900);
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

#[test]
fn subscriptions_hold_at_most_half_of_the_memory() {
    let mut harness = Harness::with(|config| config.limits.held_bytes_max = 8_000);
    let (peer, other) = (client(&mut harness), client(&mut harness));
    let publisher = harness.worker.publisher();
    let subscribe = |peer, topic: &str| publisher.subscribe(id(peer), topic, Overflow::DropOldest);
    let subscribed = ["a", "b", "c", "d"].map(|topic| subscribe(&peer, topic));
    let expected = [Ok(()), Ok(()), Ok(()), Err(SubscribeError::OutOfMemory)];
    assert_eq!(subscribed, expected);
    assert_eq!(subscribe(&other, "a"), Err(SubscribeError::OutOfMemory));
    // All others are served all the while.
    other.write(call("echo", "[2]", "2").as_bytes());
    harness.turn();
    assert_eq!(text(&other), reply("2", "[2]"));
    peer.reset();
    harness.turns(2);
    assert_eq!(subscribe(&other, "a"), Ok(()));
}
