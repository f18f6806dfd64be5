//! Both sides end, wherever the stream is cut while they do.

use std::time::Duration;

use proptest::prelude::*;
use ucall_queue::{Acknowledge, DeliveryStatus, Event, LogLevel, Options, Receipt};

use crate::pair::{CLIENT, Pair, SERVER, is_of_session};

/// Far less than `expire`: enough for the pauses between a few connections.
const TIME_MAX: Duration = Duration::from_secs(8);
const MESSAGES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closer {
    Client,
    Server,
    Both,
}

const ALL: [Closer; 3] = [Closer::Client, Closer::Server, Closer::Both];

fn progress(receipt: &Receipt) -> DeliveryStatus {
    match receipt {
        Receipt::One(delivery, number) => delivery.progress(*number),
        other => panic!("{other:?}"),
    }
}

/// A pair in the middle of its talk, of which some side has just closed.
struct ClosingSession {
    pair: Pair,
    acknowledge: Acknowledge,
    /// The messages put at the client and at the server, and those received on the other side.
    put: [Vec<(u8, Receipt)>; 2],
    received: [Vec<u8>; 2],
}

impl ClosingSession {
    fn begin(closes: Closer, acknowledge: Acknowledge, messages: usize) -> Self {
        let mut pair = Pair::new(Options { acknowledge, ..Options::default() });
        pair.client.put(b"here");
        pair.run_until(|pair| !pair.server.take_all().is_empty());
        (0..5).for_each(|_| pair.turn(usize::MAX));
        let numbers = 0..messages as u8;
        let put = [&pair.client, &pair.server]
            .map(|side| numbers.clone().map(|number| (number, side.put(&[number]))).collect());
        pair.dials = 0;
        if closes != Closer::Server {
            pair.client.manager.close(pair.now);
        }
        if closes != Closer::Client {
            pair.server.manager.close_for_good(pair.now);
        }
        Self { pair, acknowledge, put, received: Default::default() }
    }

    fn turn(&mut self, most: usize) {
        self.pair.turn(most);
        self.take();
    }

    fn take(&mut self) {
        let received = [self.pair.server.take_all(), self.pair.client.take_all()];
        for (received, messages) in self.received.iter_mut().zip(received) {
            received.extend(messages.iter().map(|message| message[0]));
        }
    }

    /// Runs until both have ended, and checks what each knows of its deliveries.
    fn finish(mut self, cuts: usize) {
        let began = self.pair.now;
        while self.pair.client.inbox.closed().is_none()
            || !self.pair.server.outbox.peers().is_empty()
        {
            assert!(self.pair.now < began + TIME_MAX, "it does not end");
            self.turn(usize::MAX);
        }
        self.take();
        assert!(self.pair.dials <= cuts + 1, "{} dials", self.pair.dials);
        for (put, received) in self.put.iter().zip(&self.received) {
            assert!(received.is_sorted_by(|one, next| one < next), "{received:?}");
            for (number, receipt) in put {
                let is_done = progress(receipt) == DeliveryStatus::Done;
                assert_ne!(progress(receipt), DeliveryStatus::Pending);
                assert!(
                    !is_done || received.contains(number),
                    "{number} has not come: {received:?}"
                );
                // The sender knows of each message that was received, whichever side closed.
                assert!(is_done || self.acknowledge == Acknowledge::Taken, "{number}");
            }
        }
        // It was one session, from its start to its end.
        let events = &self.pair.server.manager.events;
        let events = std::iter::from_fn(|| events.poll()).filter(is_of_session);
        let events: Vec<_> = events.collect();
        assert_eq!(events, [Event::Started(CLIENT), Event::Ended(CLIENT)]);
    }
}

#[test]
fn sessions_close_with_a_cut_at_any_turn() {
    for closes in ALL {
        for acknowledge in [Acknowledge::Received, Acknowledge::Taken] {
            // A frame at a time, of the shortest, and as much as there is.
            for most in [24, 48, usize::MAX] {
                for turns in 0..24 {
                    let mut closing = ClosingSession::begin(closes, acknowledge, MESSAGES);
                    (0..turns).for_each(|_| closing.turn(most));
                    closing.pair.cut();
                    closing.finish(1);
                }
            }
        }
    }
}

#[test]
fn sessions_close_with_two_cuts_at_any_turns() {
    for closes in ALL {
        for turns in 0..12 {
            for later in 0..12 {
                let mut closing = ClosingSession::begin(closes, Acknowledge::Received, 1);
                (0..turns).for_each(|_| closing.turn(usize::MAX));
                closing.pair.cut();
                let dials = closing.pair.dials;
                for _ in 0..200 {
                    if closing.pair.dials > dials {
                        break;
                    }
                    closing.turn(usize::MAX);
                }
                (0..later).for_each(|_| closing.turn(usize::MAX));
                closing.pair.cut();
                closing.finish(2);
            }
        }
    }
}

#[test]
fn a_client_outlives_a_server_that_is_started_again() {
    for acknowledge in [Acknowledge::Received, Acknowledge::Taken] {
        for (turns, is_cut) in (0..24).flat_map(|turns| [(turns, false), (turns, true)]) {
            let mut pair = Pair::new(Options { acknowledge, ..Options::default() });
            pair.client.put(b"here");
            pair.run_until(|pair| !pair.server.take_all().is_empty());
            let before = pair.client.put(b"before");
            let mut received = Vec::new();
            pair.server.manager.close(pair.now);
            for _ in 0..turns {
                pair.turn(48);
            }
            if is_cut {
                pair.cut();
            }
            let late = pair.client.put(b"late");
            pair.run_until(|pair| {
                received.extend(pair.server.take_all());
                pair.server.manager.is_closed()
            });
            let place = format!("{acknowledge:?}, {turns} turns, {is_cut}");
            assert!(pair.client.inbox.closed().is_none(), "{place}");
            pair.kill(SERVER);
            let began = pair.now;
            while progress(&late) == DeliveryStatus::Pending {
                assert!(pair.now < began + TIME_MAX, "{place}");
                pair.turn(usize::MAX);
                received.extend(pair.server.take_all());
            }
            assert_eq!(progress(&late), DeliveryStatus::Done, "{place}");
            assert_ne!(progress(&before), DeliveryStatus::Pending, "{place}");
            for (receipt, data) in [(&before, &b"before"[..]), (&late, b"late")] {
                let count = received.iter().filter(|it| *it == data).count();
                assert!(count <= 1, "{place}: {received:?}");
                assert!(count == 1 || progress(receipt) != DeliveryStatus::Done, "{place}");
            }
            let again = pair.client.put(b"again");
            pair.run_until(|pair| {
                pair.server.take_all();
                progress(&again) == DeliveryStatus::Done
            });
            let events = &pair.client.manager.events;
            let events = std::iter::from_fn(|| events.poll()).filter(is_of_session);
            let whole = [Event::Started(SERVER), Event::Ended(SERVER), Event::Started(SERVER)];
            assert_eq!(events.collect::<Vec<_>>(), whole, "{place}");
        }
    }
}

#[test]
fn a_client_that_closes_with_its_server_needs_no_further_link() {
    for turns in 0..24 {
        let mut pair = Pair::new(Options::default());
        pair.client.put(b"here");
        pair.run_until(|pair| !pair.server.take_all().is_empty());
        pair.server.manager.close(pair.now);
        (0..turns).for_each(|_| pair.turn(24));
        pair.dials = 0;
        pair.client.manager.close(pair.now);
        pair.run_until(|pair| pair.client.manager.is_closed() && pair.server.manager.is_closed());
        assert_eq!(pair.dials, 0, "after {turns} turns");
    }
}

#[test]
fn a_close_says_how_many_messages_were_not_acknowledged() {
    let mut pair = Pair::new(Options::default());
    let receipts: Vec<_> = (0..4u8).map(|number| pair.client.put(&[number])).collect();
    let Receipt::One(delivery, number) = &receipts[1] else { panic!("{receipts:?}") };
    assert!(pair.client.outbox.cancel(delivery, *number));
    pair.client.manager.close(pair.now);
    pair.client.manager.abort(pair.now);
    let log = &pair.client.manager.log_queue;
    log.finish();
    let lines: Vec<_> = std::iter::from_fn(|| log.next_line()).collect();
    let line = "this side has closed: 3 messages were not acknowledged".to_owned();
    assert_eq!(lines, [(LogLevel::Warning, line)]);
    assert!(!delivery.may_have_arrived(4));
}

#[test]
fn a_message_that_was_sent_may_have_arrived() {
    let mut pair = Pair::new(Options::default());
    pair.client.put(b"here");
    pair.run_until(|pair| !pair.server.take_all().is_empty());
    let Receipt::One(delivery, sent) = pair.client.put(b"sent") else { panic!() };
    pair.client.turn(pair.now);
    pair.cut();
    let Receipt::One(_, waiting) = pair.client.put(b"waiting") else { panic!() };
    pair.client.manager.abort(pair.now);
    assert!(delivery.may_have_arrived(sent) && !delivery.may_have_arrived(waiting));
}

#[test]
fn a_client_closes_with_a_restarted_server() {
    for closes in [Closer::Client, Closer::Both] {
        for turns in 0..16 {
            let mut closing = ClosingSession::begin(closes, Acknowledge::Taken, MESSAGES);
            (0..turns).for_each(|_| closing.turn(48));
            closing.pair.kill(SERVER);
            let began = closing.pair.now;
            while !closing.pair.client.manager.is_closed() {
                assert!(closing.pair.now < began + TIME_MAX, "after {turns} turns");
                closing.turn(usize::MAX);
            }
            for (number, receipt) in &closing.put[0] {
                assert_ne!(progress(receipt), DeliveryStatus::Pending);
                assert!(closing.received[0].contains(number), "{number} after {turns} turns");
            }
        }
    }
}

#[test]
fn a_restarted_client_gets_the_messages_of_a_closing_server() {
    for turns in 0..16 {
        let mut closing = ClosingSession::begin(Closer::Server, Acknowledge::Taken, MESSAGES);
        (0..turns).for_each(|_| closing.turn(48));
        closing.pair.kill(CLIENT);
        let began = closing.pair.now;
        while !closing.pair.server.manager.is_closed() {
            assert!(closing.pair.now < began + TIME_MAX, "after {turns} turns");
            closing.turn(usize::MAX);
        }
        for (number, receipt) in &closing.put[1] {
            assert_ne!(progress(receipt), DeliveryStatus::Pending);
            assert!(closing.received[1].contains(number), "{number} after {turns} turns");
        }
    }
}

#[test]
fn an_absent_peer_delays_close_until_it_expires() {
    for turns in 0..10 {
        let mut closing = ClosingSession::begin(Closer::Server, Acknowledge::Received, MESSAGES);
        (0..turns).for_each(|_| closing.turn(48));
        let pair = &mut closing.pair;
        pair.kill(CLIENT);
        let until = pair.now + Options::default().expire + Duration::from_secs(2);
        while !pair.server.manager.is_closed() {
            assert!(pair.now < until, "after {turns} turns");
            pair.client.dial_at = None;
            pair.now += Duration::from_millis(100);
            pair.turn(0);
        }
        for (_, receipt) in &closing.put[1] {
            assert_ne!(progress(receipt), DeliveryStatus::Pending);
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
    fn sessions_close_with_any_number_of_cuts(
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
        let mut closing = ClosingSession::begin(closes, acknowledge, MESSAGES);
        for step in &steps {
            let now = closing.pair.now;
            match *step {
                Step::Turn(most) => closing.turn(most),
                Step::Cut => closing.pair.cut(),
                Step::CloseClient => closing.pair.client.manager.close(now),
                Step::CloseServer => closing.pair.server.manager.close_for_good(now),
            }
        }
        closing.finish(steps.len());
    }
}
