//! Exactly once and in order, wherever the stream is cut.

use proptest::prelude::*;
use ucall_queue::{Acknowledge, Encoding, Options, Outgoing, Progress, Receipt};

use crate::world::World;

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
    let length = prop_oneof![4 => 0..100usize, 1 => 8000..9000usize, 1 => 30_000..100_000usize];
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
    ) {
        let acknowledge = if taken { Acknowledge::Taken } else { Acknowledge::Received };
        let mut world = World::new(Options { acknowledge, ..Options::default() });
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
                    receipts.push(world.client.put(to_server.last().unwrap()));
                }
                Step::ToClient(length) => {
                    to_client.push(message(to_client.len(), length));
                    receipts.push(world.server.put(to_client.last().unwrap()));
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
    let mut world = World::new(Options::default());
    let parts: Vec<Vec<u8>> = vec![b"stream".to_vec(), vec![], vec![7; 50_000], vec![8; 3]];
    let outgoing = Outgoing {
        encoding: Encoding::Serialized,
        copied: &[],
        parts: parts.iter().cloned().map(Into::into).collect(),
        segments: parts.iter().map(|part| part.len() as u64).collect(),
    };
    world.client.outbox.put(&[], &outgoing).unwrap();
    world.run_until(|world| world.client.link.is_some());
    world.turn(30_000);
    world.cut();
    let mut come = None;
    world.run_until(|world| {
        come = world.server.take();
        come.is_some()
    });
    let Some(ucall_queue::Incoming { body: ucall_queue::Body::Many(segments), .. }) = come else {
        panic!("one piece");
    };
    assert_eq!(segments.iter().map(|it| it.as_slice().to_vec()).collect::<Vec<_>>(), parts);
}
