//! What is promised when a process is killed, closes, or stays away.

use std::time::Duration;

use ucall_queue::{
    Acknowledge, Body, Failure, Full, Identity, Incoming, Options, Progress, Receipt, Refusal,
    Role, Segment, Taken,
};

use crate::hostile::hello;
use crate::world::{CLIENT, SERVER, World, bytes};

fn progress(receipt: &Receipt) -> Progress {
    match receipt {
        Receipt::One(standing, number) => standing.progress(*number),
        Receipt::None(_, failure) => Progress::Failed(failure.clone()),
        Receipt::Many(_) => Progress::Pending,
    }
}

fn taken() -> Options {
    Options { acknowledge: Acknowledge::Taken, ..Options::default() }
}

#[test]
fn with_taken_a_killed_server_loses_nothing_that_was_not_taken() {
    let mut world = World::new(taken());
    let receipts: Vec<_> = (0..6u8).map(|number| world.client.put(&[number])).collect();
    world.run_until(|world| world.server.take().is_some());
    world.server.take().unwrap();
    world.run_until(|_| progress(&receipts[1]) == Progress::Done);
    world.kill(SERVER);
    world.client.put(&[6]);
    let mut come = Vec::new();
    world.run_until(|world| {
        come.extend(std::iter::from_fn(|| world.server.take()));
        come.len() == 5
    });
    let seen: Vec<_> = come.iter().map(|it| (bytes(it)[0], it.redelivered)).collect();
    assert_eq!(seen, [(2, true), (3, true), (4, true), (5, true), (6, false)]);
    world.run_until(|_| progress(&receipts[5]) == Progress::Done);
}

#[test]
fn with_received_a_killed_server_takes_what_it_had_not_read_along() {
    let mut world = World::new(Options::default());
    let receipt = world.client.put(&[0]);
    world.run_until(|_| progress(&receipt) == Progress::Done);
    world.kill(SERVER);
    let receipt = world.client.put(&[1]);
    world.run_until(|_| progress(&receipt) == Progress::Done);
    assert_eq!(world.server.take_all(), [[1]]);
}

#[test]
fn a_client_that_comes_back_goes_on_with_its_queue() {
    let mut world = World::new(taken());
    world.client.put(b"here");
    world.run_until(|world| world.server.take().is_some());
    world.cut();
    let receipts: Vec<_> = (0..3u8).map(|number| world.server.put(&[number])).collect();
    world.kill(CLIENT);
    world.client.put(b"again");
    world.run_until(|world| {
        world.client.inbox.closed().is_none() && !world.server.take_all().is_empty()
    });
    world.run();
    assert_eq!(world.client.take_all(), [[0], [1], [2]]);
    world.run_until(|_| progress(&receipts[2]) == Progress::Done);
}

#[test]
fn a_peer_that_stays_away_is_given_up() {
    let mut world = World::new(Options::default());
    world.client.put(b"here");
    world.run_until(|world| world.server.take().is_some());
    world.cut();
    world.client.dial_at = None;
    let receipt = world.server.put(b"x");
    world.now += Options::default().expire + Duration::from_secs(2);
    world.client.dial_at = None;
    world.turn(0);
    assert_eq!(progress(&receipt), Progress::Failed(Failure::Expired));
    assert!(world.server.outbox.peers().is_empty());
}

#[test]
fn a_link_that_is_quiet_is_asked_and_then_given_up() {
    let mut world = World::new(Options::default());
    world.client.put(b"here");
    world.run_until(|world| world.server.take().is_some());
    let keepalive = Options::default().keepalive;
    for _ in 0..10 {
        world.now += keepalive;
        world.turn(usize::MAX);
        world.turn(usize::MAX);
        assert!(world.client.link.is_some() && world.server.link.is_some());
    }
    // From now on no byte comes through.
    for _ in 0..10 {
        world.now += keepalive;
        world.client.dial_at = None;
        world.turn(0);
    }
    assert!(world.client.link.is_none() && world.server.link.is_none());
}

#[test]
fn a_window_of_one_batch_is_given_back_however_slowly_it_is_taken() {
    for length in [0, 100, 1000, 5000] {
        let mut world = World::new(Options { window_bytes: 1, ..Options::default() });
        let count = 700;
        for _ in 0..count {
            world.client.put(&vec![1; length]);
        }
        let mut come = 0;
        world.run_until(|world| {
            come += usize::from(world.server.take().is_some());
            come == count
        });
    }
}

#[test]
fn who_takes_in_a_long_message_shows_that_he_lives() {
    let mut world = World::new(Options { window_bytes: 64 << 20, ..Options::default() });
    world.client.put(b"here");
    world.run_until(|world| world.server.take().is_some());
    world.run();
    let opened = world.client.link;
    world.client.put(&vec![7; 30 << 20]);
    let keepalive = Options::default().keepalive;
    // It comes in over 30 times that, and nobody has anything else to say.
    while world.server.inbox.is_empty() {
        world.now += keepalive;
        world.turn(1 << 20);
        assert_eq!(world.client.link, opened);
    }
    assert_eq!(world.server.take_all()[0].len(), 30 << 20);
}

#[test]
fn both_sides_end_in_order_and_then_get_says_so() {
    let mut world = World::new(Options::default());
    world.client.put(b"a");
    world.run_until(|world| world.server.take().is_some());
    world.client.put(b"b");
    world.server.put(b"c");
    world.client.hub.close(world.now);
    world.turn(10);
    world.cut();
    world.run_until(|world| world.client.hub.is_over());
    assert_eq!(world.client.take_all(), [b"c"]);
    assert_eq!(world.server.take_all(), [b"b"]);
    assert!(matches!(world.client.inbox.take(&[]), Taken::Closed(Failure::Closed)));
    world.run_until(|world| world.server.outbox.peers().is_empty());
}

#[test]
fn a_full_queue_does_what_was_asked() {
    let options = |full| Options { queue_bytes_max: 1000, full, ..Options::default() };
    let mut world = World::new(options(Full::Error));
    for _ in 0..3 {
        world.client.put(&[0; 100]);
    }
    let message = ucall_queue::Outgoing::copied(ucall_queue::Encoding::Bytes, &[0; 300]);
    let refused = world.client.outbox.put(&[], &message);
    assert!(matches!(refused, Err(Refusal::Full(None))), "{refused:?}");
    world.run_until(|world| world.server.take_all().len() == 3);
    world.run();
    assert!(world.client.outbox.put(&[], &message).is_ok());

    let mut world = World::new(options(Full::DropOldest));
    let receipts: Vec<_> = (0..9u8).map(|number| world.client.put(&[number; 100])).collect();
    world.run_until(|_| progress(&receipts[8]) == Progress::Done);
    let came: Vec<_> = world.server.take_all().iter().map(|it| it[0]).collect();
    assert_eq!(came, [5, 6, 7, 8]);
    for (number, receipt) in receipts.iter().enumerate() {
        let expected = if number < 5 { Progress::Failed(Failure::Dropped) } else { Progress::Done };
        assert_eq!(progress(receipt), expected, "{number}");
    }

    let mut world = World::new(options(Full::DropNewest));
    let receipts: Vec<_> = (0..6u8).map(|number| world.client.put(&[number; 100])).collect();
    assert_eq!(progress(&receipts[5]), Progress::Failed(Failure::Dropped));
    world.run_until(|_| progress(&receipts[3]) == Progress::Done);
}

#[test]
fn a_cancelled_message_does_not_arrive_and_the_rest_do() {
    let mut world = World::new(taken());
    let receipts: Vec<_> = (0..4u8).map(|number| world.client.put(&vec![number; 20_000])).collect();
    let small: Vec<_> = (4..7u8).map(|number| world.client.put(&[number])).collect();
    for receipt in [&receipts[1], &receipts[3], &small[2]] {
        let Receipt::One(standing, number) = receipt else { panic!() };
        assert!(world.client.outbox.cancel(standing, *number));
    }
    let mut came = Vec::new();
    world.run_until(|world| {
        came.extend(world.server.take_all().iter().map(|it| it[0]));
        progress(&small[1]) == Progress::Done
    });
    assert_eq!(came, [0, 2, 4, 5]);
    let Receipt::One(standing, number) = &receipts[0] else { panic!() };
    assert!(!world.client.outbox.cancel(standing, *number));
}

#[test]
fn a_peer_that_takes_nothing_is_sent_no_more_than_its_window() {
    let options = Options { window_bytes: 100_000, ..Options::default() };
    let mut world = World::new(options);
    let count = 3000;
    for _ in 0..count {
        world.client.put(&[1; 1000]);
    }
    world.run();
    let mut came = world.server.take_all().len();
    assert!(came * 1000 < 300_000, "{came}");
    world.run_until(|world| {
        came += world.server.take_all().len();
        came == count
    });
}

#[test]
fn a_window_that_shrinks_is_still_given_back() {
    let mut world = World::new(Options { queue_bytes_max: 4 << 20, ..Options::default() });
    world.client.put(b"here");
    world.run_until(|world| world.server.take().is_some());
    // Each of so many has 128 KiB.
    for number in 0..31 {
        let key = world.server.hub.open_link(Role::Accepted, world.now);
        let bytes = hello(Identity([100 + number; 16]));
        world.server.hub.receive(key, &bytes, world.now).unwrap();
    }
    world.client.put(b"now it is told");
    world.run();
    let count = 2000;
    for _ in 0..count {
        world.client.put(&[1; 1000]);
    }
    let mut came = 0;
    for _ in 0..200 {
        world.run();
        came += world.server.take_all().len();
    }
    assert_eq!(came, count + 1);
}

/// What comes of so many messages with a buffer of this length, over shared memory with trust, as
/// whoever gets them keeps them.
fn come_by_trust(world: &mut World, count: usize, buffer_bytes: usize) -> Vec<Incoming> {
    for _ in 0..count {
        world.client.put_segments(&[vec![1; 8], vec![7; buffer_bytes]]);
    }
    let mut come = Vec::new();
    world.run_until(|world| {
        come.extend(std::iter::from_fn(|| world.server.take()));
        come.len() == count
    });
    come
}

#[test]
fn messages_of_many_short_segments_count_what_they_take() {
    let mut world = World::new(Options { window_bytes: 1 << 20, ..Options::default() });
    // Each segment is a byte, and has memory of its own on the other side.
    let message = vec![vec![7; 1]; 1000];
    for _ in 0..200 {
        world.client.put_segments(&message);
    }
    (0..100).for_each(|_| world.turn(usize::MAX));
    let come = world.server.take_all().len();
    assert!((1..30).contains(&come), "{come} messages of 64,000 bytes at once");
    // Both sides count alike, or the receiver would have closed the link.
    let mut rest = 200 - come;
    world.run_until(|world| {
        rest -= world.server.take_all().len();
        rest == 0
    });
}

fn is_viewed(message: &Incoming) -> bool {
    let Body::Many(segments) = &message.body else { panic!("one segment") };
    segments.iter().any(|segment| matches!(segment, Segment::Mapped(_)))
}

#[test]
fn between_two_that_trust_each_other_short_messages_take_no_memory_of_their_own() {
    let mut world = World::shared(Options { trusts_peers: true, ..Options::default() });
    // More at once than there are slots: they wait for one to come back.
    let come = come_by_trust(&mut world, 200, 100_000);
    assert!(!come.iter().any(is_viewed));
}

#[test]
fn short_messages_do_not_wait_for_slots_that_are_looked_at() {
    let mut world = World::shared(Options { trusts_peers: true, ..Options::default() });
    let kept = come_by_trust(&mut world, 100, 300_000);
    assert!(kept.iter().all(is_viewed));
    let come = come_by_trust(&mut world, 100, 100_000);
    assert!(!come.iter().any(is_viewed));
    drop(kept);
}
