//! The same connection under TLS: the same answers, and what is peculiar to it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ucall_proto::tls::{ClientConfig, ServerConfig, Stage};
use ucall_proto::{Connection, Limits, Wish};

use crate::harness::{Driver, answer, later, post, sum, sum_reply};
use crate::tls::{Authority, End, client, server};

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
struct Secure {
    driver: Driver,
    client: End,
}

impl Secure {
    fn with_limits(limits: Limits) -> Self {
        let (server, client) = configs();
        let mut driver = Driver::with_limits(limits);
        let stage = Stage::server(server).unwrap();
        driver.connection = Connection::secure(driver.now, &driver.limits, stage);
        let mut out = Vec::new();
        let stage = Stage::client(client, "localhost".try_into().unwrap(), &mut out).unwrap();
        Self { driver, client: End::new(stage, out) }
    }

    /// One on which both ends have agreed.
    fn agreed() -> Self {
        let mut secure = Self::with_limits(Limits::default());
        secure.talk(1 << 20);
        assert!(secure.driver.connection.session().is_some());
        secure
    }

    fn talk(&mut self, piece_bytes: usize) {
        loop {
            let said = std::mem::take(&mut self.client.out);
            for piece in said.chunks(piece_bytes) {
                self.driver.receive(piece);
            }
            let answered = std::mem::take(&mut self.driver.out);
            self.client.hear(&answered);
            if said.is_empty() && answered.is_empty() {
                return;
            }
        }
    }

    fn heard(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.client.heard)).unwrap()
    }
}

#[test]
fn the_answers_are_those_of_a_connection_without() {
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
            let mut secure = Secure::with_limits(Limits::default());
            secure.client.say(input.as_bytes());
            secure.talk(piece_bytes);
            let wish = secure.driver.connection.wish();
            assert_eq!((secure.heard(), wish), expected, "{input} in {piece_bytes}");
            let has_ended = secure.client.stage.is_ended_by_peer();
            assert_eq!(has_ended, matches!(wish, Wish::Finish | Wish::Close), "{input}");
        }
    }
}

#[test]
fn replies_that_leave_together_are_one_record() {
    let mut secure = Secure::agreed();
    secure.client.say((post(&sum(1)) + &post(&sum(2)) + &post(&sum(3))).as_bytes());
    secure.driver.receive(&std::mem::take(&mut secure.client.out));
    let out = &secure.driver.out;
    assert_eq!(out.len(), 5 + usize::from(u16::from_be_bytes([out[3], out[4]])));
}

#[test]
fn deferred_replies_and_messages_are_encrypted_too() {
    let mut secure = Secure::agreed();
    secure.client.say(later(7).as_bytes());
    secure.talk(1 << 20);
    let exchange = secure.driver.service.deferred[0];
    secure.driver.complete(exchange, Ok(b"8"));
    let out = &mut secure.driver.out;
    assert!(secure.driver.connection.push(b"{}", out));
    secure.talk(1 << 20);
    assert_eq!(secure.heard(), "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":8}\n{}\n");
}

#[test]
fn a_large_body_comes_whole() {
    let mut secure = Secure::agreed();
    let body = format!(
        r#"{{"jsonrpc":"2.0","method":"echo","params":["{}"],"id":1}}"#,
        "x".repeat(300_000)
    );
    secure.client.say(post(&body).as_bytes());
    secure.talk(10_000);
    assert!(secure.driver.target().is_none());
    assert!(secure.heard().contains(&"x".repeat(300_000)));
}

#[test]
fn a_large_reply_makes_the_connection_pause() {
    let mut secure = Secure::agreed();
    let large = r#"{"jsonrpc":"2.0","method":"large","params":[700000],"id":1}"#;
    secure.client.say(large.repeat(3).as_bytes());
    secure.driver.receive(&std::mem::take(&mut secure.client.out));
    assert_eq!(secure.driver.connection.wish(), Wish::Pause);
    secure.talk(1 << 20);
    assert_eq!(secure.heard().len() / 700_000, 2);
    secure.driver.proceed();
    secure.talk(1 << 20);
    assert_eq!(secure.heard().len() / 700_000, 1);
}

#[test]
fn the_end_of_either_kind_is_the_end() {
    for by_alert in [true, false] {
        let mut secure = Secure::agreed();
        secure.client.say(sum(1).as_bytes());
        if by_alert {
            secure.client.stage.close(&mut secure.client.out);
        }
        secure.driver.receive(&std::mem::take(&mut secure.client.out));
        if !by_alert {
            secure.driver.end();
        }
        assert_eq!(secure.driver.connection.wish(), Wish::Close);
        secure.talk(1 << 20);
        assert_eq!(secure.heard(), sum_reply(1) + "\n");
        assert!(secure.client.stage.is_ended_by_peer());
    }
}

#[test]
fn a_handshake_that_stalls_is_closed_and_told_nothing() {
    let limits = Limits::default();
    let (timeout, instant) = (limits.handshake_timeout, Duration::from_nanos(1));
    for said in [0, 5, 100] {
        let mut secure = Secure::with_limits(limits.clone());
        let hello = std::mem::take(&mut secure.client.out);
        secure.driver.receive(&hello[..said]);
        secure.driver.pass(timeout - instant);
        assert_eq!(secure.driver.connection.wish(), Wish::Receive);
        assert!(secure.driver.connection.idle_since().is_some());
        secure.driver.pass(instant);
        assert_eq!(secure.driver.connection.wish(), Wish::Close);
        assert!(secure.driver.out.is_empty());
    }
}

#[test]
fn one_that_has_agreed_and_is_silent_is_closed_with_goodbye() {
    let mut secure = Secure::agreed();
    secure.driver.pass(Limits::default().idle_timeout);
    assert_eq!(secure.driver.connection.wish(), Wish::Close);
    secure.talk(1 << 20);
    assert!(secure.client.stage.is_ended_by_peer());
}

#[test]
fn plaintext_is_told_where_it_has_come() {
    for (said, expected) in [
        (post(&sum(1)), "HTTP/1.1 400 Bad Request\r\n"),
        (sum(1), r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"#),
        ("\n".to_owned(), r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"#),
    ] {
        let mut secure = Secure::with_limits(Limits::default());
        secure.driver.receive(said.as_bytes());
        let told = secure.driver.sent();
        assert!(told.starts_with(expected) && told.contains("TLS"), "{told}");
        assert_eq!(secure.driver.connection.wish(), Wish::Finish);
        secure.driver.receive(said.as_bytes());
        assert!(secure.driver.out.is_empty());
    }
}

#[test]
fn tls_is_told_that_nobody_speaks_it() {
    let hello = Secure::with_limits(Limits::default()).client.out;
    let mut driver = Driver::new();
    driver.receive(&hello);
    let told = driver.sent();
    assert!(told.starts_with("HTTP/1.1 400 ") && told.contains("speaks no TLS"), "{told}");
    assert_eq!(driver.connection.wish(), Wish::Finish);
}

#[test]
fn broken_records_end_the_connection_with_an_alert() {
    let mut secure = Secure::agreed();
    secure.client.say(sum(1).as_bytes());
    *secure.client.out.last_mut().unwrap() ^= 1;
    secure.talk(1 << 20);
    assert_eq!(secure.driver.connection.wish(), Wish::Finish);
    assert!(secure.client.error.is_some());
    assert!(secure.heard().is_empty());
}

#[test]
fn what_comes_with_the_handshake_is_not_run_when_a_broken_record_follows() {
    let broken = [23, 3, 3, 0, 20].into_iter().chain([0; 20]).collect::<Vec<u8>>();
    for (behind, is_run) in [(&[][..], true), (&broken, false)] {
        let mut secure = Secure::with_limits(Limits::default());
        secure.client.say(later(7).as_bytes());
        secure.driver.receive(&std::mem::take(&mut secure.client.out));
        secure.client.hear(&std::mem::take(&mut secure.driver.out));
        secure.client.out.extend_from_slice(behind);
        secure.driver.receive(&std::mem::take(&mut secure.client.out));
        assert_eq!(secure.driver.connection.session().is_some(), is_run);
        assert_eq!(secure.driver.service.deferred.len(), usize::from(is_run));
        assert_eq!(secure.driver.connection.wish() == Wish::Finish, !is_run);
    }
}

#[test]
fn an_origin_is_ones_own_only_with_the_right_scheme() {
    for (origin, status) in [("https://localhost", "200"), ("http://localhost", "403")] {
        let mut secure = Secure::agreed();
        let request =
            post(&sum(1)).replacen("\r\n\r\n", &format!("\r\nOrigin: {origin}\r\n\r\n"), 1);
        secure.client.say(request.as_bytes());
        secure.talk(1 << 20);
        let told = secure.heard();
        assert_eq!(told.get(9..12), Some(status), "{told}");
    }
}

#[test]
fn what_waits_undecrypted_is_counted_and_given_back() {
    let mut secure = Secure::agreed();
    let before = secure.driver.held_bytes();
    secure.client.say(&[b'['; 10_000]);
    let record = std::mem::take(&mut secure.client.out);
    secure.driver.receive(&record[..9_000]);
    assert!(secure.driver.held_bytes() >= before + 9_000);
    secure.driver.release();
    assert_eq!(secure.driver.held_bytes(), 0);
}
