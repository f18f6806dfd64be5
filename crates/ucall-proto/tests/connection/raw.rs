//! Raw documents, one after another.

use ucall_proto::{MessageFraming, NextAction};

use crate::harness::{Driver, answer, sum, sum_reply};

#[test]
fn documents_follow_each_other_with_or_without_space() {
    let requests = format!(" {}{}\r\n\t {}\n", sum(1), sum(2), sum(3));
    let (replies, next_action) = answer(requests);
    assert_eq!(replies, format!("{}\n{}\n{}\n", sum_reply(1), sum_reply(2), sum_reply(3)));
    assert_eq!(next_action, NextAction::Receive);
}

#[test]
fn a_syntax_error_is_answered_at_once_and_ends_the_connection() {
    for broken in ["{]", "{\"a\":x", "[1,}", "{\"a\":\"\u{1}", "{\"a\":\"\\ud800x", "[\"\\q"] {
        let (reply, next_action) = answer(format!("{}{broken}", sum(1)));
        let mut lines = reply.lines();
        assert_eq!(lines.next(), Some(sum_reply(1).as_str()));
        assert!(lines.next().is_some_and(|line| line.contains("-32700")), "{broken}: {reply}");
        assert_eq!((lines.next(), next_action), (None, NextAction::DiscardInput), "{broken}");
    }
}

#[test]
fn bytes_of_no_known_protocol_are_refused() {
    let space = [vec![b' '; 65], b"{".to_vec()].concat();
    for bytes in [b"\"text\"".to_vec(), b"1".to_vec(), space, b"\x0c{}".to_vec()] {
        let (reply, next_action) = answer(bytes);
        assert!(reply.contains("-32700"), "{reply}");
        assert_eq!(next_action, NextAction::DiscardInput);
    }
    let space = [vec![b' '; 64], sum(1).into_bytes()].concat();
    assert_eq!(answer(space).0, sum_reply(1) + "\n");
}

#[test]
fn invalid_utf8_is_refused_anywhere_in_a_document() {
    for place in [r#"{"X":1}"#, r#"{"a":"X"}"#, r#"{"jsonrpc":"2.0","method":"X","id":1}"#] {
        for bad in [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"] {
            let (front, back) = place.split_once('X').unwrap();
            let (reply, _) = answer([front.as_bytes(), bad, back.as_bytes()].concat());
            assert!(reply.contains("-32700"), "{place} {reply}");
        }
    }
}

#[test]
fn requests_before_a_half_close_are_answered() {
    let mut driver = Driver::new();
    driver.receive(sum(1).as_bytes());
    driver.handle_eof();
    assert_eq!(driver.sent(), sum_reply(1) + "\n");
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

#[test]
fn a_half_close_within_a_document_gets_an_error() {
    let mut driver = Driver::new();
    driver.receive(&sum(1).as_bytes()[..20]);
    driver.handle_eof();
    assert!(driver.sent().contains("it ends too early"));
}

#[test]
fn the_server_may_send_lines_but_not_over_http() {
    let mut driver = Driver::new();
    assert_eq!(driver.connection.message_framing(), None);
    driver.receive(sum(1).as_bytes());
    assert_eq!(driver.connection.message_framing(), Some(MessageFraming::Line));
    let mut driver = Driver::new();
    driver.receive(b"POST / HTTP/1.1\r\n");
    assert_eq!(driver.connection.message_framing(), None);
}

#[test]
fn a_large_document_in_small_pieces_is_scanned_once() {
    let text = "é\\n".repeat(400_000);
    let request = format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{text}"],"id":1}}"#);
    let mut driver = Driver::new();
    for piece in request.as_bytes().chunks(1000) {
        driver.receive(piece);
    }
    assert!(driver.sent() == format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[\"{text}\"]}}\n"));
}
