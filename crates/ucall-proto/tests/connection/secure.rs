//! A connection under TLS: the same replies, and the cases that only TLS has.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ucall_proto::tls::{ClientConfig, ServerConfig, TlsConnection};
use ucall_proto::{Connection, Limits, NextAction};

use crate::harness::{Driver, answer, later, post, sum, sum_reply};
use crate::tls::{Authority, Endpoint, client, server};
use crate::websocket::{frames, message, upgrade};

type Configs = (Arc<ServerConfig>, Arc<ClientConfig>);

fn configs() -> Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    let make = || {
        let authority = Authority::new();
        (server(&[authority.sign("localhost").identity()]), client(&authority))
    };
    CONFIGS.get_or_init(make).clone()
}

/// A connection under TLS and the client at its other end.
struct TlsPair {
    driver: Driver,
    client: Endpoint,
}

impl TlsPair {
    fn with_limits(limits: Limits) -> Self {
        let (server, client) = configs();
        let mut driver = Driver::with_limits(limits);
        let tls = TlsConnection::server(server).unwrap();
        driver.connection = Connection::with_tls(driver.now, &driver.limits, tls);
        let mut out = Vec::new();
        let tls = TlsConnection::client(client, "localhost".try_into().unwrap(), &mut out).unwrap();
        Self { driver, client: Endpoint::new(tls, out) }
    }

    /// One on which both ends have agreed.
    fn connected() -> Self {
        let mut pair = Self::with_limits(Limits::default());
        pair.deliver(1 << 20);
        assert!(pair.driver.connection.session().is_some());
        pair
    }

    fn deliver(&mut self, piece_bytes: usize) {
        loop {
            let sent = std::mem::take(&mut self.client.out);
            for piece in sent.chunks(piece_bytes) {
                self.driver.receive(piece);
            }
            let replied = std::mem::take(&mut self.driver.out);
            self.client.receive(&replied);
            if sent.is_empty() && replied.is_empty() {
                return;
            }
        }
    }

    fn received(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.client.received)).unwrap()
    }
}

#[test]
fn replies_equal_those_without_tls() {
    let inputs = [
        sum(1),
        sum(1) + &sum(2) + "\n" + &sum(3),
        format!("[{},{}]", sum(1), sum(2)),
        post(&sum(1)),
        post(&sum(1)) + &post(&sum(2)) + &post("[]"),
        post(&sum(1)) + "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + &post(&sum(2)),
        "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
         9\r\n[1,2,3,4]\r\n0\r\n\r\n"
            .to_owned(),
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\n".to_owned(),
        "{\"jsonrpc\":\"2.0\",\"method\":nothing}".to_owned(),
        "0".to_owned(),
        format!("  {}", sum(1)),
    ];
    for input in inputs {
        let expected = answer(&input);
        for piece_bytes in [1, 7, 1 << 20] {
            let mut pair = TlsPair::with_limits(Limits::default());
            pair.client.send(input.as_bytes());
            pair.deliver(piece_bytes);
            let next_action = pair.driver.connection.next_action();
            assert_eq!((pair.received(), next_action), expected, "{input} in {piece_bytes}");
            let has_ended = pair.client.tls.has_received_close_notify();
            assert_eq!(
                has_ended,
                matches!(next_action, NextAction::DiscardInput | NextAction::Close),
                "{input}"
            );
        }
    }
}

#[test]
fn replies_sent_together_share_one_record() {
    let mut pair = TlsPair::connected();
    pair.client.send((post(&sum(1)) + &post(&sum(2)) + &post(&sum(3))).as_bytes());
    pair.driver.receive(&std::mem::take(&mut pair.client.out));
    let out = &pair.driver.out;
    assert_eq!(out.len(), 5 + usize::from(u16::from_be_bytes([out[3], out[4]])));
}

#[test]
fn deferred_replies_and_messages_are_encrypted_too() {
    let mut pair = TlsPair::connected();
    pair.client.send(later(7).as_bytes());
    pair.deliver(1 << 20);
    let call = pair.driver.service.deferred[0];
    pair.driver.complete(call, Ok(b"8"));
    let out = &mut pair.driver.out;
    pair.driver.connection.write_messages(b"{}\n", out);
    pair.deliver(1 << 20);
    assert_eq!(pair.received(), "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":8}\n{}\n");
}

#[test]
fn a_large_body_is_received_whole() {
    let mut pair = TlsPair::connected();
    let body = format!(
        r#"{{"jsonrpc":"2.0","method":"echo","params":["{}"],"id":1}}"#,
        "x".repeat(300_000)
    );
    pair.client.send(post(&body).as_bytes());
    pair.deliver(10_000);
    assert!(pair.driver.poll_target().is_none());
    assert!(pair.received().contains(&"x".repeat(300_000)));
}

#[test]
fn a_large_reply_makes_the_connection_pause() {
    let mut pair = TlsPair::connected();
    let large = r#"{"jsonrpc":"2.0","method":"large","params":[700000],"id":1}"#;
    pair.client.send(large.repeat(3).as_bytes());
    pair.driver.receive(&std::mem::take(&mut pair.client.out));
    assert_eq!(pair.driver.connection.next_action(), NextAction::Pause);
    pair.deliver(1 << 20);
    assert_eq!(pair.received().len() / 700_000, 2);
    pair.driver.resume();
    pair.deliver(1 << 20);
    assert_eq!(pair.received().len() / 700_000, 1);
}

#[test]
fn close_notify_and_eof_both_end_the_stream() {
    for by_alert in [true, false] {
        let mut pair = TlsPair::connected();
        pair.client.send(sum(1).as_bytes());
        if by_alert {
            pair.client.tls.close(&mut pair.client.out);
        }
        pair.driver.receive(&std::mem::take(&mut pair.client.out));
        if !by_alert {
            pair.driver.handle_eof();
        }
        assert_eq!(pair.driver.connection.next_action(), NextAction::Close);
        pair.deliver(1 << 20);
        assert_eq!(pair.received(), sum_reply(1) + "\n");
        assert!(pair.client.tls.has_received_close_notify());
    }
}

#[test]
fn a_stalled_handshake_is_closed_without_output() {
    let limits = Limits::default();
    let (timeout, instant) = (limits.handshake_timeout, Duration::from_nanos(1));
    for sent in [0, 5, 100] {
        let mut pair = TlsPair::with_limits(limits.clone());
        let hello = std::mem::take(&mut pair.client.out);
        pair.driver.receive(&hello[..sent]);
        pair.driver.advance_time(timeout - instant);
        assert_eq!(pair.driver.connection.next_action(), NextAction::Receive);
        assert!(pair.driver.connection.evictable_since().is_some());
        pair.driver.advance_time(instant);
        assert_eq!(pair.driver.connection.next_action(), NextAction::Close);
        assert!(pair.driver.out.is_empty());
    }
}

#[test]
fn an_idle_connection_is_closed_with_close_notify() {
    let mut pair = TlsPair::connected();
    pair.driver.advance_time(Limits::default().idle_timeout);
    assert_eq!(pair.driver.connection.next_action(), NextAction::Close);
    pair.deliver(1 << 20);
    assert!(pair.client.tls.has_received_close_notify());
}

#[test]
fn plaintext_gets_an_error_that_names_tls() {
    for (sent, expected) in [
        (post(&sum(1)), "HTTP/1.1 400 Bad Request\r\n"),
        (sum(1), r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"#),
        ("\n".to_owned(), r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"#),
    ] {
        let mut pair = TlsPair::with_limits(Limits::default());
        pair.driver.receive(sent.as_bytes());
        let reply = pair.driver.sent();
        assert!(reply.starts_with(expected) && reply.contains("TLS"), "{reply}");
        assert_eq!(pair.driver.connection.next_action(), NextAction::DiscardInput);
        pair.driver.receive(sent.as_bytes());
        assert!(pair.driver.out.is_empty());
    }
}

#[test]
fn tls_on_a_plaintext_port_gets_an_http_error() {
    let hello = TlsPair::with_limits(Limits::default()).client.out;
    let mut driver = Driver::new();
    driver.receive(&hello);
    let reply = driver.sent();
    assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("speaks no TLS"), "{reply}");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn broken_records_end_the_connection_with_an_alert() {
    let mut pair = TlsPair::connected();
    pair.client.send(sum(1).as_bytes());
    *pair.client.out.last_mut().unwrap() ^= 1;
    pair.deliver(1 << 20);
    assert_eq!(pair.driver.connection.next_action(), NextAction::DiscardInput);
    assert!(pair.client.error.is_some());
    assert!(pair.received().is_empty());
}

#[test]
fn early_requests_do_not_run_when_a_broken_record_follows() {
    let broken = [23, 3, 3, 0, 20].into_iter().chain([0; 20]).collect::<Vec<u8>>();
    for (behind, is_run) in [(&[][..], true), (&broken, false)] {
        let mut pair = TlsPair::with_limits(Limits::default());
        pair.client.send(later(7).as_bytes());
        pair.driver.receive(&std::mem::take(&mut pair.client.out));
        pair.client.receive(&std::mem::take(&mut pair.driver.out));
        pair.client.out.extend_from_slice(behind);
        pair.driver.receive(&std::mem::take(&mut pair.client.out));
        assert_eq!(pair.driver.connection.session().is_some(), is_run);
        assert_eq!(pair.driver.service.deferred.len(), usize::from(is_run));
        assert_eq!(pair.driver.connection.next_action() == NextAction::DiscardInput, !is_run);
    }
}

#[test]
fn the_own_origin_needs_the_https_scheme() {
    for (origin, status) in [("https://localhost", "200"), ("http://localhost", "403")] {
        let mut pair = TlsPair::connected();
        let request =
            post(&sum(1)).replacen("\r\n\r\n", &format!("\r\nOrigin: {origin}\r\n\r\n"), 1);
        pair.client.send(request.as_bytes());
        pair.deliver(1 << 20);
        let reply = pair.received();
        assert_eq!(reply.get(9..12), Some(status), "{reply}");
    }
}

#[test]
fn undecrypted_bytes_are_counted_and_released() {
    let mut pair = TlsPair::connected();
    let before = pair.driver.held_bytes();
    pair.client.send(&[b'['; 10_000]);
    let record = std::mem::take(&mut pair.client.out);
    pair.driver.receive(&record[..9_000]);
    assert!(pair.driver.held_bytes() >= before + 9_000);
    pair.driver.release();
    assert_eq!(pair.driver.held_bytes(), 0);
}

#[test]
fn a_websocket_is_answered_as_without_tls() {
    let stream = [
        upgrade("").into_bytes(),
        message(sum(1)),
        message(format!("[{},{}]", sum(2), sum(3))),
        message("nothing"),
        message(sum(4)),
    ];
    let stream = stream.concat();
    let mut plain = Driver::new();
    plain.receive(&stream);
    assert_eq!(frames(&plain.out).len(), 4);
    for piece_bytes in [1, 7, 1 << 20] {
        let mut pair = TlsPair::connected();
        for piece in stream.chunks(piece_bytes) {
            pair.client.send(piece);
        }
        pair.deliver(piece_bytes);
        assert_eq!(pair.client.received, plain.out);
        assert_eq!(pair.driver.connection.next_action(), NextAction::Receive);
        pair.driver.connection.close_notify(&mut pair.driver.out);
        pair.deliver(1 << 20);
        assert!(pair.client.received.ends_with(b"the server closes the connection"));
        assert!(pair.client.tls.has_received_close_notify());
    }
}

/// Without a close_notify, another party may have cut the stream.
#[test]
fn calls_go_on_after_a_close_notify_and_not_after_a_cut() {
    for is_whole in [true, false] {
        let mut pair = TlsPair::connected();
        pair.client.send(post(&later(1)).as_bytes());
        pair.deliver(1 << 20);
        if is_whole {
            pair.client.tls.close(&mut pair.client.out);
            pair.deliver(1 << 20);
            assert_eq!(pair.received(), "HTTP/1.1 100 Continue\r\n\r\n");
        }
        pair.driver.handle_eof();
        let call = pair.driver.service.deferred[0];
        pair.driver.complete(call, Ok(b"1"));
        pair.deliver(1 << 20);
        assert_eq!(pair.received().contains("\"result\":1"), is_whole);
    }
}
