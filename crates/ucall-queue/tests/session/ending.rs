//! Both sides end, wherever the stream is cut while they do.

use std::time::Duration;

use proptest::prelude::*;
use ucall_queue::{Acknowledge, Event, Options, Progress, Receipt};

use crate::world::{CLIENT, SERVER, World};

/// Far less than `expire`: enough for the pauses between a few connections.
const TIME_MAX: Duration = Duration::from_secs(8);
const MESSAGES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closes {
    Client,
    Server,
    Both,
}

const ALL: [Closes; 3] = [Closes::Client, Closes::Server, Closes::Both];

fn progress(receipt: &Receipt) -> Progress {
    match receipt {
        Receipt::One(standing, number) => standing.progress(*number),
        other => panic!("{other:?}"),
    }
}

/// A pair in the middle of its talk, of which some side has just closed.
struct Ending {
    world: World,
    acknowledge: Acknowledge,
    /// What was put at the client and at the server, and what came at the other side.
    put: [Vec<(u8, Receipt)>; 2],
    came: [Vec<u8>; 2],
}

impl Ending {
    fn begin(closes: Closes, acknowledge: Acknowledge, messages: usize) -> Self {
        let mut world = World::new(Options { acknowledge, ..Options::default() });
        world.client.put(b"here");
        world.run_until(|world| !world.server.take_all().is_empty());
        (0..5).for_each(|_| world.turn(usize::MAX));
        let numbers = 0..messages as u8;
        let put = [&world.client, &world.server]
            .map(|side| numbers.clone().map(|number| (number, side.put(&[number]))).collect());
        world.dials = 0;
        if closes != Closes::Server {
            world.client.hub.close(world.now);
        }
        if closes != Closes::Client {
            world.server.hub.close(world.now);
        }
        Self { world, acknowledge, put, came: Default::default() }
    }

    fn turn(&mut self, most: usize) {
        self.world.turn(most);
        self.take();
    }

    fn take(&mut self) {
        let come = [self.world.server.take_all(), self.world.client.take_all()];
        for (came, messages) in self.came.iter_mut().zip(come) {
            came.extend(messages.iter().map(|message| message[0]));
        }
    }

    /// Goes on until both have ended; what they know then is true.
    fn finish(mut self, cuts: usize) {
        let began = self.world.now;
        while self.world.client.inbox.closed().is_none()
            || !self.world.server.outbox.peers().is_empty()
        {
            assert!(self.world.now < began + TIME_MAX, "it does not end");
            self.turn(usize::MAX);
        }
        self.take();
        assert!(self.world.dials <= cuts + 1, "{} dials", self.world.dials);
        for (put, came) in self.put.iter().zip(&self.came) {
            assert!(came.is_sorted_by(|one, next| one < next), "{came:?}");
            for (number, receipt) in put {
                let is_done = progress(receipt) == Progress::Done;
                assert_ne!(progress(receipt), Progress::Pending);
                assert!(!is_done || came.contains(number), "{number} has not come: {came:?}");
                // What was received is known to be, whoever closed.
                assert!(is_done || self.acknowledge == Acknowledge::Taken, "{number}");
            }
        }
        // It was one session, from its beginning to its end.
        let server = &self.world.server.inbox;
        let events: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
        assert_eq!(events, [Event::Started(CLIENT), Event::Ended(CLIENT)]);
    }
}

#[test]
fn sessions_end_wherever_they_are_cut() {
    for closes in ALL {
        for acknowledge in [Acknowledge::Received, Acknowledge::Taken] {
            // A frame at a time, of the shortest, and as much as there is.
            for most in [24, 48, usize::MAX] {
                for turns in 0..24 {
                    let mut ending = Ending::begin(closes, acknowledge, MESSAGES);
                    (0..turns).for_each(|_| ending.turn(most));
                    ending.world.cut();
                    ending.finish(1);
                }
            }
        }
    }
}

#[test]
fn sessions_end_wherever_they_are_cut_again() {
    for closes in ALL {
        for turns in 0..12 {
            for later in 0..12 {
                let mut ending = Ending::begin(closes, Acknowledge::Received, 1);
                (0..turns).for_each(|_| ending.turn(usize::MAX));
                ending.world.cut();
                let dials = ending.world.dials;
                for _ in 0..200 {
                    if ending.world.dials > dials {
                        break;
                    }
                    ending.turn(usize::MAX);
                }
                (0..later).for_each(|_| ending.turn(usize::MAX));
                ending.world.cut();
                ending.finish(2);
            }
        }
    }
}

#[test]
fn a_client_ends_with_a_server_that_is_started_again() {
    for closes in [Closes::Client, Closes::Both] {
        for turns in 0..16 {
            let mut ending = Ending::begin(closes, Acknowledge::Taken, MESSAGES);
            (0..turns).for_each(|_| ending.turn(48));
            ending.world.kill(SERVER);
            let began = ending.world.now;
            while !ending.world.client.hub.is_over() {
                assert!(ending.world.now < began + TIME_MAX, "after {turns} turns");
                ending.turn(usize::MAX);
            }
            for (number, receipt) in &ending.put[0] {
                assert_ne!(progress(receipt), Progress::Pending);
                assert!(ending.came[0].contains(number), "{number} after {turns} turns");
            }
        }
    }
}

#[test]
fn a_client_that_is_started_again_has_what_a_closing_server_keeps_for_it() {
    for turns in 0..16 {
        let mut ending = Ending::begin(Closes::Server, Acknowledge::Taken, MESSAGES);
        (0..turns).for_each(|_| ending.turn(48));
        ending.world.kill(CLIENT);
        let began = ending.world.now;
        while !ending.world.server.hub.is_over() {
            assert!(ending.world.now < began + TIME_MAX, "after {turns} turns");
            ending.turn(usize::MAX);
        }
        for (number, receipt) in &ending.put[1] {
            assert_ne!(progress(receipt), Progress::Pending);
            assert!(ending.came[1].contains(number), "{number} after {turns} turns");
        }
    }
}

#[test]
fn who_never_comes_back_is_waited_for_no_longer_than_said() {
    for turns in 0..10 {
        let mut ending = Ending::begin(Closes::Server, Acknowledge::Received, MESSAGES);
        (0..turns).for_each(|_| ending.turn(48));
        let world = &mut ending.world;
        world.kill(CLIENT);
        let until = world.now + Options::default().expire + Duration::from_secs(2);
        while !world.server.hub.is_over() {
            assert!(world.now < until, "after {turns} turns");
            world.client.dial_at = None;
            world.now += Duration::from_millis(100);
            world.turn(0);
        }
        for (_, receipt) in &ending.put[1] {
            assert_ne!(progress(receipt), Progress::Pending);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Turn(usize),
    Cut,
    CloseClient,
    CloseServer,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn sessions_end_however_often_they_are_cut(
        steps in prop::collection::vec(prop_oneof![
            6 => prop_oneof![1..100usize, Just(usize::MAX)].prop_map(Step::Turn),
            2 => Just(Step::Cut),
            1 => Just(Step::CloseClient),
            1 => Just(Step::CloseServer),
        ], 0..60),
        closes in prop::sample::select(&ALL[..]),
        taken in any::<bool>(),
    ) {
        let acknowledge = if taken { Acknowledge::Taken } else { Acknowledge::Received };
        let mut ending = Ending::begin(closes, acknowledge, MESSAGES);
        for step in &steps {
            let now = ending.world.now;
            match *step {
                Step::Turn(most) => ending.turn(most),
                Step::Cut => ending.world.cut(),
                Step::CloseClient => ending.world.client.hub.close(now),
                Step::CloseServer => ending.world.server.hub.close(now),
            }
        }
        ending.finish(steps.len());
    }
}
