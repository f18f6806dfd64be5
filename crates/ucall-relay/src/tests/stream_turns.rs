//! Streams take turns: other calls do not wait for many of them.

use super::*;
use crate::stream_turns::TURN_BYTES;

const STREAMS: u32 = 100;
const PIECE_ITEMS: usize = 1000;

/// A relay with open streams, each with a socket of its own, which are the first ones.
fn streaming() -> (RelayHarness, Vec<Token>) {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    let begin = |number: u32| {
        let meta = format!(r#"{{"progressToken":{number}}}"#);
        relay.call("up.f", "[]", &meta).expect("it is taken")
    };
    let tokens = (0..STREAMS).map(begin).collect();
    connect(&mut relay);
    relay.replies();
    (relay, tokens)
}

/// Items of the stream in the first slot of a connection, from `first` on.
fn items(first: usize) -> Vec<u8> {
    let item = |number| {
        let params = format!(r#"{{"token":0,"value":{number}}}"#);
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"$/progress\",\"params\":{params}}}\n")
    };
    (first..first + PIECE_ITEMS).map(item).collect::<String>().into_bytes()
}

/// The items since the last time, by their tokens.
fn take_items(relay: &mut RelayHarness) -> Vec<(Token, String)> {
    let text = |(token, outcome)| match outcome {
        NativeOutcome::Item(text) => (token, String::from_utf8_lossy(&text).into_owned()),
        NativeOutcome::Reply(other) => (token, format!("{other:?}")),
    };
    relay.replies().into_iter().map(text).collect()
}

#[test]
fn many_streams_take_turns_in_which_other_calls_are_answered() {
    let (mut relay, tokens) = streaming();
    let other = relay.call("up.f", "[7]", "{}").expect("it is taken");
    connect(&mut relay);
    let piece = items(0);
    let turn_items = PIECE_ITEMS * TURN_BYTES.div_ceil(piece.len());
    (0..STREAMS).for_each(|socket| relay.receive(socket, &piece));
    relay.receive(STREAMS, b"{\"id\":0,\"result\":[7]}");
    relay.end_turn();
    let mut found = take_items(&mut relay);
    assert!(found.contains(&(other, "Ok([91, 55, 93])".to_owned())), "the other call");
    assert_eq!(found.len(), turn_items + 1);
    found.retain(|(token, _)| *token != other);
    // What arrives meanwhile comes after it, and no more is read of these.
    (0..STREAMS).for_each(|socket| relay.receive(socket, &items(PIECE_ITEMS)));
    let paused = relay.sockets().values().filter(|socket| socket.is_paused).count();
    assert!(paused >= STREAMS as usize - 2 * turn_items / PIECE_ITEMS, "{paused} are not read");
    while found.len() < 2 * PIECE_ITEMS * STREAMS as usize {
        assert_eq!(relay.deadline(), Some(relay.now), "the next turn is due");
        relay.end_turn();
        let more = take_items(&mut relay);
        // A piece that waits may be as long as two.
        assert!((1..=turn_items + PIECE_ITEMS).contains(&more.len()), "{} items", more.len());
        found.extend(more);
    }
    for token in tokens {
        let own = found.iter().filter(|item| item.0 == token).map(|item| &item.1);
        assert!(own.map(|text| text.parse()).eq((0..2 * PIECE_ITEMS).map(Ok)), "in order");
    }
    relay.end_turn();
    assert!(relay.sockets().values().all(|socket| !socket.is_paused));
    assert_ne!(relay.deadline(), Some(relay.now));
}

#[test]
fn a_stream_that_waits_for_its_turn_and_for_its_caller_loses_nothing() {
    for is_cancelled in [false, true] {
        let (mut relay, tokens) = streaming();
        (0..STREAMS).for_each(|socket| relay.receive(socket, &items(0)));
        let last = tokens[STREAMS as usize - 1];
        relay.set_paused(last, true);
        let mut found = Vec::new();
        while relay.deadline() == Some(relay.now) {
            relay.end_turn();
            found.extend(take_items(&mut relay));
        }
        assert_eq!(found.len(), PIECE_ITEMS * (STREAMS as usize - 1));
        assert!(relay.sockets()[&(STREAMS - 1)].is_paused);
        match is_cancelled {
            true => relay.cancel(last),
            false => relay.set_paused(last, false),
        }
        relay.end_turn();
        let expected = if is_cancelled { 0 } else { PIECE_ITEMS };
        assert_eq!(take_items(&mut relay).len(), expected);
        assert!(!relay.sockets()[&(STREAMS - 1)].is_paused);
    }
}

#[test]
fn what_an_upstream_sends_before_it_closes_is_read() {
    let (mut relay, tokens) = streaming();
    let end = [items(0), b"{\"id\":0,\"result\":null}".to_vec()].concat();
    (0..STREAMS).for_each(|socket| relay.receive(socket, &end));
    for socket in 0..STREAMS {
        relay.disconnect(socket, io::ErrorKind::UnexpectedEof.into());
    }
    relay.end_turn();
    let replies = relay.replies();
    let ends = replies.iter().filter(|it| it.1 == NativeOutcome::Reply(Ok(b"null".to_vec())));
    assert_eq!(ends.count(), tokens.len());
}
