//! Every limit in time of a relay, on a clock that the test moves: what happens at the limit, and
//! that nothing happens before it.

use std::time::Instant;

use ucall_proto::tls::{ClientSettings, Trust};

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const TIMED_OUT: i64 = RpcError::DEADLINE_PASSED;
const UNAVAILABLE: Option<i64> = Some(RpcError::UPSTREAM_UNAVAILABLE);

impl RelayHarness {
    /// Takes turns, each at the time at which it is due, until something holds; returns how long
    /// that took.
    fn turn_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) -> Duration {
        let (began, mut turns) = (self.now, 0);
        self.end_turn();
        while !holds(self) {
            turns += 1;
            assert!(turns < 10_000, "waited in vain");
            self.now = self.now.max(self.deadline().expect("nothing more will happen"));
            self.end_turn();
        }
        self.now - began
    }

    fn advance(&mut self, duration: Duration) {
        self.now += duration;
        self.end_turn();
    }

    /// The codes of the errors since the last time, and what is wrong.
    fn errors(&mut self) -> Vec<(i64, String)> {
        let error = |(_, reply)| match reply {
            NativeOutcome::Reply(Err(RpcError { code, data, .. })) => {
                (code, String::from_utf8(data.unwrap_or_default()).unwrap_or_default())
            }
            other => panic!("expected an error, got {other:?}"),
        };
        self.replies().into_iter().map(error).collect()
    }

    /// How long it takes until all sockets are closed.
    fn time_until_closed(&mut self) -> Duration {
        self.turn_until(|relay| relay.sockets().is_empty())
    }

    /// The next error, and how long it takes until it is there.
    fn next_error(&mut self) -> (Duration, i64, String) {
        let mut errors = Vec::new();
        let waited = self.turn_until(|relay| {
            errors.append(&mut relay.errors());
            !errors.is_empty()
        });
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (code, reason) = errors.remove(0);
        (waited, code, reason)
    }
}

fn call(relay: &mut RelayHarness, meta: &str) -> Token {
    relay.call("up.f", "[]", meta).expect("it is taken")
}

#[test]
fn a_connect_has_a_second_and_is_tried_twice() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    call(&mut relay, "{}");
    let (waited, code, reason) = relay.next_error();
    assert_eq!((waited, Some(code)), (2 * SECOND, UNAVAILABLE));
    assert!(reason.contains("it has not accepted a connection in 1000 ms"), "{reason}");
    call(&mut relay, "{}");
    relay.end_turn();
    relay.advance(SECOND - MS);
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 1, "one that comes in time is used");
}

#[test]
fn a_tls_handshake_has_ten_seconds() {
    let settings = ClientSettings { trust: Trust::Anyone, identity: None, alpn: &[] };
    let tls = Some(settings.build().expect("it is valid"));
    let tls = UpstreamOptions::new(Vec::new(), false, tls).expect("there are no headers");
    let upstream = UpstreamAddress::parse("tls://127.0.0.1:1", &tls).expect("an address");
    let mut relay = relay(RelayOptions { upstreams: vec![upstream], ..options(&[]) });
    call(&mut relay, "{}");
    connect(&mut relay);
    let lost = relay.turn_until(|relay| relay.sockets().values().all(|socket| !socket.is_open));
    assert_eq!(lost, 10 * SECOND);
    connect(&mut relay);
    let (waited, code, reason) = relay.next_error();
    assert_eq!((waited, Some(code)), (10 * SECOND, UNAVAILABLE));
    assert!(reason.contains("it has not ended the handshake of TLS in 10000 ms"), "{reason}");
}

#[test]
fn the_shorter_of_the_deadlines_of_the_caller_and_of_the_relay_counts() {
    for (meta, expected) in [("{}", 30 * SECOND), (r#"{"timeout_ms":250}"#, 250 * MS)] {
        let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
        call(&mut relay, meta);
        connect(&mut relay);
        let (waited, code, reason) = relay.next_error();
        assert_eq!((waited, code), (expected, TIMED_OUT));
        let allowed = format!("expected a reply within {} ms", expected.as_millis());
        assert!(reason.contains(&allowed), "{reason}");
        let sent = String::from_utf8_lossy(relay.sent()).into_owned();
        assert!(sent.contains(&format!(r#""timeout_ms":{}"#, expected.as_millis())), "{sent}");
    }
}

#[test]
fn an_unused_connection_is_closed_before_its_upstream_closes_it() {
    for (scheme, seconds) in [("tcp", 30), ("http", 4)] {
        let mut relay = relay(options(&[&format!("{scheme}://127.0.0.1:1")]));
        call(&mut relay, "{}");
        connect(&mut relay);
        answer(&mut relay);
        relay.advance(seconds * SECOND - MS);
        assert_eq!(relay.sockets().len(), 1, "{scheme}");
        call(&mut relay, "{}");
        relay.end_turn();
        answer(&mut relay);
        assert_eq!(relay.time_until_closed(), seconds * SECOND, "{scheme}: used since");
    }
}

/// The reply to a call that was given up may come, so the connection is kept for a second.
#[test]
fn a_connection_waits_a_second_for_replies_that_nothing_waits_for() {
    let mut relay = relay(options(&["tcp://127.0.0.1:1"]));
    for is_answered in [true, false] {
        let token = call(&mut relay, "{}");
        connect(&mut relay);
        relay.cancel(token);
        relay.advance(SECOND - MS);
        assert_eq!(relay.sockets().len(), 1);
        if is_answered {
            relay.receive(0, br#"{"id":0,"result":1}"#);
            assert!(results(&mut relay).is_empty());
        }
        let seconds = if is_answered { 30 * SECOND } else { MS };
        assert_eq!(relay.time_until_closed(), seconds, "{is_answered}");
    }
    assert!(relay.warnings().is_empty(), "none of it is a failure");
}

#[test]
fn a_notification_over_http_has_the_time_of_a_call() {
    let options = options(&["http://127.0.0.1:1"]);
    let mut relay = relay(RelayOptions { outstanding_max: 1, ..options });
    relay.notify("up.f", "[]").expect("it is taken");
    connect(&mut relay);
    relay.advance(30 * SECOND - MS);
    assert_eq!(code(relay.call("up.f", "[]", "{}")), OVERLOADED);
    assert_eq!(relay.time_until_closed(), MS);
    call(&mut relay, "{}");
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 1);
}

/// More than may be outstanding at once.
#[test]
fn calls_that_stay_without_a_reply_use_up_no_limit() {
    let options = options(&["tcp://127.0.0.1:1"]);
    let mut relay = relay(RelayOptions { outstanding_max: 100, ..options });
    for round in 0..10 {
        for _ in 0..60 {
            call(&mut relay, r#"{"timeout_ms":50}"#);
        }
        connect(&mut relay);
        relay.advance(50 * MS);
        let errors = relay.errors();
        assert!(errors.len() == 60 && errors.iter().all(|(code, _)| *code == TIMED_OUT));
        // Those connections are closed: the next call has another.
        call(&mut relay, "{}");
        connect(&mut relay);
        answer(&mut relay);
        assert_eq!(results(&mut relay).len(), 1, "in round {round}");
    }
}

/// Calls that are late, until the breaker opens; returns the time at which it does.
fn open(relay: &mut RelayHarness) -> Instant {
    for _ in 0..5 {
        assert_eq!(relay.warnings(), [""; 0]);
        call(relay, r#"{"timeout_ms":1000}"#);
        connect(relay);
        assert_eq!(relay.next_error().1, TIMED_OUT);
    }
    relay.now
}

#[test]
fn an_upstream_that_is_late_gets_no_calls_for_a_time_that_doubles() {
    let options = options(&["tcp://127.0.0.1:1"]);
    let mut relay = relay(RelayOptions { timeout: SECOND, ..options });
    let mut opened = open(&mut relay);
    let times = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000];
    for ms in times {
        let label = "tcp://127.0.0.1:1";
        let line = format!("relay: {label} has failed, no calls for {ms} ms: it has not answered");
        let warnings = relay.warnings();
        assert!(warnings.len() == 1 && warnings[0].starts_with(&line), "{warnings:?}");
        relay.now = opened + ms * MS - MS;
        assert_eq!(code(relay.call("up.f", "[]", "{}")), UNAVAILABLE, "open");
        relay.now = opened + ms * MS;
        call(&mut relay, r#"{"timeout_ms":1000}"#);
        assert_eq!(code(relay.call("up.f", "[]", "{}")), UNAVAILABLE, "one probe at a time");
        connect(&mut relay);
        assert_eq!(relay.next_error().1, TIMED_OUT);
        opened = relay.now;
    }
    relay.warnings();
    relay.now = opened + 15 * SECOND;
    call(&mut relay, "{}");
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 1);
    relay.end_turn();
    assert_eq!(relay.warnings(), ["relay: tcp://127.0.0.1:1 answers again"]);
    // Closed: it takes all calls, and is open for the shortest time at first.
    for _ in 0..3 {
        call(&mut relay, "{}");
    }
    connect(&mut relay);
    answer(&mut relay);
    assert_eq!(results(&mut relay).len(), 3);
    open(&mut relay);
    assert!(relay.warnings()[0].contains("no calls for 500 ms"));
}

#[test]
fn a_call_with_less_time_than_the_relay_gives_says_nothing_about_its_upstream() {
    for (timeout, meta, is_failure) in [
        (30 * SECOND, r#"{"timeout_ms":4999}"#, false),
        (30 * SECOND, "{}", true),
        (20 * MS, r#"{"timeout_ms":3}"#, false),
        (20 * MS, "{}", true),
    ] {
        let options = options(&["tcp://127.0.0.1:1"]);
        let mut relay = relay(RelayOptions { timeout, ..options });
        for _ in 0..5 {
            call(&mut relay, meta);
            connect(&mut relay);
            assert_eq!(relay.next_error().1, TIMED_OUT);
        }
        relay.end_turn();
        assert_eq!(relay.warnings().len(), usize::from(is_failure), "{meta}");
        let expected = if is_failure { UNAVAILABLE } else { None };
        assert_eq!(code(relay.call("up.f", "[]", "{}")), expected, "{meta}");
    }
}
