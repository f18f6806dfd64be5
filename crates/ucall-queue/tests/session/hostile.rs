//! Bytes of peers that violate the protocol.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use ucall_buffer::Payload;
use ucall_queue::{
    Action, Body, DeliveryStatus, Event, Failure, Identity, LinkKey, Options, ProtocolError,
    Receipt, Role, Segment,
};

use crate::pair::{CLIENT, Pair, SERVER, Side, is_of_session, warning};

pub fn header(kind: u8, segments: u16, sequence: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    bytes.extend(segments.to_le_bytes());
    bytes.extend(b"uclQ");
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes
}

pub fn hello(identity: Identity) -> Vec<u8> {
    let mut bytes = header(1, 0, 0, 104);
    bytes.extend(b"ucall-q2");
    bytes.extend(identity.0);
    bytes.extend([9; 16]);
    bytes.extend([0; 16]);
    for number in [0u64, 0, 1 << 20, 1, 1 << 20, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn server() -> (Side, LinkKey, Instant) {
    let now = Instant::now();
    let mut side = Side::new(SERVER, &Options::default(), 1, now);
    let key = side.manager.open_link(Role::Accepted, now);
    (side, key, now)
}

#[test]
fn the_first_frame_must_be_a_handshake() {
    for (bytes, expected) in [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), ProtocolError::WrongProtocol),
        (header(4, 1, 1, 10), ProtocolError::Unexpected),
        (header(1, 0, 0, u64::MAX), ProtocolError::Malformed),
        (header(77, 0, 0, 0), ProtocolError::Unknown),
        (header(2, 0, 0, 104).into_iter().chain([0; 104]).collect(), ProtocolError::WrongProtocol),
    ] {
        let (mut side, key, now) = server();
        assert_eq!(side.manager.handle_received(key, &bytes, now), Err(expected));
        assert!(side.outbox.peers().is_empty());
    }
}

#[test]
fn lengths_and_numbers_are_validated() {
    let end = [header(7, 0, 1, 0), header(4, 1, 2, 0)].concat();
    for (bytes, expected) in [
        (header(4, 1, 1, u64::MAX), ProtocolError::TooLong),
        (header(4, 1, 1, (1 << 30) + 1), ProtocolError::TooLong),
        (header(4, 0, 1, 5), ProtocolError::Malformed),
        (header(4, u16::MAX, 1, 80), ProtocolError::Malformed),
        (header(4, 1, 2, 0), ProtocolError::OutOfOrder),
        (header(1, 0, 0, 104), ProtocolError::Unexpected),
        (header(8, 0, 0, 25), ProtocolError::Malformed),
        (end, ProtocolError::OutOfOrder),
        // An acknowledgement of a message that was never sent.
        (
            [header(8, 0, 0, 24), [[1, 0, 0, 0, 0, 0, 0, 0]; 3].concat()].concat(),
            ProtocolError::OutOfOrder,
        ),
        // The program's acknowledgement of a message that was never received.
        ([header(8, 0, 1, 24), vec![0; 24]].concat(), ProtocolError::OutOfOrder),
        // Segments that are longer than the message.
        (
            [header(4, 2, 1, 17), [[9, 0, 0, 0, 0, 0, 0, 0]; 2].concat()].concat(),
            ProtocolError::Malformed,
        ),
    ] {
        let (mut side, key, now) = server();
        side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
        assert_eq!(side.manager.handle_received(key, &bytes, now), Err(expected), "{bytes:?}");
    }
}

/// What a client says that goes on with the first session of a server: how far it is, and the
/// oldest message that it still has.
fn resuming(progress: [u64; 3], oldest: u64) -> Vec<u8> {
    let mut bytes = hello(CLIENT);
    bytes[64..80].copy_from_slice(&((1u128 << 64) + 1).to_le_bytes());
    for (at, number) in progress.into_iter().chain([oldest]).enumerate() {
        bytes[80 + 8 * at..][..8].copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

#[test]
fn a_session_outlives_resumptions_with_invalid_progress() {
    let (mut side, key, now) = server();
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    let receipt = side.put(b"first");
    let mut output = Payload::new();
    side.manager.poll_output(key, &mut output, now);
    side.manager.handle_received(key, &header(4, 1, 1, 0), now).unwrap();
    for (progress, oldest, expected) in [
        ([2, 0, 1 << 20], 1, ProtocolError::OutOfOrder),
        ([u64::MAX, 0, 0], 1, ProtocolError::OutOfOrder),
        ([0, 1, 0], 1, ProtocolError::Malformed),
        ([0, u64::MAX, u64::MAX], 1, ProtocolError::Malformed),
        ([0, 0, 0], 0, ProtocolError::Malformed),
    ] {
        let key = side.manager.open_link(Role::Accepted, now);
        let received = side.manager.handle_received(key, &resuming(progress, oldest), now);
        assert_eq!(received, Err(expected), "{progress:?}");
    }
    // The peer may still keep messages that the server has received, and any window is valid.
    let key = side.manager.open_link(Role::Accepted, now);
    side.manager.handle_received(key, &resuming([1, 0, u64::MAX], u64::MAX), now).unwrap();
    side.manager.handle_received(key, &header(4, 1, 1, 0), now).unwrap();
    side.manager.handle_received(key, &header(4, 1, 2, 0), now).unwrap();
    side.manager.finish_turn();
    let sequences: Vec<_> = std::iter::from_fn(|| side.take()).map(|it| it.sequence).collect();
    assert_eq!(sequences, [1, 2]);
    let Receipt::One(state, number) = receipt else { panic!("to one peer") };
    assert_eq!(state.progress(number), DeliveryStatus::Done);
}

#[test]
fn the_servers_own_id_is_refused() {
    let (mut side, key, now) = server();
    side.manager.handle_received(key, &hello(SERVER), now).unwrap();
    assert!(side.outbox.peers().is_empty());
}

#[test]
fn an_id_in_use_is_not_taken_over() {
    let mut pair = Pair::new(Options::default());
    pair.client.put(b"mine");
    pair.run_until(|pair| pair.server.take().is_some());
    let key = pair.server.manager.open_link(Role::Accepted, pair.now);
    pair.server.manager.handle_received(key, &hello(CLIENT), pair.now).unwrap();
    let receipt = pair.server.put(b"for the client");
    pair.run_until(|pair| !pair.client.take_all().is_empty());
    assert!(matches!(receipt, Receipt::One(..)));
    let line = warning(&pair.server.manager);
    assert_eq!(line, format!("peer {CLIENT} is {REFUSED_ID_IN_USE}"));
}

/// The number that a ping among these frames has, if one is there.
fn pinged(output: &[u8]) -> Option<u64> {
    const PING: u8 = 9;
    let head = output.windows(24).find(|head| head[0] == PING && &head[4..8] == b"uclQ")?;
    Some(u64::from_le_bytes(head[8..16].try_into().unwrap()))
}

#[test]
fn the_second_peer_with_one_id_is_refused() {
    const PONG: u8 = 10;
    const REFUSE: u8 = 3;
    let (mut side, first, now) = server();
    let written = |side: &mut Side, key| {
        let mut output = Payload::new();
        side.manager.poll_output(key, &mut output, now);
        output.head().to_vec()
    };
    let second = |side: &mut Side, incarnation: u8| {
        let key = side.manager.open_link(Role::Accepted, now);
        let mut bytes = hello(CLIENT);
        bytes[48..64].fill(incarnation);
        side.manager.handle_received(key, &bytes, now).unwrap();
        let answer = written(side, key);
        assert_eq!(answer[0], REFUSE);
        String::from_utf8_lossy(&answer[24..]).into_owned()
    };
    side.manager.handle_received(first, &hello(CLIENT), now).unwrap();
    written(&mut side, first);
    // The first may be gone without notice: it gets one ping.
    assert!(second(&mut side, 7).starts_with("busy"));
    let number = pinged(&written(&mut side, first)).unwrap();
    assert!(second(&mut side, 7).starts_with("busy"));
    assert_eq!(pinged(&written(&mut side, first)), None);
    // Pongs of other numbers do not count.
    side.manager.handle_received(first, &header(PONG, 0, 0, 0), now).unwrap();
    side.manager.handle_received(first, &header(PONG, 0, number + 1, 0), now).unwrap();
    assert!(second(&mut side, 7).starts_with("busy"));
    side.manager.handle_received(first, &header(PONG, 0, number, 0), now).unwrap();
    // Nor does the pong for another incarnation.
    assert!(second(&mut side, 6).starts_with("busy"));
    let number = pinged(&written(&mut side, first)).unwrap();
    side.manager.handle_received(first, &header(PONG, 0, number, 0), now).unwrap();
    let reason = second(&mut side, 6);
    assert!(reason.contains("give each an id of its own"), "{reason}");
    // A peer that is about to end is waited for.
    side.manager.handle_received(first, &header(7, 0, 1, 0), now).unwrap();
    assert!(second(&mut side, 6).starts_with("busy"));
}

const REFUSED_ID_IN_USE: &str = "refused: busy: another communicator has this id just now";

/// The answer to a handshake with this certificate and the client's id, as this incarnation.
fn answer(
    side: &mut Side,
    certificate: Option<&[u8]>,
    incarnation: u8,
    now: Instant,
) -> (LinkKey, u8) {
    let key = side.manager.open_link(Role::Accepted, now);
    if let Some(name) = certificate {
        side.manager.set_certificate_name(key, name);
    }
    let mut bytes = hello(CLIENT);
    bytes[48..64].fill(incarnation);
    side.manager.handle_received(key, &bytes, now).unwrap();
    let mut output = Payload::new();
    side.manager.poll_output(key, &mut output, now);
    (key, output.head()[0])
}

#[test]
fn a_session_is_bound_to_its_certificate() {
    const WELCOME: u8 = 2;
    const REFUSE: u8 = 3;
    let now = Instant::now();
    let mut side = Side::new(SERVER, &Options::default(), 1, now);
    let (key, answered) = answer(&mut side, Some(b"alice"), 9, now);
    assert_eq!(answered, WELCOME);
    // Whether it is connected or away, and even with the secret of the session.
    for link in [key, key] {
        for other in [Some(&b"bob"[..]), None] {
            for incarnation in [9, 8] {
                assert_eq!(answer(&mut side, other, incarnation, now).1, REFUSE);
            }
        }
        side.manager.handle_link_closed(link, now);
    }
    let mut lines = std::iter::repeat_with(|| warning(&side.manager));
    let line = lines.find(|line| line.contains("refused")).unwrap();
    assert!(line.ends_with("refused: the id is that of a peer with another certificate"), "{line}");
    // The same certificate resumes the session, in the same incarnation and in another.
    for incarnation in [9, 9, 7] {
        let (key, answered) = answer(&mut side, Some(b"alice"), incarnation, now);
        assert_eq!(answered, WELCOME);
        if incarnation == 9 {
            assert_eq!(answer(&mut side, Some(b"alice"), 6, now).1, REFUSE);
        }
        side.manager.handle_link_closed(key, now);
    }
    let events = std::iter::from_fn(|| side.manager.events.poll()).filter(is_of_session);
    assert_eq!(events.collect::<Vec<_>>(), [Event::Started(CLIENT)]);
}

#[test]
fn sending_past_the_window_closes_the_link() {
    let (mut side, key, now) = server();
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    let mut result = Ok(());
    for sequence in 1..100_000u64 {
        let frame = [header(4, 1, sequence, 1000), vec![0; 1000]].concat();
        result = side.manager.handle_received(key, &frame, now);
        if result.is_err() {
            assert!(sequence < 20_000);
            break;
        }
    }
    assert_eq!(result, Err(ProtocolError::WindowExceeded));
}

#[test]
fn a_peer_refused_for_lack_of_room_is_accepted_later() {
    let (mut side, key, now) = server();
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    let frame = |sequence| [header(4, 1, sequence, 1000), vec![0; 1000]].concat();
    let refused = (1..100_000)
        .find(|&it| side.manager.handle_received(key, &frame(it), now).is_err())
        .unwrap();
    side.manager.finish_turn();
    assert_eq!(side.take_all().len() as u64, refused - 1);
    let key = side.manager.open_link(Role::Accepted, now);
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    side.manager.handle_received(key, &frame(refused), now).unwrap();
    side.manager.finish_turn();
    assert_eq!(side.take().map(|message| message.sequence), Some(refused));
}

#[test]
fn a_new_incarnation_is_refused_while_the_inbox_is_full() {
    let options =
        Options { queue_bytes_max: 10 << 20, window_bytes: 1 << 20, ..Options::default() };
    let now = Instant::now();
    let mut side = Side::new(SERVER, &options, 1, now);
    let mut key = side.manager.open_link(Role::Accepted, now);
    let frame = |sequence| [header(4, 1, sequence, 100_000), vec![0; 100_000]].concat();
    for incarnation in 0..100u8 {
        let mut bytes = hello(CLIENT);
        bytes[24 + 24..][..16].fill(incarnation + 1);
        side.manager.handle_received(key, &bytes, now).unwrap();
        for sequence in 1..=10 {
            // Frames on a refused link are ignored.
            side.manager.handle_received(key, &frame(sequence), now).unwrap();
        }
        side.manager.finish_turn();
        side.manager.handle_link_closed(key, now);
        key = side.manager.open_link(Role::Accepted, now);
    }
    let received = side.take_all().len();
    assert!((100..=120).contains(&received), "{received} messages of 100,000 bytes");
    // Once they are taken, there is room again.
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    side.manager.handle_received(key, &frame(1), now).unwrap();
}

#[test]
fn a_short_message_does_not_retain_its_read_buffer() {
    let (mut side, key, now) = server();
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    let mut bytes = [header(4, 1, 1, 3), b"abc".to_vec()].concat();
    bytes.extend(header(9, 0, 0, 0).repeat(1000));
    side.manager.handle_received(key, &bytes, now).unwrap();
    side.manager.finish_turn();
    let Body::One(Segment::Shared(body)) = side.take().unwrap().body else { panic!("long") };
    let memory = body.try_into_mut().unwrap();
    assert_eq!(memory, b"abc"[..]);
    assert!(memory.capacity() < 100, "{}", memory.capacity());
}

#[test]
fn a_flood_of_pings_gets_one_pong() {
    let (mut side, key, now) = server();
    side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
    side.manager.poll_output(key, &mut Payload::new(), now);
    side.manager.handle_received(key, &header(9, 0, 0, 0).repeat(10_000), now).unwrap();
    let mut output = Payload::new();
    side.manager.poll_output(key, &mut output, now);
    assert_eq!(output.len(), header(10, 0, 0, 0).len());
}

#[test]
fn unread_session_events_are_bounded_and_logged() {
    let (mut side, _, now) = server();
    let identity = |number: u16| {
        let mut bytes = [7; 16];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        Identity(bytes)
    };
    assert_eq!(side.manager.events.poll(), None);
    let mut later = now;
    for number in 0..3000 {
        let key = side.manager.open_link(Role::Accepted, later);
        side.manager.handle_received(key, &hello(identity(number)), later).unwrap();
        side.manager.handle_link_closed(key, later);
        if number % 1000 == 999 {
            later += Options::default().expire + Duration::from_secs(2);
            side.manager.handle_timeout(later);
        }
    }
    let kept: Vec<_> = std::iter::from_fn(|| side.manager.events.poll()).collect();
    assert!((1000..=1024).contains(&kept.len()), "{}", kept.len());
    // Both events of a session are reported, or neither.
    for number in 0..3000 {
        let [began, ended] = [Event::Started, Event::Ended].map(|it| it(identity(number)));
        assert_eq!(kept.contains(&began), kept.contains(&ended));
    }
    let mut lines = std::iter::repeat_with(|| warning(&side.manager));
    let line = lines.find(|line| line.starts_with("callbacks")).unwrap();
    assert!(line.starts_with("callbacks are slow: a session that has ended"), "{line}");
}

#[test]
fn a_message_past_the_peers_limit_fails_alone() {
    for most in [20_000, 100] {
        let mut pair = Pair::new(Options::default());
        let small = Options { message_bytes_max: most, ..Options::default() };
        pair.server = Side::new(SERVER, &small, 9, pair.now);
        let lengths = [most, most + 1, 5, most + 1];
        let receipts = lengths.map(|length| pair.client.put(&vec![7; length]));
        pair.run_until(|pair| pair.client.manager.events.poll().is_some());
        pair.run();
        let received: Vec<_> = pair.server.take_all().iter().map(Vec::len).collect();
        assert_eq!(received, [most, 5]);
        let progress = receipts.map(|receipt| match receipt {
            Receipt::One(delivery, sequence) => delivery.progress(sequence),
            other => panic!("{other:?}"),
        });
        let failed = || DeliveryStatus::Failed(Failure::TooLong(most as u64));
        assert_eq!(progress, [DeliveryStatus::Done, failed(), DeliveryStatus::Done, failed()]);
    }
}

#[test]
fn a_refusal_has_no_control_characters() {
    let now = Instant::now();
    let mut side = Side::new(CLIENT, &Options::default(), 1, now);
    let key = side.manager.open_link(Role::Dialed, now);
    let reason = b"\x1b[2Jgo\r\naway";
    let refusal = [header(3, 0, 0, reason.len() as u64), reason.to_vec()].concat();
    side.manager.handle_received(key, &refusal, now).unwrap();
    assert_eq!(side.inbox.closed(), Some(&Failure::Refused(" [2Jgo  away".to_owned())));
}

#[test]
fn as_many_ids_as_are_allowed_come_and_expire() {
    let now = Instant::now();
    let options = Options { peers_max: 2_000, ..Options::default() };
    let mut side = Side::new(SERVER, &options, 1, now);
    let identity = |number: u16| {
        let mut bytes = [7; 16];
        bytes[..2].copy_from_slice(&number.to_le_bytes());
        Identity(bytes)
    };
    let most = options.peers_max as u16;
    for number in 0..=most {
        let key = side.manager.open_link(Role::Accepted, now);
        side.manager.handle_received(key, &hello(identity(number)), now).unwrap();
        side.manager.handle_link_closed(key, now);
    }
    // The last one was refused.
    assert_eq!(side.outbox.peers().len(), usize::from(most));
    let mut later = now;
    while !side.outbox.peers().is_empty() {
        later += options.keepalive;
        assert!(later < now + 10 * options.expire);
        side.manager.handle_timeout(later);
    }
}

#[test]
fn unidentified_links_do_not_delay_close() {
    let (mut side, key, now) = server();
    side.manager.abort(now);
    assert!(side.manager.is_closed());
    let late = side.manager.open_link(Role::Accepted, now);
    assert_eq!(closed(&mut side), [key, late].map(|key| Action::Close(key, false)));
    assert!(side.manager.is_closed());
}

fn closed(side: &mut Side) -> Vec<Action> {
    std::iter::from_fn(|| side.manager.poll_action()).collect()
}

#[test]
fn the_oldest_unidentified_link_is_evicted() {
    let now = Instant::now();
    let options = Options { handshakes_max: 3, ..Options::default() };
    let mut side = Side::new(SERVER, &options, 1, now);
    let known = side.manager.open_link(Role::Accepted, now);
    side.manager.handle_received(known, &hello(CLIENT), now).unwrap();
    let unidentified = [(); 3].map(|()| side.manager.open_link(Role::Accepted, now));
    assert_eq!(closed(&mut side), []);
    side.manager.open_link(Role::Accepted, now);
    assert_eq!(closed(&mut side), [Action::Close(unidentified[0], false)]);
    // A link that ends, or completes its handshake, makes room as well.
    side.manager.handle_link_closed(unidentified[1], now);
    side.manager.handle_received(unidentified[2], &hello(Identity([3; 16])), now).unwrap();
    side.manager.open_link(Role::Accepted, now);
    side.manager.open_link(Role::Accepted, now);
    assert_eq!(closed(&mut side), []);
    assert_eq!(side.outbox.peers().len(), 2);
}

proptest! {
    #[test]
    fn garbage_never_panics(
        handshake_done in any::<bool>(),
        kind in 0u8..12,
        segments in any::<u16>(),
        numbers in any::<(u64, u64)>(),
        small in any::<bool>(),
        body in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let (mut side, key, now) = server();
        if handshake_done {
            side.manager.handle_received(key, &hello(CLIENT), now).unwrap();
        }
        let length = if small { numbers.1 % 300 } else { numbers.1 };
        let sequence = if small { numbers.0 % 3 } else { numbers.0 };
        let frame = [header(kind, segments % 40, sequence, length), body].concat();
        // Any verdict will do.
        let _ = side.manager.handle_received(key, &frame, now);
    }
}
