//! The promises when a process is killed, closes, or stays away.

use std::time::Duration;

use ucall_buffer::Payload;
use ucall_queue::{
    Acknowledge, Body, DeliveryStatus, Failure, FullPolicy, Identity, Incoming, Options, PutError,
    Receipt, Role, Segment, TakeResult,
};

use crate::hostile::hello;
use crate::pair::{CLIENT, Pair, SERVER, bytes};

pub fn progress(receipt: &Receipt) -> DeliveryStatus {
    match receipt {
        Receipt::One(delivery, number) => delivery.progress(*number),
        Receipt::None(_, failure) => DeliveryStatus::Failed(failure.clone()),
        Receipt::Many(_) => DeliveryStatus::Pending,
    }
}

fn taken() -> Options {
    Options { acknowledge: Acknowledge::Taken, ..Options::default() }
}

#[test]
fn with_ack_taken_a_killed_server_loses_no_untaken_message() {
    let mut pair = Pair::new(taken());
    let receipts: Vec<_> = (0..6u8).map(|number| pair.client.put(&[number])).collect();
    pair.run_until(|pair| pair.server.take().is_some());
    pair.server.take().unwrap();
    pair.run_until(|_| progress(&receipts[1]) == DeliveryStatus::Done);
    pair.kill(SERVER);
    pair.client.put(&[6]);
    let mut received = Vec::new();
    pair.run_until(|pair| {
        received.extend(std::iter::from_fn(|| pair.server.take()));
        received.len() == 5
    });
    let seen: Vec<_> = received.iter().map(|it| (bytes(it)[0], it.redelivered)).collect();
    assert_eq!(seen, [(2, true), (3, true), (4, true), (5, true), (6, false)]);
    pair.run_until(|_| progress(&receipts[5]) == DeliveryStatus::Done);
}

#[test]
fn an_acknowledged_message_can_be_taken_at_once() {
    let mut pair = Pair::new(Options::default());
    pair.client.put(b"first");
    pair.run_until(|pair| pair.server.take().is_some());
    pair.run();
    pair.client.put(b"second");
    pair.client.turn(pair.now);
    pair.server.receive(&mut pair.client.wire, usize::MAX, pair.now);
    let (mut acknowledgement, link) = (Payload::new(), pair.server.link.unwrap());
    pair.server.manager.poll_output(link, &mut acknowledgement, pair.now);
    assert!(!acknowledgement.is_empty());
    // Before the turn has ended.
    assert_eq!(pair.server.take_all(), [b"second"]);
}

#[test]
fn with_ack_received_a_killed_server_loses_its_untaken_messages() {
    let mut pair = Pair::new(Options::default());
    let receipt = pair.client.put(&[0]);
    pair.run_until(|_| progress(&receipt) == DeliveryStatus::Done);
    pair.kill(SERVER);
    let receipt = pair.client.put(&[1]);
    pair.run_until(|_| progress(&receipt) == DeliveryStatus::Done);
    assert_eq!(pair.server.take_all(), [[1]]);
}

#[test]
fn a_reconnected_client_resumes_its_queue() {
    let mut pair = Pair::new(taken());
    pair.client.put(b"here");
    pair.run_until(|pair| pair.server.take().is_some());
    pair.cut();
    let receipts: Vec<_> = (0..3u8).map(|number| pair.server.put(&[number])).collect();
    pair.kill(CLIENT);
    pair.client.put(b"again");
    pair.run_until(|pair| {
        pair.client.inbox.closed().is_none() && !pair.server.take_all().is_empty()
    });
    pair.run();
    assert_eq!(pair.client.take_all(), [[0], [1], [2]]);
    pair.run_until(|_| progress(&receipts[2]) == DeliveryStatus::Done);
}

#[test]
fn an_absent_peer_expires() {
    let mut pair = Pair::new(Options::default());
    pair.client.put(b"here");
    pair.run_until(|pair| pair.server.take().is_some());
    pair.cut();
    pair.client.dial_at = None;
    let receipt = pair.server.put(b"x");
    pair.now += Options::default().expire + Duration::from_secs(2);
    pair.client.dial_at = None;
    pair.turn(0);
    assert_eq!(progress(&receipt), DeliveryStatus::Failed(Failure::Expired));
    assert!(pair.server.outbox.peers().is_empty());
}

#[test]
fn a_silent_link_is_pinged_and_then_closed() {
    let mut pair = Pair::new(Options::default());
    pair.client.put(b"here");
    pair.run_until(|pair| pair.server.take().is_some());
    let keepalive = Options::default().keepalive;
    for _ in 0..10 {
        pair.now += keepalive;
        pair.turn(usize::MAX);
        pair.turn(usize::MAX);
        assert!(pair.client.link.is_some() && pair.server.link.is_some());
    }
    // From now on no byte comes through.
    for _ in 0..10 {
        pair.now += keepalive;
        pair.client.dial_at = None;
        pair.turn(0);
    }
    assert!(pair.client.link.is_none() && pair.server.link.is_none());
}

#[test]
fn a_window_of_one_batch_is_returned_at_any_pace() {
    for length in [0, 100, 1000, 5000] {
        let mut pair = Pair::new(Options { window_bytes: 1, ..Options::default() });
        let count = 700;
        for _ in 0..count {
            pair.client.put(&vec![1; length]);
        }
        let mut received = 0;
        pair.run_until(|pair| {
            received += usize::from(pair.server.take().is_some());
            received == count
        });
    }
}

#[test]
fn receiving_a_long_message_counts_as_a_sign_of_life() {
    let mut pair = Pair::new(Options { window_bytes: 64 << 20, ..Options::default() });
    pair.client.put(b"here");
    pair.run_until(|pair| pair.server.take().is_some());
    pair.run();
    let opened = pair.client.link;
    pair.client.put(&vec![7; 30 << 20]);
    let keepalive = Options::default().keepalive;
    // It arrives over 30 times that long, without any other frame.
    while pair.server.inbox.is_empty() {
        pair.now += keepalive;
        pair.turn(1 << 20);
        assert_eq!(pair.client.link, opened);
    }
    assert_eq!(pair.server.take_all()[0].len(), 30 << 20);
}

#[test]
fn get_reports_the_end_after_both_sides_close() {
    let mut pair = Pair::new(Options::default());
    pair.client.put(b"a");
    pair.run_until(|pair| pair.server.take().is_some());
    pair.client.put(b"b");
    pair.server.put(b"c");
    pair.client.manager.close(pair.now);
    pair.turn(10);
    pair.cut();
    pair.run_until(|pair| pair.client.manager.is_closed());
    assert_eq!(pair.client.take_all(), [b"c"]);
    assert_eq!(pair.server.take_all(), [b"b"]);
    assert!(matches!(pair.client.inbox.take(&[]), TakeResult::Closed(_, Failure::Closed)));
    pair.run_until(|pair| pair.server.outbox.peers().is_empty());
}

#[test]
fn a_full_queue_follows_its_policy() {
    let options = |full| Options { queue_bytes_max: 1000, full, ..Options::default() };
    let mut pair = Pair::new(options(FullPolicy::Error));
    for _ in 0..3 {
        pair.client.put(&[0; 100]);
    }
    let message = ucall_queue::Outgoing::copied(ucall_queue::Encoding::Bytes, &[0; 300]);
    let refused = pair.client.outbox.put(&[], &message);
    assert!(matches!(refused, Err(PutError::Full(None))), "{refused:?}");
    pair.run_until(|pair| pair.server.take_all().len() == 3);
    pair.run();
    assert!(pair.client.outbox.put(&[], &message).is_ok());

    let mut pair = Pair::new(options(FullPolicy::DropOldest));
    let receipts: Vec<_> = (0..9u8).map(|number| pair.client.put(&[number; 100])).collect();
    pair.run_until(|_| progress(&receipts[8]) == DeliveryStatus::Done);
    let received: Vec<_> = pair.server.take_all().iter().map(|it| it[0]).collect();
    assert_eq!(received, [5, 6, 7, 8]);
    for (number, receipt) in receipts.iter().enumerate() {
        let expected = if number < 5 {
            DeliveryStatus::Failed(Failure::Dropped)
        } else {
            DeliveryStatus::Done
        };
        assert_eq!(progress(receipt), expected, "{number}");
    }

    let mut pair = Pair::new(options(FullPolicy::DropNewest));
    let receipts: Vec<_> = (0..6u8).map(|number| pair.client.put(&[number; 100])).collect();
    assert_eq!(progress(&receipts[5]), DeliveryStatus::Failed(Failure::Dropped));
    pair.run_until(|_| progress(&receipts[3]) == DeliveryStatus::Done);
}

#[test]
fn a_cancelled_message_is_skipped_and_the_others_arrive() {
    let mut pair = Pair::new(taken());
    let receipts: Vec<_> = (0..4u8).map(|number| pair.client.put(&vec![number; 20_000])).collect();
    let small: Vec<_> = (4..7u8).map(|number| pair.client.put(&[number])).collect();
    for receipt in [&receipts[1], &receipts[3], &small[2]] {
        let Receipt::One(delivery, number) = receipt else { panic!() };
        assert!(pair.client.outbox.cancel(delivery, *number));
    }
    let mut received = Vec::new();
    pair.run_until(|pair| {
        received.extend(pair.server.take_all().iter().map(|it| it[0]));
        progress(&small[1]) == DeliveryStatus::Done
    });
    assert_eq!(received, [0, 2, 4, 5]);
    let Receipt::One(delivery, number) = &receipts[0] else { panic!() };
    assert!(!pair.client.outbox.cancel(delivery, *number));
}

#[test]
fn a_peer_is_sent_no_more_than_its_window() {
    let options = Options { window_bytes: 100_000, ..Options::default() };
    let mut pair = Pair::new(options);
    let count = 3000;
    for _ in 0..count {
        pair.client.put(&[1; 1000]);
    }
    pair.run();
    let mut received = pair.server.take_all().len();
    assert!(received * 1000 < 300_000, "{received}");
    pair.run_until(|pair| {
        received += pair.server.take_all().len();
        received == count
    });
}

#[test]
fn a_shrinking_window_is_returned() {
    let mut pair = Pair::new(Options { queue_bytes_max: 4 << 20, ..Options::default() });
    pair.client.put(b"here");
    pair.run_until(|pair| pair.server.take().is_some());
    // Each of them takes 128 KiB.
    for number in 0..31 {
        let key = pair.server.manager.open_link(Role::Accepted, pair.now);
        let bytes = hello(Identity([100 + number; 16]));
        pair.server.manager.handle_received(key, &bytes, pair.now).unwrap();
    }
    pair.client.put(b"now it is told");
    pair.run();
    let count = 2000;
    for _ in 0..count {
        pair.client.put(&[1; 1000]);
    }
    let mut received = 0;
    for _ in 0..200 {
        pair.run();
        received += pair.server.take_all().len();
    }
    assert_eq!(received, count + 1);
}

/// Sends messages with a buffer of this length over shared memory, with trust; returns them as the
/// receiver keeps them.
fn receive_by_trust(pair: &mut Pair, count: usize, buffer_bytes: usize) -> Vec<Incoming> {
    for _ in 0..count {
        pair.client.put_segments(&[vec![1; 8], vec![7; buffer_bytes]]);
    }
    let mut received = Vec::new();
    pair.run_until(|pair| {
        received.extend(std::iter::from_fn(|| pair.server.take()));
        received.len() == count
    });
    received
}

#[test]
fn messages_of_many_short_segments_count_what_they_take() {
    let mut pair = Pair::new(Options { window_bytes: 1 << 20, ..Options::default() });
    // Each segment is a byte, and has memory of its own on the other side.
    let message = vec![vec![7; 1]; 1000];
    for _ in 0..200 {
        pair.client.put_segments(&message);
    }
    (0..100).for_each(|_| pair.turn(usize::MAX));
    let received = pair.server.take_all().len();
    assert!((1..30).contains(&received), "{received} messages of 64,000 bytes at once");
    // Both sides count alike, or the receiver would have closed the link.
    let mut rest = 200 - received;
    pair.run_until(|pair| {
        rest -= pair.server.take_all().len();
        rest == 0
    });
}

fn is_viewed(message: &Incoming) -> bool {
    let Body::Many(segments) = &message.body else { panic!("one segment") };
    segments.iter().any(|segment| matches!(segment, Segment::Mapped(_)))
}

#[test]
fn trusted_peers_share_slots_for_short_messages() {
    let mut pair = Pair::shared(Options { trusts_peers: true, ..Options::default() });
    // More at once than there are slots: they wait for one to come back.
    let received = receive_by_trust(&mut pair, 200, 100_000);
    assert!(!received.iter().any(is_viewed));
}

#[test]
fn short_messages_do_not_wait_for_viewed_slots() {
    let mut pair = Pair::shared(Options { trusts_peers: true, ..Options::default() });
    let kept = receive_by_trust(&mut pair, 100, 300_000);
    assert!(kept.iter().all(is_viewed));
    let received = receive_by_trust(&mut pair, 100, 100_000);
    assert!(!received.iter().any(is_viewed));
    drop(kept);
}
