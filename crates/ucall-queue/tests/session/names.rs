//! Messages that the peer's program does not accept, or cannot read.

use std::time::Instant;

use ucall_queue::{
    AcceptedNames, Acknowledge, DeliveryStatus, Encoding, Failure, Identity, Options, Outgoing,
    ProtocolError, PutError, Receipt, Role, TakeResult,
};

use crate::contract::progress;
use crate::hostile::{header, hello};
use crate::pair::{CLIENT, Pair, SERVER, Side, warning};

fn listed(names: &[&str]) -> AcceptedNames {
    AcceptedNames::Listed(names.iter().map(|&name| name.into()).collect())
}

fn put(side: &Side, peers: &[Identity], names: &[&str]) -> Result<Receipt, PutError> {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let message = Outgoing { names: &names, ..Outgoing::copied(Encoding::Serialized, b"x") };
    side.outbox.put(peers, &message)
}

fn connected(options: Options, accepted: AcceptedNames) -> Pair {
    let mut pair = Pair::new(options);
    pair.server.manager.announce(accepted);
    let receipt = pair.client.put(b"here");
    pair.run_until(|pair| {
        pair.server.take_all();
        progress(&receipt) == DeliveryStatus::Done
    });
    pair
}

#[test]
fn a_put_is_refused_by_the_list_of_its_peer() {
    let mut pair = connected(Options::default(), listed(&["app.Job", "lib*"]));
    put(&pair.client, &[], &["app.Job", "lib.sub.User"]).unwrap();
    let refused = put(&pair.client, &[], &["app.Job", "app.Other"]);
    assert_eq!(refused.unwrap_err(), PutError::NotAccepted(Some(SERVER), 1));
    // The client accepts what only its own program can tell.
    put(&pair.server, &[CLIENT], &["app.Other"]).unwrap();
    pair.run();
    assert_eq!((pair.server.take_all().len(), pair.client.take_all().len()), (1, 1));
}

#[test]
fn a_changed_list_is_announced() {
    let mut pair = connected(Options::default(), listed(&[]));
    put(&pair.client, &[], &["app.Job"]).unwrap_err();
    pair.server.manager.announce(listed(&["app.Job"]));
    pair.run();
    put(&pair.client, &[], &["app.Job"]).unwrap();
    // The list of a server that was started again replaces it.
    pair.kill(SERVER);
    pair.server.manager.announce(listed(&[]));
    pair.run();
    put(&pair.client, &[], &["app.Job"]).unwrap_err();
}

#[test]
fn messages_before_the_list_are_checked_before_they_are_sent() {
    for most in [1, 50, usize::MAX] {
        let mut pair = Pair::new(Options::default());
        pair.server.manager.announce(listed(&["app.Job"]));
        let puts = [&["app.Job"][..], &["app.Other"], &[], &["app.Job", "app.Last"]];
        let receipts = puts.map(|names| put(&pair.client, &[], names).unwrap());
        for _ in 0..3000 {
            pair.turn(most);
        }
        assert_eq!(pair.server.take_all().len(), 2, "{most}");
        let failed = |name: &str| DeliveryStatus::Failed(Failure::NotAccepted(name.to_owned()));
        let expected =
            [DeliveryStatus::Done, failed("app.Other"), DeliveryStatus::Done, failed("app.Last")];
        assert_eq!(receipts.each_ref().map(progress), expected);
    }
}

#[test]
fn a_rejected_message_is_reported() {
    for acknowledge in [Acknowledge::Received, Acknowledge::Taken, Acknowledge::Explicit] {
        let mut pair =
            connected(Options { acknowledge, ..Options::default() }, AcceptedNames::Unknown);
        let receipts = [b"1", b"2", b"3"].map(|data| pair.client.put(data));
        pair.run();
        let mut arrived = 0;
        pair.run_until(|pair| {
            if let TakeResult::Message(message) = pair.server.inbox.take(&[]) {
                arrived += 1;
                if arrived == 2 {
                    message.credit.reject(message.sequence, "no\u{1b} such class".to_owned());
                }
                message.credit.take(message.sequence, message.weight);
                pair.server.manager.handle_taken(message.credit.index);
                // Only the program's own acknowledgement of the rejected message is missing.
                if arrived != 2 {
                    let _ = pair.server.acknowledge(&message);
                }
            }
            arrived == 3
        });
        pair.run();
        let line = warning(&pair.client.manager);
        assert_eq!(line, format!("peer {SERVER} cannot read a message: no  such class"));
        let rejected = Failure::Rejected("no  such class".to_owned());
        let [first, second, third] = receipts.each_ref().map(progress);
        assert_eq!(first, DeliveryStatus::Done);
        match acknowledge {
            Acknowledge::Received => assert_eq!(second, DeliveryStatus::Done),
            _ => assert_eq!(second, DeliveryStatus::Failed(rejected)),
        }
        let is_done = third == DeliveryStatus::Done;
        assert_eq!(is_done, acknowledge != Acknowledge::Explicit);
    }
}

#[test]
fn invalid_reports_end_the_link() {
    let accepts =
        |number, body: &[u8]| [header(15, 0, number, body.len() as u64), body.to_vec()].concat();
    for (bytes, expected) in [
        (accepts(1, b"\xff"), ProtocolError::Malformed),
        (header(15, 0, 1, 32 * 1024 + 1), ProtocolError::Malformed),
        (header(16, 0, 1, 257), ProtocolError::Malformed),
        (header(16, 0, 0, 0), ProtocolError::OutOfOrder),
        (header(16, 0, 1, 0), ProtocolError::OutOfOrder),
    ] {
        let now = Instant::now();
        let mut side = Side::new(SERVER, &Options::default(), 1, now);
        let key = side.manager.open_link(Role::Accepted, now);
        side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
        assert_eq!(side.manager.handle_received(key, &bytes, now), Err(expected), "{bytes:?}");
    }
    let now = Instant::now();
    let mut side = Side::new(SERVER, &Options::default(), 1, now);
    let key = side.manager.open_link(Role::Accepted, now);
    // Only a peer that has sent its handshake announces names.
    let early = side.manager.handle_received(key, &accepts(1, b""), now);
    assert_eq!(early, Err(ProtocolError::Unexpected));
}
