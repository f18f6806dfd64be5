//! Exactly once and in order, wherever the stream is cut.

use proptest::prelude::*;
use ucall_queue::{Acknowledge, Body, Incoming, Options, Progress, Receipt, Segment};

use crate::world::{Side, World, bytes};

/// What of shared memory a session has.
#[derive(Clone, Copy, Debug)]
enum Memory {
    None,
    Once,
    Again,
}

fn world(memory: Memory, mut options: Options) -> World {
    options.trusts_peers = matches!(memory, Memory::Again);
    match memory {
        Memory::None => World::new(options),
        Memory::Once | Memory::Again => World::shared(options),
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
        Receipt::One(standing, number) => standing.progress(*number) == Progress::Done,
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
        let mut world = world(memory, Options { acknowledge, ..Options::default() });
        // So that the server knows the client, and may put.
        world.client.put(b"");
        world.run_until(|world| !world.server.take_all().is_empty());
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
        let mut receipts = Vec::new();
        for step in steps {
            match step {
                Step::ToServer(length) => {
                    to_server.push(message(to_server.len(), length));
                    receipts.push(put(&world.client, to_server.last().unwrap()));
                }
                Step::ToClient(length) => {
                    to_client.push(message(to_client.len(), length));
                    receipts.push(put(&world.server, to_client.last().unwrap()));
                }
                Step::Turn(most) => world.turn(most),
                Step::Cut => world.cut(),
                Step::Take => {
                    at_server.extend(world.server.take_all());
                    at_client.extend(world.client.take_all());
                }
            }
        }
        world.run_until(|world| {
            at_server.extend(world.server.take_all());
            at_client.extend(world.client.take_all());
            receipts.iter().all(is_done)
        });
        at_server.extend(world.server.take_all());
        at_client.extend(world.client.take_all());
        prop_assert_eq!(at_server, to_server);
        prop_assert_eq!(at_client, to_client);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_window_is_so_small_that_messages_stop(
        window_bytes in 1..200_000usize,
        lengths in prop::collection::vec(
            prop_oneof![3 => 0..200usize, 3 => 0..9000usize, 1 => 30_000..100_000usize], 1..120),
        copies in 1..8usize,
        cancelled in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        takes in 1..20usize,
        taken in any::<bool>(),
    ) {
        let acknowledge = if taken { Acknowledge::Taken } else { Acknowledge::Received };
        let mut world = World::new(Options { acknowledge, window_bytes, ..Options::default() });
        let count = lengths.len() * copies;
        let receipts: Vec<_> = (0..count)
            .map(|number| world.client.put(&message(number, lengths[number % lengths.len()])))
            .collect();
        let mut expected: Vec<_> = (0..count).collect();
        for number in cancelled.iter().map(|index| index.index(count)) {
            let Receipt::One(standing, sequence) = &receipts[number] else { panic!() };
            if world.client.outbox.cancel(standing, *sequence) {
                expected.retain(|&it| it != number);
            }
        }
        let mut come = Vec::new();
        world.run_until(|world| {
            for message in std::iter::from_fn(|| world.server.take()).take(takes) {
                come.push(usize::from_le_bytes(bytes(&message)[..8].try_into().unwrap()));
            }
            come.len() == expected.len()
        });
        prop_assert_eq!(come, expected);
    }
}

#[test]
fn a_cut_after_every_byte_loses_nothing() {
    // The handshake and the first messages, cut after 1, 2, 3, … bytes each way.
    for most in (1..700).step_by(7) {
        let mut world = World::new(Options::default());
        let receipts: Vec<_> =
            (0..5).map(|number| world.client.put(&message(number, 60))).collect();
        for _ in 0..4 {
            world.run_until(|world| world.client.link.is_some());
            world.turn(most);
            world.cut();
        }
        world.run_until(|_| receipts.iter().all(is_done));
        let expected: Vec<_> = (0..5).map(|number| message(number, 60)).collect();
        assert_eq!(world.server.take_all(), expected, "cut after {most} bytes");
    }
}

#[test]
fn buffers_beside_the_stream_come_as_they_were() {
    // What is used once is viewed only if it is longer than what is copied.
    for (memory, length, is_viewed) in [
        (Memory::None, 70_000, false),
        (Memory::Once, 70_000, false),
        (Memory::Once, 5 << 20, true),
        (Memory::Again, 70_000, false),
        (Memory::Again, 300_000, true),
    ] {
        buffers_come(length, is_viewed, world(memory, Options::default()));
    }
}

fn buffers_come(length: usize, is_viewed: bool, mut world: World) {
    let parts: Vec<Vec<u8>> = vec![b"stream".to_vec(), vec![], vec![7; length], vec![8; 3]];
    world.client.put_segments(&parts);
    world.run_until(|world| world.client.link.is_some());
    world.turn(30_000);
    world.cut();
    let mut come = None;
    world.run_until(|world| {
        come = world.server.take();
        come.is_some()
    });
    let Some(Incoming { body: Body::Many(segments), .. }) = come else {
        panic!("one piece");
    };
    let is_mapped = segments.iter().all(|it| matches!(it, Segment::Mapped(_)));
    assert_eq!(is_mapped, is_viewed);
    assert_eq!(segments.iter().map(|it| it.bytes().into_owned()).collect::<Vec<_>>(), parts);
}

#[test]
fn a_slot_is_written_again_only_when_nobody_looks_at_it() {
    let mut world = world(Memory::Again, Options::default());
    let mut held = Vec::new();
    for number in 0..5 {
        world.client.put_segments(&[vec![number; 10], vec![number; 300_000]]);
        world.run_until(|world| {
            held.extend(world.server.take());
            held.len() == usize::from(number) + 1
        });
    }
    let place = |come: &Incoming| match &come.body {
        Body::Many(segments) => segments[1].as_raw().0,
        Body::One(_) => panic!("one piece"),
    };
    for (number, come) in held.iter().enumerate() {
        assert_eq!(bytes(come)[10..], vec![number as u8; 300_000]);
    }
    let places: Vec<_> = held.iter().map(place).collect();
    held.clear();
    world.run();
    world.client.put_segments(&[vec![7; 10], vec![7; 300_000]]);
    world.run_until(|world| {
        held.extend(world.server.take());
        !held.is_empty()
    });
    assert!(places.contains(&place(&held[0])));
}
