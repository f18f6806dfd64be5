//! A peer that is gone for longer than `expire`, and returns.

use std::time::Duration;

use ucall_queue::{Acknowledge, DeliveryStatus, Event, Failure, LogLevel, Options, Receipt};

use crate::contract::progress;
use crate::pair::{CLIENT, Pair, SERVER, is_of_session};

/// Longer than `expire`, with the sweep after it.
fn outage() -> Duration {
    Options::default().expire + Duration::from_secs(2)
}

/// The client cannot connect for a time.
fn stay_away(pair: &mut Pair, times: u32) {
    for _ in 0..times {
        pair.cut();
        pair.client.dial_at = None;
        pair.now += outage();
        pair.turn(0);
    }
}

fn return_server(pair: &mut Pair) {
    pair.kill(SERVER);
    pair.client.dial_at = Some(pair.now);
}

fn connected(options: Options) -> Pair {
    let mut pair = Pair::new(options);
    let receipt = pair.client.put(b"here");
    pair.run_until(|pair| {
        pair.server.take_all();
        progress(&receipt) == DeliveryStatus::Done
    });
    pair
}

fn events(pair: &Pair) -> Vec<Event> {
    std::iter::from_fn(|| pair.client.manager.events.poll()).collect()
}

fn has_expired(receipt: &Receipt) -> bool {
    match (progress(receipt), receipt) {
        (DeliveryStatus::Failed(Failure::Expired), Receipt::One(delivery, _)) => {
            delivery.peer() == Some(SERVER)
        }
        _ => false,
    }
}

#[test]
fn a_client_outlives_an_outage() {
    for acknowledge in [Acknowledge::Received, Acknowledge::Taken, Acknowledge::Explicit] {
        let mut pair = connected(Options { acknowledge, ..Options::default() });
        let before: Vec<_> = (0..3u8).map(|number| pair.client.put(&[number])).collect();
        stay_away(&mut pair, 1);
        assert!(before.iter().all(has_expired), "{acknowledge:?}");
        // What is put meanwhile does not fail, however long the outage is.
        let later: Vec<_> = (3..6u8).map(|number| pair.client.put(&[number])).collect();
        stay_away(&mut pair, 10);
        assert!(later.iter().all(|it| progress(it) == DeliveryStatus::Pending));
        return_server(&mut pair);
        let mut received = Vec::new();
        pair.run_until(|pair| {
            received.extend(pair.server.take_all());
            later.iter().all(|it| progress(it) == DeliveryStatus::Done)
        });
        assert_eq!(received, [[3], [4], [5]]);
        assert!(before.iter().all(has_expired));
        assert!(pair.client.inbox.closed().is_none());
        pair.server.put(b"back");
        pair.run_until(|pair| pair.client.take().is_some());
    }
}

#[test]
fn each_outage_is_reported_once() {
    let mut pair = connected(Options::default());
    let cut = || "the connection ended".to_owned();
    assert_eq!(events(&pair), [Event::Started(SERVER)]);
    stay_away(&mut pair, 10);
    let expired = Event::Expired(Some(SERVER), Failure::Expired.to_string());
    assert_eq!(events(&pair), [Event::Lost(SERVER, cut()), expired, Event::Ended(SERVER)]);
    return_server(&mut pair);
    pair.run();
    assert_eq!(events(&pair), [Event::Started(SERVER)]);
    pair.cut();
    pair.run();
    assert_eq!(events(&pair), [Event::Lost(SERVER, cut()), Event::Resumed(SERVER)]);
    pair.client.manager.log_queue.finish();
    let lines = std::iter::from_fn(|| pair.client.manager.log_queue.next_line());
    let lines: Vec<_> =
        lines.map(|(level, line)| (level, line.replace(&SERVER.to_string(), "S"))).collect();
    let (info, warning) = (LogLevel::Info, LogLevel::Warning);
    let expected = [
        (info, "the session with peer S has started"),
        (warning, "the connection with peer S was lost: the connection ended"),
        (warning, "peer S was gone for longer than expire_s: its session has ended"),
        (info, "the session with peer S has started"),
        (warning, "the connection with peer S was lost: the connection ended"),
        (info, "the connection with peer S is resumed"),
    ];
    assert_eq!(lines, expected.map(|(level, line)| (level, line.to_owned())));
}

#[test]
fn a_client_that_never_connected_outlives_an_outage() {
    let mut pair = Pair::new(Options::default());
    pair.client.turn(pair.now);
    let before = pair.client.put(b"before");
    stay_away(&mut pair, 1);
    assert_eq!(progress(&before), DeliveryStatus::Failed(Failure::Expired));
    stay_away(&mut pair, 2);
    let later = pair.client.put(b"later");
    return_server(&mut pair);
    pair.run_until(|_| progress(&later) == DeliveryStatus::Done);
    assert_eq!(pair.server.take_all(), [b"later"]);
}

#[test]
fn a_server_takes_a_client_back_as_a_new_session() {
    let mut pair = connected(Options::default());
    // The server alone notices: the client still resumes its session.
    pair.cut();
    let lost = pair.server.put(b"lost");
    let (kept, at) = (pair.client.put(b"kept"), pair.now);
    pair.client.dial_at = None;
    pair.now += outage();
    pair.server.turn(pair.now);
    assert_eq!(progress(&lost), DeliveryStatus::Failed(Failure::Expired));
    assert!(pair.server.outbox.peers().is_empty());
    pair.now = at;
    pair.client.dial_at = Some(at);
    let again = pair.client.put(b"again");
    pair.run_until(|_| progress(&again) == DeliveryStatus::Done);
    assert_eq!(progress(&kept), DeliveryStatus::Done);
    assert_eq!(pair.server.take_all(), [b"kept".to_vec(), b"again".to_vec()]);
    let events: Vec<_> = std::iter::from_fn(|| pair.server.manager.events.poll()).collect();
    let sessions = events.into_iter().filter(is_of_session);
    let (started, ended) = (Event::Started(CLIENT), Event::Ended(CLIENT));
    assert_eq!(sessions.collect::<Vec<_>>(), [started.clone(), ended, started]);
}

#[test]
fn a_pending_handshake_does_not_join_the_new_session() {
    let mut pair = connected(Options::default());
    pair.cut();
    pair.client.dial_at = None;
    pair.now += outage() - Duration::from_secs(3);
    pair.client.dial_at = Some(pair.now);
    // The handshake has arrived, and its answer is on the way when the session expires.
    pair.connect();
    let before = pair.client.put(b"before");
    let now = pair.now;
    pair.client.turn(now);
    pair.server.receive(&mut pair.client.wire, usize::MAX, now);
    pair.server.turn(now);
    pair.now += Duration::from_secs(3);
    pair.client.turn(pair.now);
    assert!(has_expired(&before));
    let later = pair.client.put(b"later");
    pair.run_until(|_| progress(&later) == DeliveryStatus::Done);
    assert!(pair.server.take_all().contains(&b"later".to_vec()));
}

#[test]
fn close_waits_for_expire_after_an_outage() {
    let mut pair = connected(Options::default());
    stay_away(&mut pair, 3);
    let later = pair.client.put(b"later");
    pair.client.manager.close(pair.now);
    pair.turn(0);
    assert_eq!(progress(&later), DeliveryStatus::Pending);
    assert!(!pair.client.manager.is_closed());
    stay_away(&mut pair, 1);
    assert_eq!(progress(&later), DeliveryStatus::Failed(Failure::Expired));
    assert!(pair.client.manager.is_closed());
}

#[test]
fn an_idle_client_closes_at_once_in_an_outage() {
    let mut pair = connected(Options::default());
    stay_away(&mut pair, 3);
    pair.client.manager.close(pair.now);
    pair.turn(0);
    assert!(pair.client.manager.is_closed());
}

#[test]
fn a_wrong_server_does_not_end_a_client_in_an_outage() {
    let mut pair = connected(Options::default());
    stay_away(&mut pair, 1);
    pair.client.manager.handle_wrong_protocol("no queue", pair.now);
    let later = pair.client.put(b"later");
    return_server(&mut pair);
    pair.run_until(|_| progress(&later) == DeliveryStatus::Done);
}
