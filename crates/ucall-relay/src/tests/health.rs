//! Health checks: what they ask, what they count, and what follows.

use std::mem;
use std::sync::Arc;

use super::*;
use crate::harness::FakeSocket;
use crate::options::HealthOptions;

const INTERVAL: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(1);

fn checked(upstreams: &[&str], ask: &str) -> RelayHarness {
    let health = HealthOptions::new(ask.to_owned(), INTERVAL, TIMEOUT, 2, 2).expect("it is valid");
    let mut relay = relay(RelayOptions { health: Some(Arc::new(health)), ..options(upstreams) });
    relay.end_turn();
    relay
}

/// The socket of the check that connects to this port.
fn check_of(relay: &mut RelayHarness, port: u16) -> Option<u32> {
    let address = format!(":{port})");
    let is_check = |it: &FakeSocket| !it.is_open && it.address.contains(&address);
    let mut sockets = relay.sockets().iter().filter(|(_, it)| is_check(it));
    sockets.next().map(|(number, _)| *number)
}

/// The check of an upstream gets this answer. Returns what it has asked.
fn check(relay: &mut RelayHarness, port: u16, answer: &str) -> String {
    let socket = check_of(relay, port).expect("a check is in progress");
    relay.connected(socket, Ok(()));
    relay.end_turn();
    let mut sockets = relay.sockets().iter_mut().filter(|(_, it)| !it.sent.is_empty());
    let (socket, asked) = sockets
        .next()
        .map(|(number, it)| (*number, mem::take(&mut it.sent)))
        .expect("it has asked");
    relay.receive(socket, answer.as_bytes());
    relay.end_turn();
    String::from_utf8(asked).expect("it is text")
}

/// Lets time pass until the next checks begin.
fn wait(relay: &mut RelayHarness) {
    while check_of(relay, 1).is_none() {
        relay.now = relay.deadline().expect("a check is due");
        relay.end_turn();
    }
}

#[test]
fn a_check_asks_by_a_path_or_a_method_and_reads_the_answer() {
    let call = r#"{"jsonrpc":"2.0","method":"rpc.discover","id":1}"#;
    let get = |host: &str| format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\n");
    let ok = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n";
    let down = "HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n";
    let (result, error) =
        (r#"{"id":1,"result":{}}"#, r#"{"id":1,"error":{"code":-1,"message":"no"}}"#);
    let body =
        |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for (upstream, ask, asked, good, bad, reason) in [
        ("tcp", "/readyz", get("127.0.0.1:1"), ok.into(), down.into(), "status 503 Down"),
        ("http", "/readyz", get("127.0.0.1:1"), ok.into(), down.into(), "status 503 Down"),
        ("tcp", "rpc.discover", call.into(), result.into(), error.to_owned(), "-1 no"),
        ("http", "rpc.discover", call.into(), body(result), body(error), "-1 no"),
        ("http", "rpc.discover", call.into(), body(result), down.into(), "status 503 Down"),
        ("tcp", "rpc.discover", call.into(), result.into(), "?".into(), "no JSON"),
    ] {
        let mut relay = checked(&[&format!("{upstream}://127.0.0.1:1")], ask);
        for is_good in [true, true, false, false, true, true] {
            assert_eq!(relay.warnings(), [""; 0]);
            let text = check(&mut relay, 1, if is_good { &good } else { &bad });
            assert!(text.contains(&asked), "{text}");
            wait(&mut relay);
            if relay.problem().is_some() && !is_good {
                let line = relay.warnings().remove(0);
                let begin = "relay: ".to_owned() + upstream + "://127.0.0.1:1 is unhealthy: ";
                assert!(line.starts_with(&begin) && line.contains(reason), "{line}");
            }
        }
        let expected = format!("relay: {upstream}://127.0.0.1:1 is healthy again");
        assert_eq!((relay.warnings(), relay.problem()), (vec![expected], None));
        assert!(relay.replies().is_empty());
    }
}

/// The calls of forty that each of two upstreams gets.
fn forty_calls(relay: &mut RelayHarness) -> [usize; 2] {
    for _ in 0..40 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
    }
    let checks: Vec<_> = [1, 2].into_iter().filter_map(|port| check_of(relay, port)).collect();
    let is_call = |number: &u32| !checks.contains(number);
    relay.end_turn();
    let opening = relay.sockets().iter().filter(|(number, it)| !it.is_open && is_call(number));
    let opening: Vec<u32> = opening.map(|(number, _)| *number).collect();
    opening.into_iter().for_each(|number| relay.connected(number, Ok(())));
    relay.end_turn();
    let counts = [":1)", ":2)"].map(|port| {
        let sockets = relay.sockets().values().filter(|it| it.address.contains(port));
        sockets.map(|it| sent_calls(&it.sent).len()).sum()
    });
    answer(relay);
    assert_eq!(results(relay).len(), 40);
    counts
}

#[test]
fn an_unhealthy_upstream_gets_calls_only_while_no_other_is_there() {
    let mut relay = checked(&["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "/readyz");
    let states = [(true, true), (false, true), (false, false), (false, true), (true, true)];
    for (is_one_healthy, is_other_healthy) in states {
        for _ in 0..2 {
            for (port, is_healthy) in [(1, is_one_healthy), (2, is_other_healthy)] {
                let status = if is_healthy { "200 OK" } else { "503 No" };
                check(&mut relay, port, &format!("HTTP/1.1 {status}\r\n\r\n"));
            }
            wait(&mut relay);
        }
        let [one, other] = forty_calls(&mut relay);
        let is_one_called = is_one_healthy || !is_other_healthy;
        assert_eq!((one > 0, other > 0), (is_one_called, true), "{is_one_healthy} {one} {other}");
        assert_eq!(relay.problem().is_none(), is_other_healthy);
    }
}

#[test]
fn a_check_has_a_time_and_begins_again_after_the_interval() {
    let mut relay = checked(&["tcp://127.0.0.1:1"], "/readyz");
    let began = relay.now;
    assert_eq!(relay.deadline(), Some(began + TIMEOUT));
    relay.connected(0, Ok(()));
    relay.now = began + TIMEOUT - Duration::from_millis(1);
    relay.end_turn();
    assert_eq!(relay.sockets().len(), 1);
    relay.now = began + TIMEOUT;
    relay.end_turn();
    assert_eq!(relay.sockets().len(), 0);
    assert_eq!(relay.deadline(), Some(began + INTERVAL));
    wait(&mut relay);
    assert_eq!((relay.sockets().len(), relay.now), (1, began + INTERVAL));
    // A check that this process cannot make says nothing.
    relay.connected(0, Err(ucall_engine::too_many_descriptors()));
    relay.end_turn();
    assert_eq!((relay.sockets().len(), relay.problem()), (0, None));
    wait(&mut relay);
    relay.connected(0, Err(io::ErrorKind::ConnectionRefused.into()));
    relay.end_turn();
    assert_eq!(relay.problem().as_deref(), Some("relay: tcp://127.0.0.1:1 is unhealthy"));
}
