//! Long calls are sent piece by piece, so that other calls do not wait for them.

use std::sync::Arc;

use super::*;
use crate::long_call::{CallText, SHORT_BYTES_MAX};

const LONG: usize = 16_000_000;
/// What a call has beside its params.
const AROUND: usize = 512;

/// Params with line breaks, at all places of pieces.
fn params() -> String {
    let item = format!("\"{}\",\r\n", "x".repeat(1000));
    format!("[{}1]", item.repeat(LONG / item.len()))
}

/// A relay whose only call is a long one, and the token of that unless it is a notification.
fn begin(scheme: &str, params: &str, is_call: bool) -> (RelayHarness, Option<Token>) {
    let mut relay = relay(options(&[&format!("{scheme}://127.0.0.1:1")]));
    let token = is_call.then(|| relay.call("up.get", params, "{}").expect("it is taken"));
    if !is_call {
        relay.notify("up.f", params).expect("it is taken");
    }
    relay.end_turn();
    (relay, token)
}

/// Takes the turns that are due at once. Returns how many these were; each sends something, and at
/// most `bytes_max` bytes.
fn take_turns(relay: &mut RelayHarness, bytes_max: usize) -> usize {
    let mut turns = 0;
    while relay.deadline() == Some(relay.now) {
        let before = relay.sent().len();
        relay.end_turn();
        let sent = relay.sent().len() - before;
        assert!((1..=bytes_max).contains(&sent), "{sent} bytes in turn {turns}");
        turns += 1;
    }
    turns
}

#[test]
fn a_long_call_takes_many_turns_and_others_go_ahead() {
    let params = params();
    for (scheme, is_call) in [("tcp", true), ("tcp", false), ("http", true), ("http", false)] {
        let (mut relay, _) = begin(scheme, &params, is_call);
        relay.connected(0, Ok(()));
        relay.end_turn();
        assert!(relay.sent().len() <= PIECE_BYTES_MAX + AROUND);
        relay.call("up.f", "[7]", "{}").expect("it is taken");
        relay.end_turn();
        relay.connected(1, Ok(()));
        relay.end_turn();
        assert_eq!(sent_calls(&relay.sockets()[&1].sent)[0].1, "[7]");
        let short = relay.sockets()[&1].sent.len();
        let turns = take_turns(&mut relay, PIECE_BYTES_MAX + AROUND);
        assert!(turns >= LONG / PIECE_BYTES_MAX - 3, "{turns}");
        let long: Vec<u8> = match relay.sockets().get(&0) {
            Some(socket) => socket.sent.clone(),
            // It is closed after a notification, which had the shorter one within it.
            None => continue,
        };
        assert_eq!(long.len() + short, relay.sent().len());
        let text = String::from_utf8(long).expect("it is JSON");
        let (head, body) = text.split_at(text.find("{\"jsonrpc").expect("a call"));
        if scheme == "http" {
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            assert!(body.contains(&format!("\"params\":{params}")));
        } else {
            let line = params.replace(['\r', '\n'], " ");
            assert!(body.contains(&format!("\"params\":{line},\"_meta\":")));
            assert_eq!(body.lines().count(), 1);
        }
        assert!(body.ends_with("}\n"));
    }
}

#[test]
fn the_params_of_a_long_call_are_not_copied() {
    let params = params();
    let (mut relay, _) = begin("tcp", &params, false);
    let held = params.len()..params.len() + 2 * PIECE_BYTES_MAX;
    assert!(held.contains(&relay.held_bytes()), "{}", relay.held_bytes());
    relay.connected(0, Ok(()));
    for is_sent in [false, true] {
        relay.end_turn();
        assert_eq!(relay.keeps_document(), !is_sent);
        take_turns(&mut relay, PIECE_BYTES_MAX + AROUND);
    }
}

#[test]
fn a_refused_long_call_keeps_no_document() {
    let options = RelayOptions { outstanding_max: 1, ..options(&["tcp://127.0.0.1:1"]) };
    let mut relay = relay(options);
    relay.call("up.f", "[]", "{}").expect("it is taken");
    relay.call("up.f", &params(), "{}").expect_err("it is one too many");
    assert!(!relay.keeps_document());
}

#[test]
fn calls_of_a_long_batch_hold_no_more_than_they_have() {
    let params = vec![b' '; 2 * SHORT_BYTES_MAX];
    for calls in [1, 2, 8] {
        let document = Arc::new(params.repeat(calls));
        let held = document.chunks(params.len()).map(|params| {
            let mut text = CallText::default();
            text.write_long(b"m", Some(params.into()), Some(&document));
            text.long.expect("it is long").held_bytes()
        });
        let held: usize = held.sum();
        assert!(held <= 2 * document.len(), "{held} bytes of {calls} calls");
    }
}

#[test]
fn many_long_calls_share_a_turn() {
    let params = format!("[\"{}\"]", "x".repeat(4 * SHORT_BYTES_MAX));
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    for _ in 0..16 {
        relay.call("up.f", &params, "{}").expect("it is taken");
    }
    // What a connection begins with, it loads while it connects.
    connect(&mut relay);
    take_turns(&mut relay, 4 * PIECE_BYTES_MAX + 16 * AROUND);
    assert!(relay.sockets().values().all(|it| sent_calls(&it.sent)[0].1 == params));
}

#[test]
fn nothing_is_sent_within_a_long_call() {
    let params = params();
    let (mut relay, token) = begin("tcp", &params, true);
    relay.connected(0, Ok(()));
    relay.end_turn();
    relay.cancel(token.expect("it is a call"));
    take_turns(&mut relay, PIECE_BYTES_MAX + AROUND);
    let text = String::from_utf8_lossy(relay.sent()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].ends_with("\"id\":0}") && lines[1].contains("$/cancelRequest"),
        "{}",
        lines[1]
    );
}

#[test]
fn an_early_reply_frees_no_connection_that_is_sending() {
    let (mut relay, token) = begin("tcp", &params(), true);
    relay.connected(0, Ok(()));
    relay.end_turn();
    relay.receive(0, br#"{"jsonrpc":"2.0","id":0,"result":1}"#);
    relay.end_turn();
    assert_eq!(results(&mut relay), [(token.expect("it is a call"), "1".to_owned())]);
    relay.call("up.f", "[]", "{}").expect("it is taken");
    relay.end_turn();
    assert_eq!(relay.sockets().len(), 2);
}

#[test]
fn a_long_call_that_is_lost_is_sent_again_as_a_whole() {
    let params = params();
    for was_sent in [true, false] {
        let (mut relay, _) = begin("tcp", &params, true);
        match was_sent {
            true => {
                relay.connected(0, Ok(()));
                (0..3).for_each(|_| relay.end_turn());
                relay.disconnect(0, io::ErrorKind::ConnectionReset.into());
            }
            false => relay.connected(0, Err(io::ErrorKind::ConnectionRefused.into())),
        }
        relay.end_turn();
        relay.connected(0, Ok(()));
        relay.end_turn();
        take_turns(&mut relay, PIECE_BYTES_MAX + AROUND);
        let line = params.replace(['\r', '\n'], " ");
        let text = String::from_utf8_lossy(&relay.sockets()[&0].sent).into_owned();
        assert!(text.contains(&format!("\"params\":{line},")), "{was_sent}");
    }
}

#[test]
fn a_long_name_is_sent_in_pieces_too() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    let name = format!("up.{}", "x".repeat(4 * PIECE_BYTES_MAX));
    relay.notify(&name, "[1]").expect("it is taken");
    connect(&mut relay);
    assert!(relay.sent().len() <= PIECE_BYTES_MAX + AROUND);
    take_turns(&mut relay, PIECE_BYTES_MAX + AROUND);
    let expected = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{name}\",\"params\":[1],");
    assert!(relay.sent().starts_with(expected.as_bytes()));
}
