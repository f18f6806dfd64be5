//! The connections of a draining server.

use ucall_proto::{Drain, LoadState, NextAction};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

#[test]
fn the_last_http_reply_says_connection_close() {
    for drain in [Drain::Serving, Drain::Refusing] {
        let mut driver = Driver::new();
        driver.receive(post(&sum(1)).as_bytes());
        assert!(!driver.sent().contains("Connection: close"));
        driver.drain = drain;
        driver.receive((post(&sum(2)) + &post(&sum(3))).as_bytes());
        let sent = driver.sent();
        assert!(sent.contains("Connection: close"), "{sent}");
        assert_eq!(bodies(&sent), [sum_reply(2)]);
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
}

#[test]
fn a_deferred_http_reply_says_connection_close() {
    let mut driver = Driver::new();
    driver.receive((post(&later(1)) + &post(&later(2))).as_bytes());
    driver.drain = Drain::Refusing;
    let [first, second] = driver.service.deferred[..] else { panic!("two deferred calls") };
    driver.complete(first, Ok(b"1"));
    assert!(!driver.sent().contains("Connection: close"));
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    driver.complete(second, Ok(b"2"));
    assert!(driver.sent().contains("Connection: close"));
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn raw_continues_while_serving_and_ends_when_refusing() {
    let mut driver = Driver::new();
    driver.drain = Drain::Serving;
    driver.receive((sum(1) + &sum(0)).as_bytes());
    // The server has told all clients when the drain began. This one came later.
    let notice = r#"{"jsonrpc":"2.0","method":"$/drain"}"#;
    assert_eq!(
        (driver.sent(), driver.connection.next_action()),
        ([notice, &sum_reply(1), &sum_reply(0), ""].join("\n"), NextAction::Receive)
    );
    driver.receive(later(2).as_bytes());
    driver.drain = Drain::Refusing;
    driver.receive((sum(3) + &sum(4)).as_bytes());
    // Whatever else was sent with these requests was not read.
    let last = r#"{"jsonrpc":"2.0","method":"$/drain","params":{"read":5}}"#;
    assert_eq!(driver.sent(), [&sum_reply(3), &sum_reply(4), last, ""].join("\n"));
    assert_eq!(
        driver.connection.next_action(),
        NextAction::Receive,
        "the deferred call is waited for"
    );
    let deferred = driver.service.deferred[0];
    driver.complete(deferred, Ok(b"2"));
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn overload_refuses_a_chunked_request_whose_last_chunk_arrives_later() {
    let request = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{}\r\n", sum(1).len(), sum(1));
    let mut driver = Driver::new();
    driver.receive((request.to_owned() + &chunk).as_bytes());
    driver.load = LoadState::Overloaded;
    driver.receive(b"0\r\n\r\n");
    let sent = driver.sent();
    assert!(sent.contains(" 503 ") && sent.contains("Retry-After: 1\r\n"), "{sent}");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn overload_refuses_until_the_drain_does() {
    for (drain, is_refused) in [(Drain::No, true), (Drain::Serving, true), (Drain::Refusing, false)]
    {
        let mut driver = Driver::new();
        (driver.drain, driver.load) = (drain, LoadState::Overloaded);
        let request = post(&sum(1));
        driver.receive(&request.as_bytes()[..request.len() - 10]);
        let sent = driver.sent();
        assert_eq!(sent.contains(" 503 ") && sent.contains("Retry-After: 1\r\n"), is_refused);
    }
}
