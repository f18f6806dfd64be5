//! Upstreams that are names: all their addresses, which come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Mutex;

use super::*;

/// The addresses of names, by their hosts and ports, which each test chooses for itself.
static KNOWN: Mutex<BTreeMap<String, Vec<SocketAddr>>> = Mutex::new(BTreeMap::new());

fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
    let known = KNOWN.lock().expect("no test panics with it").get(host).cloned();
    known.ok_or_else(|| io::Error::other("no such name"))
}

fn set_addresses(host: &str, addresses: &[&str]) {
    let addresses = addresses.iter().map(|it| it.parse().expect("an address")).collect();
    KNOWN.lock().expect("no test panics with it").insert(host.to_owned(), addresses);
}

fn forget(host: &str) {
    KNOWN.lock().expect("no test panics with it").remove(host);
}

/// A relay of these upstreams, of which some are names.
fn named(upstreams: &[&str]) -> RelayHarness {
    let mut options = options(upstreams);
    options.upstreams = options.upstreams.into_iter().map(|it| it.with_lookup(lookup)).collect();
    relay(RelayOptions { failures_max: 1, ..options })
}

/// Makes calls, and returns the addresses that they went to.
fn addresses_of_calls(relay: &mut RelayHarness) -> BTreeSet<String> {
    for _ in 0..60 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
    }
    connect(relay);
    let used = relay.sockets().values().filter(|socket| !sent_calls(&socket.sent).is_empty());
    let used = used.map(|socket| socket.address.clone()).collect();
    answer(relay);
    assert_eq!(results(relay).len(), 60);
    used
}

/// As sockets of the harness show them.
fn shown(addresses: &[&str]) -> BTreeSet<String> {
    let parsed = addresses.iter().map(|it| it.parse::<SocketAddr>().expect("an address"));
    parsed.map(|it| format!("{:?}", ucall_engine::SockAddr::from(it).as_socket())).collect()
}

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const UNAVAILABLE: Option<i64> = Some(RpcError::UPSTREAM_UNAVAILABLE);

#[test]
fn calls_go_to_all_addresses_of_a_name() {
    let all = ["127.0.0.11:81", "127.0.0.12:81", "127.0.0.13:81"];
    set_addresses("all.test:81", &all);
    for scheme in ["tcp", "http"] {
        let mut relay = named(&[&format!("{scheme}://all.test:81")]);
        relay.resolve_names();
        assert_eq!(addresses_of_calls(&mut relay), shown(&all));
    }
}

#[test]
fn calls_wait_for_the_first_addresses() {
    set_addresses("first.test:81", &["127.0.0.11:81"]);
    let mut relay = named(&["tcp://first.test:81"]);
    let token = relay.call("up.f", "[1]", "{}").expect("it waits");
    relay.notify("up.f", "[2]").expect("it waits");
    assert!(relay.problem().is_some_and(|problem| problem.contains("is being resolved")));
    relay.resolve_names();
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!((results(&mut relay), relay.problem()), (vec![(token, "[1]".to_owned())], None));
}

#[test]
fn a_name_without_an_address_is_an_error_until_it_has_one() {
    let mut relay = named(&["tcp://late.test:81/".trim_end_matches('/')]);
    let waiting = relay.call("up.f", "[]", "{}").expect("it waits");
    relay.resolve_names();
    let replies = relay.replies();
    let [(token, NativeOutcome::Reply(Err(error)))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((*token, Some(error.code)), (waiting, UNAVAILABLE));
    let error = relay.call("up.f", "[]", "{}").expect_err("it has no address");
    let data = String::from_utf8_lossy(error.data.as_deref().unwrap_or_default()).into_owned();
    assert!(data.contains("no such name") && data.contains(r#""sent":false"#), "{data}");
    let problem = relay.problem().expect("no upstream has an address");
    assert!(problem.contains("tcp://late.test:81: it has no address: no such name"), "{problem}");
    let lines = relay.warnings();
    assert!(lines.iter().any(|line| line.contains("late.test:81: it has no address")), "{lines:?}");
    // It is tried each second, and logged once.
    relay.now += SECOND;
    relay.resolve_names();
    assert_eq!(relay.warnings(), [""; 0]);
    set_addresses("late.test:81", &["127.0.0.11:81"]);
    relay.now += SECOND - MS;
    relay.resolve_names();
    assert_eq!(code(relay.call("up.f", "[]", "{}")), UNAVAILABLE);
    relay.now += MS;
    relay.resolve_names();
    assert_eq!(relay.warnings(), ["relay: tcp://late.test:81 has an address now"]);
    assert_eq!(relay.problem(), None);
    relay.now += SECOND;
    assert_eq!(addresses_of_calls(&mut relay), shown(&["127.0.0.11:81"]));
}

#[test]
fn other_upstreams_serve_while_a_name_has_no_address() {
    let mut relay = named(&["tcp://never.test:81", "tcp://127.0.0.1:2"]);
    relay.resolve_names();
    assert_eq!(addresses_of_calls(&mut relay), shown(&["127.0.0.1:2"]));
    assert_eq!(relay.problem(), None, "the relay has an upstream");
}

#[test]
fn addresses_that_a_name_has_no_more_get_no_more_calls() {
    set_addresses("pods.test:81", &["127.0.0.11:81", "127.0.0.12:81"]);
    let mut relay = named(&["tcp://pods.test:81"]);
    relay.resolve_names();
    relay.now += 30 * SECOND - 2 * MS;
    for _ in 0..60 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
    }
    connect(&mut relay);
    set_addresses("pods.test:81", &["127.0.0.12:81", "127.0.0.13:81"]);
    relay.now += MS;
    relay.resolve_names();
    assert_eq!(relay.sockets().len(), 2);
    relay.now += MS;
    relay.resolve_names();
    // Calls that were sent are answered.
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 60);
    let new = shown(&["127.0.0.12:81", "127.0.0.13:81"]);
    assert_eq!(addresses_of_calls(&mut relay), new);
    assert!(relay.sockets().values().all(|socket| new.contains(&socket.address)));
    // Its place is taken by another: as many come and go as they want.
    for number in 20..200 {
        set_addresses("pods.test:81", &[&format!("127.0.0.{number}:81")]);
        relay.now += 30 * SECOND;
        relay.resolve_names();
        let expected = shown(&[&format!("127.0.0.{number}:81")]);
        assert_eq!(addresses_of_calls(&mut relay), expected);
    }
    forget("pods.test:81");
    relay.now += 30 * SECOND;
    relay.resolve_names();
    assert_eq!(addresses_of_calls(&mut relay), shown(&["127.0.0.199:81"]), "the last known");
}

#[test]
fn a_failure_resolves_a_name_again_after_a_second() {
    set_addresses("moved.test:81", &["127.0.0.11:81"]);
    let mut relay = named(&["tcp://moved.test:81"]);
    relay.resolve_names();
    set_addresses("moved.test:81", &["127.0.0.12:81"]);
    relay.now += SECOND;
    relay.resolve_names();
    for _ in 0..2 {
        relay.call("up.f", "[]", "{}").expect("it is taken");
        relay.end_turn();
    }
    relay.connected(0, Err(io::ErrorKind::ConnectionRefused.into()));
    relay.resolve_names();
    relay.resolve_names();
    assert!(!relay.replies().is_empty() || relay.waiting() > 0);
    assert_eq!(addresses_of_calls_after_failures(&mut relay), shown(&["127.0.0.12:81"]));
}

/// The same after failures, whose calls are answered, too.
fn addresses_of_calls_after_failures(relay: &mut RelayHarness) -> BTreeSet<String> {
    connect(relay);
    answer(relay);
    relay.replies();
    addresses_of_calls(relay)
}

#[test]
fn addresses_of_ipv6_come_last() {
    set_addresses("both.test:81", &["[::1]:81", "127.0.0.11:81"]);
    let mut relay = named(&["tcp://both.test:81"]);
    relay.resolve_names();
    assert_eq!(addresses_of_calls(&mut relay), shown(&["127.0.0.11:81"]));
    relay.disconnect(0, io::ErrorKind::UnexpectedEof.into());
    relay.end_turn();
    let token = relay.call("up.f", "[1]", "{}").expect("it is taken");
    relay.end_turn();
    relay.connected(0, Err(io::ErrorKind::ConnectionRefused.into()));
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay), [(token, "[1]".to_owned())], "it was sent to the other");
    assert_eq!(addresses_of_calls(&mut relay), shown(&["[::1]:81"]));
    set_addresses("six.test:81", &["[::1]:81", "[::2]:81"]);
    let mut relay = named(&["tcp://six.test:81"]);
    relay.resolve_names();
    assert_eq!(addresses_of_calls(&mut relay), shown(&["[::1]:81", "[::2]:81"]));
}
