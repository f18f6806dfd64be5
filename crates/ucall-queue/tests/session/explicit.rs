//! Messages that the program acknowledges itself, in any order.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use ucall_queue::{
    Acknowledge, DeliveryStatus, Event, Failure, Identity, Incoming, Options, Outgoing, PutError,
    Receipt, Role, TakeResult,
};

use crate::pair::{CLIENT, Pair, SERVER, Side, bytes, is_of_session};

/// Far less than `expire`: enough for the pauses between a few connections.
const TIME_MAX: Duration = Duration::from_secs(8);

fn options() -> Options {
    Options { acknowledge: Acknowledge::Explicit, ..Options::default() }
}

fn progress(receipt: &Receipt) -> DeliveryStatus {
    match receipt {
        Receipt::One(delivery, number) => delivery.progress(*number),
        Receipt::None(_, failure) => DeliveryStatus::Failed(failure.clone()),
        Receipt::Many(_) => panic!("one peer"),
    }
}

fn is_done(receipt: &Receipt) -> bool {
    progress(receipt) == DeliveryStatus::Done
}

/// One side puts numbered messages, and the other gets them.
struct Talk {
    pair: Pair,
    getter: Identity,
    put: Vec<Receipt>,
    cancelled: BTreeSet<usize>,
    /// Messages that the getter's incarnation has taken and not acknowledged.
    messages: Vec<Incoming>,
    /// The last number that this incarnation has taken.
    last: Option<usize>,
    /// The messages that any incarnation has taken, and those that any has acknowledged.
    got: BTreeSet<usize>,
    acknowledged: BTreeSet<usize>,
}

impl Talk {
    fn new(getter: Identity, options: Options) -> Self {
        let mut pair = Pair::new(options);
        pair.client.put(b"here");
        pair.run_until(|pair| !pair.server.take_all().is_empty());
        let (put, messages, last) = (Vec::new(), Vec::new(), None);
        let (cancelled, got, acknowledged) = Default::default();
        Self { pair, getter, put, cancelled, messages, last, got, acknowledged }
    }

    fn getter(&mut self) -> &mut Side {
        if self.getter == SERVER { &mut self.pair.server } else { &mut self.pair.client }
    }

    fn putter(&mut self) -> &mut Side {
        if self.getter == SERVER { &mut self.pair.client } else { &mut self.pair.server }
    }

    fn put(&mut self, length: usize) {
        let mut message = self.put.len().to_le_bytes().to_vec();
        message.resize(8 + length, 7);
        let receipt = self.putter().put(&message);
        self.put.push(receipt);
    }

    fn cancel(&mut self, number: usize) {
        let Some(Receipt::One(delivery, sequence)) = self.put.get(number).cloned() else { return };
        if self.putter().outbox.cancel(&delivery, sequence) {
            self.cancelled.insert(number);
        }
    }

    fn take(&mut self, most: usize) {
        for _ in 0..most {
            let Some(message) = self.getter().take() else { return };
            let bytes = bytes(&message);
            let Some(number) = bytes.first_chunk().map(|it| usize::from_le_bytes(*it)) else {
                // The client announces itself.
                self.getter().acknowledge(&message).unwrap();
                continue;
            };
            assert!(self.last < Some(number), "{number} after {:?}", self.last);
            let is_new = self.got.insert(number);
            assert!(is_new || message.redelivered, "{number} came again, and was not marked");
            self.last = Some(number);
            self.messages.push(message);
        }
    }

    fn acknowledge(&mut self, at: usize) {
        let message = self.messages.swap_remove(at);
        let number = usize::from_le_bytes(*bytes(&message).first_chunk().unwrap());
        self.getter().acknowledge(&message).unwrap();
        self.acknowledged.insert(number);
    }

    /// What the putter knows is true.
    fn check(&self) {
        for (number, receipt) in self.put.iter().enumerate() {
            if is_done(receipt) && !self.cancelled.contains(&number) {
                assert!(self.acknowledged.contains(&number), "{number} is not acknowledged");
            }
        }
    }

    /// The getter is killed, and started again.
    fn kill(&mut self) {
        self.messages.clear();
        self.last = None;
        self.pair.kill(self.getter);
    }

    fn run_until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        let began = self.pair.now;
        while !condition(self) {
            assert!(self.pair.now < began + TIME_MAX, "it never came to that");
            self.pair.turn(usize::MAX);
        }
    }

    /// Gets the rest and acknowledges all, the last first, until the putter knows.
    fn finish(&mut self) {
        self.run_until(|talk| {
            talk.take(usize::MAX);
            (0..talk.messages.len()).rev().for_each(|at| talk.acknowledge(at));
            talk.put.iter().all(is_done)
        });
        self.check();
        assert_eq!(self.got.len() + self.cancelled.len(), self.put.len());
        assert!(self.got.is_disjoint(&self.cancelled));
    }
}

const GETTERS: [Identity; 2] = [SERVER, CLIENT];

#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    /// One of the last that were put.
    Cancel(usize),
    Turn(usize),
    Take(usize),
    Acknowledge(Index),
    Cut,
    Kill,
    /// The getter closes, and is restarted after this many turns.
    Close(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![4 => 0..100usize, 1 => 8000..9000usize, 1 => 30_000..70_000usize];
    let moved = prop_oneof![3 => 1..200usize, 2 => 1000..100_000usize];
    prop_oneof![
        6 => length.prop_map(Step::Put),
        2 => (1..4usize).prop_map(Step::Cancel),
        6 => moved.prop_map(Step::Turn),
        4 => (1..8usize).prop_map(Step::Take),
        6 => any::<Index>().prop_map(Step::Acknowledge),
        1 => Just(Step::Cut),
        1 => Just(Step::Kill),
        1 => (0..12usize).prop_map(Step::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_acknowledged_for_the_program(
        steps in prop::collection::vec(step(), 1..120),
        getter in prop::sample::select(&GETTERS[..]),
        window_bytes in prop_oneof![Just(1), Just(16 << 20)],
    ) {
        let mut talk = Talk::new(getter, Options { window_bytes, ..options() });
        for step in steps {
            match step {
                Step::Put(length) => talk.put(length),
                Step::Cancel(from_last) => talk.cancel(talk.put.len().wrapping_sub(from_last)),
                Step::Turn(most) => talk.pair.turn(most),
                Step::Take(most) => talk.take(most),
                Step::Acknowledge(index) if !talk.messages.is_empty() => {
                    talk.acknowledge(index.index(talk.messages.len()));
                }
                Step::Acknowledge(_) => {}
                Step::Cut => talk.pair.cut(),
                Step::Kill => talk.kill(),
                Step::Close(turns) => {
                    // One message is never acknowledged, so that the session does not end.
                    talk.put(0);
                    let now = talk.pair.now;
                    talk.getter().manager.close(now);
                    (0..turns).for_each(|_| talk.pair.turn(100));
                    talk.kill();
                }
            }
            talk.check();
        }
        talk.finish();
    }
}

#[test]
fn get_goes_on_while_nothing_is_acknowledged() {
    for getter in GETTERS {
        let mut talk = Talk::new(getter, Options { window_bytes: 1, ..options() });
        // Many times the messages that are in flight at once.
        (0..2000).for_each(|_| talk.put(1000));
        talk.run_until(|talk| {
            talk.take(usize::MAX);
            talk.messages.len() == 2000
        });
        (1..2000).rev().for_each(|at| talk.acknowledge(at));
        talk.pair.run();
        assert!(!talk.put.iter().any(is_done));
        talk.acknowledge(0);
        talk.run_until(|talk| talk.put.iter().all(is_done));
    }
}

#[test]
fn the_putters_queue_bounds_what_is_not_acknowledged() {
    let mut talk = Talk::new(SERVER, Options { queue_bytes_max: 100_000, ..options() });
    let message = Outgoing::copied(ucall_queue::Encoding::Bytes, &[0; 20_000]);
    (0..4).for_each(|_| talk.put(20_000));
    talk.run_until(|talk| {
        talk.take(usize::MAX);
        talk.messages.len() == 4
    });
    talk.pair.run();
    let refused = talk.putter().outbox.put(&[], &message);
    assert!(matches!(refused, Err(PutError::Full(Some(SERVER)))), "{refused:?}");
    // Not the oldest: all of it is still kept.
    talk.acknowledge(3);
    talk.pair.run();
    assert!(talk.putter().outbox.put(&[], &message).is_err());
    talk.acknowledge(0);
    talk.pair.run();
    assert!(talk.putter().outbox.put(&[], &message).is_ok());
}

#[test]
fn a_process_that_is_killed_gets_again_what_follows_the_acknowledged() {
    for getter in GETTERS {
        let mut talk = Talk::new(getter, options());
        (0..6).for_each(|_| talk.put(20_000));
        talk.run_until(|talk| {
            talk.take(4);
            talk.messages.len() == 4
        });
        // 0 and 1 are acknowledged with all before them, 3 is not.
        for at in [3, 1, 0] {
            talk.acknowledge(at);
        }
        talk.run_until(|talk| is_done(&talk.put[1]));
        talk.kill();
        talk.put(0);
        talk.run_until(|talk| {
            talk.take(usize::MAX);
            talk.messages.len() == 5
        });
        let number = |it: &Incoming| usize::from_le_bytes(*bytes(it).first_chunk().unwrap());
        let received: Vec<_> =
            talk.messages.iter().map(|it| (number(it), it.redelivered)).collect();
        assert_eq!(received, [(2, true), (3, true), (4, true), (5, true), (6, false)]);
        assert!(!is_done(&talk.put[2]));
        talk.finish();
    }
}

#[test]
fn what_was_cancelled_is_not_waited_for() {
    let mut talk = Talk::new(SERVER, options());
    let lengths = [10, 10, 10, 10, 20_000, 20_000, 10, 10];
    lengths.iter().for_each(|&length| talk.put(length));
    let cancelled = [1, 2, 4, 6, 7];
    cancelled.into_iter().for_each(|number| talk.cancel(number));
    assert_eq!(talk.cancelled.len(), cancelled.len());
    // Those before the next that is not taken are acknowledged, too.
    talk.run_until(|talk| {
        talk.take(1);
        !talk.messages.is_empty()
    });
    talk.acknowledge(0);
    talk.run_until(|talk| is_done(&talk.put[2]));
    talk.run_until(|talk| {
        talk.take(usize::MAX);
        talk.messages.len() == 2
    });
    for at in [1, 0] {
        talk.acknowledge(at);
    }
    talk.run_until(|talk| talk.put.iter().all(is_done));
}

#[test]
fn a_side_that_closes_waits_until_all_is_acknowledged_wherever_it_is_cut() {
    for getter in GETTERS {
        for most in [24, 48, usize::MAX] {
            for turns in 0..24 {
                let mut talk = Talk::new(getter, options());
                (0..3).for_each(|_| talk.put(0));
                talk.run_until(|talk| {
                    talk.take(usize::MAX);
                    talk.messages.len() == 3
                });
                talk.pair.run();
                let now = talk.pair.now;
                talk.putter().manager.close(now);
                talk.acknowledge(1);
                talk.acknowledge(0);
                talk.pair.run();
                assert!(talk.putter().inbox.closed().is_none());
                talk.acknowledge(0);
                (0..turns).for_each(|_| talk.pair.turn(most));
                talk.pair.cut();
                talk.run_until(|talk| talk.putter().manager.is_closed());
                assert!(talk.put.iter().all(is_done));
                let events = &talk.pair.server.manager.events;
                let events = std::iter::from_fn(|| events.poll()).filter(is_of_session);
                let events: Vec<_> = events.collect();
                assert_eq!(events, [Event::Started(CLIENT), Event::Ended(CLIENT)]);
            }
        }
    }
}

#[test]
fn a_side_that_closes_leaves_the_rest_to_its_next_life_wherever_it_is_cut() {
    for getter in GETTERS {
        for most in [24, 48, usize::MAX] {
            for turns in 0..24 {
                let mut talk = Talk::new(getter, options());
                (0..4).for_each(|_| talk.put(0));
                talk.run_until(|talk| {
                    talk.take(2);
                    talk.messages.len() == 2
                });
                talk.acknowledge(0);
                let now = talk.pair.now;
                talk.getter().manager.close(now);
                (0..turns).for_each(|_| talk.pair.turn(most));
                talk.pair.cut();
                talk.run_until(|talk| talk.getter().manager.is_closed());
                // Earlier acknowledgements stand; the rest waits.
                assert!(is_done(&talk.put[0]));
                let is_pending = |it: &Receipt| progress(it) == DeliveryStatus::Pending;
                assert!(talk.put[1..].iter().all(is_pending), "{:?}", talk.put);
                let messages = talk.messages.pop().unwrap();
                assert_eq!(talk.getter().acknowledge(&messages), Err(Failure::Closed));
                talk.put(0);
                talk.kill();
                talk.run_until(|talk| {
                    talk.take(usize::MAX);
                    talk.messages.len() == 4
                });
                let marked: Vec<_> = talk.messages.iter().map(|it| it.redelivered).collect();
                assert_eq!(marked, [true, true, true, false]);
                talk.finish();
            }
        }
    }
}

#[test]
fn a_server_that_is_still_closing_may_be_started_again() {
    let mut talk = Talk::new(SERVER, options());
    // It waits for a client that is gone, and refuses all others meanwhile.
    let (manager, now) = (&mut talk.pair.server.manager, talk.pair.now);
    let key = manager.open_link(Role::Accepted, now);
    manager.handle_received(key, &crate::hostile::hello(Identity([3; 16])), now).unwrap();
    manager.handle_link_closed(key, now);
    talk.put(0);
    talk.run_until(|talk| {
        talk.take(1);
        !talk.messages.is_empty()
    });
    talk.getter().manager.close(now);
    let dials = talk.pair.dials;
    talk.run_until(|talk| talk.pair.dials > dials + 2);
    assert!(!talk.getter().manager.is_closed());
    assert_eq!(progress(&talk.put[0]), DeliveryStatus::Pending);
    talk.kill();
    talk.finish();
}

#[test]
fn both_sides_close_and_the_rest_is_waited_for() {
    for getter in GETTERS {
        for is_first in [false, true] {
            let mut talk = Talk::new(getter, options());
            (0..3).for_each(|_| talk.put(0));
            talk.run_until(|talk| {
                talk.take(2);
                talk.messages.len() == 2
            });
            let now = talk.pair.now;
            if is_first {
                talk.putter().manager.close(now);
                talk.pair.run();
            }
            talk.getter().manager.close(now);
            talk.run_until(|talk| talk.getter().manager.is_closed());
            talk.putter().manager.close(now);
            talk.kill();
            talk.run_until(|talk| {
                talk.take(usize::MAX);
                talk.messages.len() == 3
            });
            assert!(talk.putter().inbox.closed().is_none());
            (0..3).rev().for_each(|at| talk.acknowledge(at));
            talk.run_until(|talk| talk.putter().manager.is_closed());
            assert!(talk.put.iter().all(is_done));
        }
    }
}

#[test]
fn a_side_that_closes_and_stays_away_is_given_up() {
    for getter in GETTERS {
        let mut talk = Talk::new(getter, options());
        talk.put(0);
        talk.run_until(|talk| {
            talk.take(1);
            !talk.messages.is_empty()
        });
        let now = talk.pair.now;
        talk.getter().manager.close(now);
        talk.run_until(|talk| talk.getter().manager.is_closed());
        talk.pair.run();
        assert_eq!(progress(&talk.put[0]), DeliveryStatus::Pending);
        talk.pair.now += Options::default().expire;
        talk.pair.run();
        assert!(matches!(progress(&talk.put[0]), DeliveryStatus::Failed(Failure::Expired)));
    }
}

#[test]
fn an_acknowledgement_that_reaches_nobody_is_an_error() {
    let mut talk = Talk::new(SERVER, options());
    (0..2).for_each(|_| talk.put(0));
    talk.run_until(|talk| {
        talk.take(2);
        talk.messages.len() == 2
    });
    let (second, first) = (talk.messages.pop().unwrap(), talk.messages.pop().unwrap());
    talk.getter().acknowledge(&second).unwrap();
    // The client is killed, and what it kept is gone with it.
    talk.pair.kill(CLIENT);
    talk.pair.client.put(b"again");
    talk.pair.run_until(|pair| pair.server.take().is_some());
    assert_eq!(talk.getter().acknowledge(&first), Err(Failure::PeerClosed));
    assert_eq!(talk.getter().acknowledge(&second), Ok(()));
}

#[test]
fn others_are_acknowledged_without_the_program() {
    for acknowledge in [Acknowledge::Received, Acknowledge::Taken] {
        let mut talk = Talk::new(SERVER, Options { acknowledge, ..Options::default() });
        talk.put(0);
        talk.run_until(|talk| {
            talk.take(1);
            is_done(&talk.put[0]) && !talk.messages.is_empty()
        });
        let message = talk.messages.pop().unwrap();
        for _ in 0..2 {
            assert_eq!(talk.getter().acknowledge(&message), Ok(()));
        }
        talk.pair.cut();
        let now = talk.pair.now;
        talk.getter().manager.abort(now);
        assert_eq!(talk.getter().acknowledge(&message), Ok(()));
    }
}

#[test]
fn acknowledgements_with_too_many_gaps_end_a_link() {
    const COUNT: u64 = 2 * 65_536 + 1;
    let mut pair = Pair::new(Options { window_bytes: 1 << 30, ..Options::default() });
    let (manager, now) = (&mut pair.server.manager, pair.now);
    let key = manager.open_link(Role::Accepted, now);
    let mut hello = crate::hostile::hello(CLIENT);
    // Its messages wait for the program.
    let flags = hello.len() - 8;
    hello[flags] = 16;
    manager.handle_received(key, &hello, now).unwrap();
    let message = |sequence| crate::hostile::header(4, 1, sequence, 0);
    let some: Vec<u8> = (1..COUNT).flat_map(message).collect();
    manager.handle_received(key, &some, now).unwrap();
    manager.finish_turn();
    let mut first = None;
    while let TakeResult::Message(it) = pair.server.inbox.take(&[]) {
        if it.sequence % 2 == 0 {
            pair.server.acknowledge(&it).unwrap();
        }
        first.get_or_insert(it);
    }
    pair.server.manager.handle_received(key, &message(COUNT), now).unwrap();
    pair.server.manager.finish_turn();
    let TakeResult::Message(last) = pair.server.inbox.take(&[]) else { panic!("it came") };
    assert_eq!(last.sequence, COUNT);
    let refused = pair.server.manager.handle_received(key, &message(COUNT + 1), now);
    assert_eq!(refused, Err(ucall_queue::ProtocolError::WindowExceeded));
}
