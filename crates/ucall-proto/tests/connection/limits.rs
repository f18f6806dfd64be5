//! Every limit of a connection: the last allowed value, and the first refused one.

use ucall_proto::{Limits, NextAction};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

fn small() -> Driver {
    let mut limits = Limits::default();
    limits.body_bytes_max = 1_000;
    limits.reply_bytes_max = 1_000;
    limits.batch_calls_max = 3;
    limits.nesting_max = 4;
    Driver::with_limits(limits)
}

fn large(result_len: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"large","params":[{result_len}],"id":1}}"#)
}

#[test]
fn bodies_over_http_are_refused_before_they_are_read() {
    let mut driver = small();
    driver.receive(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    assert_eq!(
        (driver.sent(), driver.connection.next_action()),
        (String::new(), NextAction::Receive)
    );
    let mut driver = small();
    driver.receive(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n");
    let sent = driver.sent();
    assert!(sent.starts_with("HTTP/1.1 413 ") && sent.contains("1000"), "{sent}");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    let mut driver = small();
    driver.receive(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n",
    );
    assert!(driver.sent().starts_with("HTTP/1.1 413 "));
}

#[test]
fn documents_over_raw_tcp_are_refused_whole_or_partial() {
    let text = |len: usize| format!("{{\"x\":\"{}\"}}", "y".repeat(len - 8));
    let mut driver = small();
    driver.receive(text(1000).as_bytes());
    assert!(driver.sent().contains("-32600"));
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    for pieces in [1001, 500, 1] {
        let mut driver = small();
        for piece in text(1001).as_bytes().chunks(pieces) {
            driver.receive(piece);
        }
        let sent = driver.sent();
        assert!(sent.contains("at most 1000 bytes"), "{sent}");
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
}

#[test]
fn bytes_past_the_document_limit_change_nothing() {
    for beyond in ["y\"}", "\u{1}", "y\"]"] {
        let text = format!("{{\"x\":\"{}{beyond}", "y".repeat(995));
        for pieces in [text.len(), 999, 500, 1] {
            let mut driver = small();
            for piece in text.as_bytes().chunks(pieces) {
                driver.receive(piece);
            }
            let sent = driver.sent();
            assert!(sent.contains("at most 1000 bytes"), "{beyond:?} in {pieces}: {sent}");
            assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
        }
    }
}

#[test]
fn batches_and_nesting_are_refused_one_past_the_limit() {
    let batch = |count: u32| format!("[{}]", (1..=count).map(sum).collect::<Vec<_>>().join(","));
    let mut driver = small();
    driver.receive(post(&batch(3)).as_bytes());
    assert_eq!(driver.sent().matches("result").count(), 3);
    driver.receive(post(&batch(4)).as_bytes());
    let sent = driver.sent();
    assert!(sent.contains("-32600") && sent.contains("at most 3 calls"), "{sent}");
    let nested =
        |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"echo","params":{params},"id":1}}"#);
    driver.receive(post(&nested("[[[]]]")).as_bytes());
    assert!(driver.sent().contains("[[[]]]"));
    driver.receive(post(&nested("[[[[]]]]")).as_bytes());
    let sent = driver.sent();
    assert!(sent.contains("-32700") && sent.contains("at most 4 levels"), "{sent}");
}

#[test]
fn a_partial_raw_document_is_refused_at_its_first_bracket_past_the_limit() {
    let mut driver = small();
    driver.receive(b"[[[[");
    assert_eq!(driver.sent(), "");
    driver.receive(b"[");
    let sent = driver.sent();
    assert!(sent.contains("-32700") && sent.contains("at most 4 levels"), "{sent}");
}

#[test]
fn a_reply_too_large_becomes_an_error_and_the_rest_of_a_batch_stays_valid() {
    let overhead = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    let mut driver = small();
    driver.receive(post(&large(1000 - overhead)).as_bytes());
    assert_eq!(bodies(&driver.sent())[0].len(), 1000);
    driver.receive(post(&large(1001 - overhead)).as_bytes());
    let sent = driver.sent();
    assert!(sent.contains("-32603") && sent.contains("at most 1000 bytes"), "{sent}");
    driver.receive(post(&format!("[{},{},{}]", sum(1), large(990), sum(3))).as_bytes());
    let body = bodies(&driver.sent()).remove(0);
    assert!(body.starts_with(&format!("[{},", sum_reply(1))) && body.contains("-32603"), "{body}");
    assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok());
}

#[test]
fn a_batch_has_the_same_limit_wherever_its_calls_are_deferred() {
    let overhead = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    for (last_len, is_within) in [(197, true), (198, false)] {
        let lens = [400, 400, last_len].map(|len| len - overhead);
        let mut expected = String::new();
        for deferred in 0..8 {
            let mut driver = small();
            let requests = [0, 1, 2].map(|index| match deferred >> index & 1 {
                1 => later(1),
                _ => large(lens[index]),
            });
            driver.receive(post(&format!("[{}]", requests.join(","))).as_bytes());
            let calls = driver.service.deferred.clone();
            let lens = (0..3).filter(|index| deferred >> index & 1 == 1).map(|index| lens[index]);
            for (call, len) in calls.into_iter().zip(lens) {
                driver.complete(call, Ok(format!("\"{}\"", "x".repeat(len)).as_bytes()));
            }
            let body = bodies(&driver.sent()).remove(0);
            // The last part is the one that may be past the limit, unless it was written first.
            if deferred == 0 {
                assert_eq!(body.contains("-32603"), !is_within, "{body}");
                expected = body;
            } else if deferred & 4 == 4 || is_within {
                assert_eq!(body, expected, "{deferred:03b}");
            } else {
                assert_eq!(body.matches("-32603").count(), 1, "{deferred:03b}: {body}");
            }
        }
    }
}

#[test]
fn a_deferred_reply_over_http_is_the_same_if_it_waits_for_others() {
    let overhead = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    for (len, is_within) in [(1000, true), (1001, false)] {
        let result = format!("\"{}\"", "x".repeat(len - overhead));
        let mut driver = small();
        driver.receive(post(&later(1)).as_bytes());
        driver.complete(driver.service.deferred[0], Ok(result.as_bytes()));
        let alone = driver.sent();
        assert_eq!(alone.contains("-32603"), !is_within, "{alone}");
        driver.receive([post(&later(0)), post(&later(1))].concat().as_bytes());
        let [_, first, second] = driver.service.deferred[..] else { panic!("three calls") };
        driver.complete(second, Ok(result.as_bytes()));
        assert_eq!(driver.sent(), "");
        driver.complete(first, Ok(b"0"));
        assert!(driver.sent().ends_with(&alone));
        driver.complete(first, Ok(b"0"));
        assert_eq!(driver.sent(), "", "it has its reply");
    }
}

#[test]
fn a_handler_that_never_replies_is_an_internal_error() {
    let mut driver = Driver::new();
    driver.receive(br#"{"jsonrpc":"2.0","method":"silent","id":1}"#);
    assert!(driver.sent().contains("-32603"));
}

#[test]
fn reading_pauses_at_the_output_limit() {
    let mut driver = Driver::new();
    driver.limits.output_bytes_max = 10_000;
    let requests: String = (0..10).map(|_| large(6_000)).collect();
    driver.receive(requests.as_bytes());
    assert_eq!(driver.sent().lines().count(), 2);
    assert_eq!(driver.connection.next_action(), NextAction::Pause);
    driver.queued_bytes = 20_000;
    driver.resume();
    assert_eq!(driver.sent(), "");
    driver.queued_bytes = 0;
    for _ in 0..4 {
        driver.resume();
        assert_eq!(driver.sent().lines().count(), 2);
    }
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
}

#[test]
fn a_large_head_is_refused() {
    let mut driver = Driver::new();
    driver.receive(b"POST / HTTP/1.1\r\nHost: localhost\r\nX: ");
    for _ in 0..17 {
        driver.receive(&[b'x'; 1024]);
    }
    assert!(driver.sent().starts_with("HTTP/1.1 431 "));
}
