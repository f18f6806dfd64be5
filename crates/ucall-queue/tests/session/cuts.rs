//! Exactly once and in order, wherever the stream is cut.

use proptest::prelude::*;
use ucall_queue::{Acknowledge, Body, DeliveryStatus, Incoming, Options, Receipt, Segment};

use crate::pair::{Pair, Side, bytes};

/// What of shared memory a session has.
#[derive(Clone, Copy, Debug)]
enum Memory {
    None,
    Once,
    Again,
}

fn pair(memory: Memory, mut options: Options) -> Pair {
    options.trusts_peers = matches!(memory, Memory::Again);
    match memory {
        Memory::None => Pair::new(options),
        Memory::Once | Memory::Again => Pair::shared(options),
    }
}

/// Puts a long message in two segments, a short one in one.
fn put(side: &Side, message: &[u8]) -> Receipt {
    if message.len() < 20_000 {
        return side.put(message);
    }
    let (stream, buffer) = message.split_at(100);
    side.put_segments(&[stream.to_vec(), buffer.to_vec()])
}

/// A message of its own length and contents.
fn message(number: usize, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length.max(8), number as u8);
    bytes
}

fn is_done(receipt: &Receipt) -> bool {
    match receipt {
        Receipt::One(delivery, number) => delivery.progress(*number) == DeliveryStatus::Done,
        _ => false,
    }
}

#[derive(Clone, Debug)]
enum Step {
    ToServer(usize),
    ToClient(usize),
    Turn(usize),
    Cut,
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![4 => 0..100usize, 1 => 8000..9000usize, 1 => 30_000..200_000usize];
    let moved = prop_oneof![3 => 1..200usize, 2 => 1000..100_000usize];
    prop_oneof![
        4 => length.clone().prop_map(Step::ToServer),
        2 => length.prop_map(Step::ToClient),
        6 => moved.prop_map(Step::Turn),
        1 => Just(Step::Cut),
        2 => Just(Step::Take),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn messages_arrive_once_and_in_order(
        steps in prop::collection::vec(step(), 1..80),
        taken in any::<bool>(),
        memory in prop_oneof![Just(Memory::None), Just(Memory::Once), Just(Memory::Again)],
    ) {
        let acknowledge = if taken { Acknowledge::Taken } else { Acknowledge::Received };
        let mut pair = pair(memory, Options { acknowledge, ..Options::default() });
        // So that the server knows the client, and may put.
        pair.client.put(b"");
        pair.run_until(|pair| !pair.server.take_all().is_empty());
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        let mut receipts = Vec::new();
        for step in steps {
            match step {
                Step::ToServer(length) => {
                    to_server.push(message(to_server.len(), length));
                    receipts.push(put(&pair.client, to_server.last().unwrap()));
                }
                Step::ToClient(length) => {
                    to_client.push(message(to_client.len(), length));
                    receipts.push(put(&pair.server, to_client.last().unwrap()));
                }
                Step::Turn(most) => pair.turn(most),
                Step::Cut => pair.cut(),
                Step::Take => {
                    at_server.extend(pair.server.take_all());
                    at_client.extend(pair.client.take_all());
                }
            }
        }
        pair.run_until(|pair| {
            at_server.extend(pair.server.take_all());
            at_client.extend(pair.client.take_all());
            receipts.iter().all(is_done)
        });
        at_server.extend(pair.server.take_all());
        at_client.extend(pair.client.take_all());
        prop_assert_eq!(at_server, to_server);
        prop_assert_eq!(at_client, to_client);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn messages_flow_through_any_window(
        window_bytes in 1..200_000usize,
        lengths in prop::collection::vec(
            prop_oneof![3 => 0..200usize, 3 => 0..9000usize, 1 => 30_000..100_000usize], 1..120),
        copies in 1..8usize,
        cancelled in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        takes in 1..20usize,
        taken in any::<bool>(),
    ) {
        let acknowledge = if taken { Acknowledge::Taken } else { Acknowledge::Received };
        let mut pair = Pair::new(Options { acknowledge, window_bytes, ..Options::default() });
        let count = lengths.len() * copies;
        let receipts: Vec<_> = (0..count)
            .map(|number| pair.client.put(&message(number, lengths[number % lengths.len()])))
            .collect();
        let mut expected: Vec<_> = (0..count).collect();
        for number in cancelled.iter().map(|index| index.index(count)) {
            let Receipt::One(delivery, sequence) = &receipts[number] else { panic!() };
            if pair.client.outbox.cancel(delivery, *sequence) {
                expected.retain(|&it| it != number);
            }
        }
        let mut received = Vec::new();
        pair.run_until(|pair| {
            for message in std::iter::from_fn(|| pair.server.take()).take(takes) {
                received.push(usize::from_le_bytes(bytes(&message)[..8].try_into().unwrap()));
            }
            received.len() == expected.len()
        });
        prop_assert_eq!(received, expected);
    }
}

#[test]
fn a_cut_after_every_byte_loses_nothing() {
    // The handshake and the first messages, cut after 1, 2, 3, … bytes each way.
    for most in (1..700).step_by(7) {
        let mut pair = Pair::new(Options::default());
        let receipts: Vec<_> = (0..5).map(|number| pair.client.put(&message(number, 60))).collect();
        for _ in 0..4 {
            pair.run_until(|pair| pair.client.link.is_some());
            pair.turn(most);
            pair.cut();
        }
        pair.run_until(|_| receipts.iter().all(is_done));
        let expected: Vec<_> = (0..5).map(|number| message(number, 60)).collect();
        assert_eq!(pair.server.take_all(), expected, "cut after {most} bytes");
    }
}

#[test]
fn out_of_band_buffers_arrive_unchanged() {
    // Memory that is used once is for messages above the length that is copied.
    for (memory, length, is_viewed) in [
        (Memory::None, 70_000, false),
        (Memory::Once, 70_000, false),
        (Memory::Once, 5 << 20, true),
        (Memory::Again, 70_000, false),
        (Memory::Again, 300_000, true),
    ] {
        buffers_arrive(length, is_viewed, pair(memory, Options::default()));
    }
}

fn buffers_arrive(length: usize, is_viewed: bool, mut pair: Pair) {
    let parts: Vec<Vec<u8>> = vec![b"stream".to_vec(), vec![], vec![7; length], vec![8; 3]];
    pair.client.put_segments(&parts);
    pair.run_until(|pair| pair.client.link.is_some());
    pair.turn(30_000);
    pair.cut();
    let mut received = None;
    pair.run_until(|pair| {
        received = pair.server.take();
        received.is_some()
    });
    let Some(Incoming { body: Body::Many(segments), .. }) = received else {
        panic!("one piece");
    };
    let is_mapped = segments.iter().all(|it| matches!(it, Segment::Mapped(_)));
    assert_eq!(is_mapped, is_viewed);
    assert_eq!(segments.iter().map(|it| it.bytes().into_owned()).collect::<Vec<_>>(), parts);
}

#[test]
fn a_slot_is_reused_only_when_no_view_is_left() {
    let mut pair = pair(Memory::Again, Options::default());
    let mut messages = Vec::new();
    for number in 0..5 {
        pair.client.put_segments(&[vec![number; 10], vec![number; 300_000]]);
        pair.run_until(|pair| {
            messages.extend(pair.server.take());
            messages.len() == usize::from(number) + 1
        });
    }
    let position = |received: &Incoming| match &received.body {
        Body::Many(segments) => segments[1].as_raw().0,
        Body::One(_) => panic!("one piece"),
    };
    for (number, received) in messages.iter().enumerate() {
        assert_eq!(bytes(received)[10..], vec![number as u8; 300_000]);
    }
    let positions: Vec<_> = messages.iter().map(position).collect();
    messages.clear();
    pair.run();
    pair.client.put_segments(&[vec![7; 10], vec![7; 300_000]]);
    pair.run_until(|pair| {
        messages.extend(pair.server.take());
        !messages.is_empty()
    });
    assert!(positions.contains(&position(&messages[0])));
}
