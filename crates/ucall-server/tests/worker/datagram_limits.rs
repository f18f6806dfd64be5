//! The limits of calls over UDP, and forged addresses.

use std::collections::HashSet;
use std::net::SocketAddr;

use proptest::prelude::*;

use crate::datagrams::{Udp, result, udp, with_cookie};
use crate::harness::call;

fn batch(calls: &[String]) -> String {
    format!("[{}]", calls.join(","))
}

impl Udp {
    /// The only reply to a request.
    fn reply(&mut self, number: u8, text: &str) -> String {
        let mut replies = self.send(number, text);
        assert_eq!(replies.len(), 1, "{text}: {replies:?}");
        replies.remove(0)
    }

    fn begin(&mut self, number: u8, method: &str, id: &str, cookie: Option<&str>) -> Vec<String> {
        let text = match cookie {
            Some(cookie) => with_cookie(method, "[]", id, cookie),
            None => call(method, "[]", id),
        };
        self.send(number, &text)
    }
}

#[test]
fn forged_calls_in_flight_do_not_count_for_a_cookie() {
    let mut udp = udp(|config| config.datagrams.source_calls_max = 3);
    let cookie = udp.cookie(1);
    for id in ["1", "2", "3"] {
        assert_eq!(udp.begin(1, "later", id, None), [""; 0]);
    }
    assert!(udp.begin(1, "later", "4", None)[0].contains("-32006"));
    for id in ["5", "6", "7"] {
        assert_eq!(udp.begin(1, "later", id, Some(&cookie)), [""; 0]);
    }
    assert_eq!((udp.harness.stats().calls, udp.counts().refused), (6, 1));
    assert_eq!(udp.begin(1, "later", "8", Some(&cookie)), [""; 0]);
    assert_eq!((udp.harness.stats().calls, udp.counts().refused), (6, 2));
    udp.harness.complete("1", Ok(b"1".to_vec()));
    assert_eq!(udp.replies(1), [result("1", "1")]);
    assert_eq!(udp.begin(1, "echo", "9", None), [result("9", "[]")]);
    assert_eq!(udp.begin(1, "echo", "10", Some(&cookie)), [""; 0]);
}

#[test]
fn forged_calls_a_second_do_not_count_for_a_cookie() {
    let mut udp = udp(|config| config.datagrams.source_rate_max = Some(2));
    let cookie = udp.cookie(1);
    assert_eq!(udp.begin(1, "echo", "1", None), [result("1", "[]")]);
    assert_eq!(udp.begin(1, "echo", "2", None), [result("2", "[]")]);
    assert!(udp.begin(1, "echo", "3", None)[0].contains("-32006"));
    assert_eq!(udp.begin(1, "echo", "3", Some(&cookie)), [result("3", "[]")]);
    assert_eq!(udp.begin(1, "echo", "4", Some(&cookie)), [result("4", "[]")]);
    assert_eq!(udp.begin(1, "echo", "5", Some(&cookie)), [""; 0]);
}

/// The forger has the address of a client, and fills all memory that it may use.
#[test]
fn forged_replies_do_not_use_the_memory_of_a_cookie() {
    let mut udp = udp(|config| config.datagrams.dedupe_bytes_max = 20_000);
    let cookie = udp.cookie(1);
    let is_refused = |reply: &String| reply.contains("-32006");
    let forged = |udp: &mut Udp, id: u32| udp.begin(1, "echo", &id.to_string(), None);
    assert!((10..1_000).any(|id| forged(&mut udp, id).iter().any(is_refused)));
    let calls = udp.harness.stats().calls;
    assert_eq!(udp.begin(1, "echo", "1", Some(&cookie)), [result("1", "[]")]);
    assert_eq!(udp.harness.stats().calls, calls + 1);
    // A call that was forged has run: the client gets its reply.
    assert_eq!(udp.begin(1, "echo", "10", Some(&cookie)), [result("10", "[]")]);
    assert_eq!(udp.harness.stats().calls, calls + 1);
}

#[test]
fn a_batch_counts_each_call_in_flight() {
    let mut udp = udp(|config| config.datagrams.source_calls_max = 3);
    let cookie = udp.cookie(1);
    let later = |id: &str| with_cookie("later", "[]", id, &cookie);
    let long = udp.reply(1, &batch(&["1", "2", "3", "4"].map(later)));
    assert!(long.contains("-32600") && long.contains("expected at most 3 calls"), "{long}");
    // Notifications want no reply, and no call of the batch has run.
    let notification = r#"{"jsonrpc":"2.0","method":"echo"}"#.to_owned();
    let [one, two, three] = ["1", "2", "3"].map(later);
    assert_eq!(udp.send(1, &batch(&[one, notification.clone(), two, three])), [""; 0]);
    assert_eq!(udp.harness.stats().calls, 4);
    for id in ["1", "2"] {
        udp.harness.complete(id, Ok(b"0".to_vec()));
        assert_eq!(udp.begin(1, "echo", "9", Some(&cookie)), [""; 0], "the batch is in flight");
        assert_eq!(udp.send(1, &notification), [""; 0]);
    }
    udp.harness.complete("3", Ok(b"0".to_vec()));
    assert_eq!(udp.replies(1), [batch(&["1", "2", "3"].map(|id| result(id, "0")))]);
    assert_eq!(udp.begin(1, "later", "4", Some(&cookie)), [""; 0]);
    assert_eq!(udp.send(1, &batch(&["5", "6", "7"].map(later))), [""; 0], "one is in flight");
    assert_eq!(udp.send(1, &batch(&["5", "6"].map(later))), [""; 0]);
    assert_eq!(udp.harness.stats().calls, 9);
}

#[test]
fn a_repeat_gets_its_reply_past_all_limits() {
    let mut udp = udp(|config| {
        config.datagrams.source_calls_max = 1;
        config.datagrams.source_rate_max = Some(2);
        config.limits.held_bytes_max = 1_000_000;
    });
    assert_eq!(udp.begin(1, "echo", "1", None), [result("1", "[]")]);
    assert_eq!(udp.begin(1, "later", "2", None), [""; 0]);
    assert!(udp.begin(1, "echo", "3", None)[0].contains("-32006"));
    assert_eq!(udp.begin(1, "echo", "1", None), [result("1", "[]")]);
    assert_eq!(udp.begin(1, "later", "2", None), [""; 0]);
    udp.harness.worker.handler_mut().reserve(2_000_000);
    udp.harness.turn();
    assert!(udp.begin(2, "echo", "1", None)[0].contains("-32006"));
    assert_eq!(udp.begin(1, "echo", "1", None), [result("1", "[]")]);
    assert_eq!((udp.harness.stats().calls, udp.counts().repeated), (2, 3));
}

#[test]
fn no_call_without_a_cookie_runs_while_memory_is_short() {
    let mut udp = udp(|config| config.limits.held_bytes_max = 1_000_000);
    udp.harness.worker.handler_mut().reserve(2_000_000);
    udp.harness.turn();
    let refused = udp.begin(1, "echo", "1", None);
    let (_, rest) = refused[0].split_once(r#""code":-32006"#).unwrap();
    let cookie = rest.split('"').find(|text| text.len() == 32).unwrap();
    let refused = udp.begin(1, "echo", "1", Some(cookie));
    assert!(refused[0].contains("-32003"), "{refused:?}");
    udp.harness.worker.handler_mut().reserve(0);
    udp.harness.turn();
    assert_eq!(udp.begin(1, "echo", "1", Some(cookie)), [result("1", "[]")]);
    assert_eq!(udp.begin(2, "echo", "1", None), [result("1", "[]")]);
}

#[test]
fn the_last_allowed_lengths_of_replies() {
    let mut udp = udp(|config| config.datagrams.source_rate_max = None);
    let cookie = udp.cookie(1);
    let empty = result("5", "\"\"").len();
    let reply = udp.reply(1, &with_cookie("large", &format!("[{}]", 1_232 - empty), "5", &cookie));
    assert_eq!((reply.len(), reply.contains("error")), (1_232, false));
    let reply = udp.reply(1, &with_cookie("large", &format!("[{}]", 1_233 - empty), "5", &cookie));
    assert!(reply.contains(r#""bytes":1233,"max_datagram_bytes":1232"#), "{reply}");
    // Without a cookie: three times the request, and a byte more.
    let id = format!("\"{}\"", "x".repeat(100));
    let empty = result(&id, "\"\"").len();
    let request_bytes = call("large", "[100]", &id).len();
    let reply = udp.reply(1, &call("large", &format!("[{}]", 3 * request_bytes - empty), &id));
    assert_eq!((reply.len(), reply.contains("error")), (3 * request_bytes, false));
    let reply = udp.reply(1, &call("large", &format!("[{}]", 3 * request_bytes - empty + 1), &id));
    assert!(reply.contains("-32006"), "{reply}");
}

#[test]
fn a_batch_of_one_call_is_no_repeat_of_the_call() {
    let mut udp = udp(|_| {});
    let text = call("echo", "[1]", "1");
    assert_eq!(udp.send(1, &text), [result("1", "[1]")]);
    assert_eq!(udp.send(1, &format!("[{text}]")), [format!("[{}]", result("1", "[1]"))]);
    assert_eq!((udp.harness.stats().calls, udp.counts().repeated), (2, 0));
}

#[test]
fn the_addresses_of_a_network_of_ipv6_are_one_source() {
    let mut udp = udp(|config| config.datagrams.source_calls_max = 2);
    let from = |address: &str| SocketAddr::new(address.parse().unwrap(), 5_000);
    let mut send = |address, id| {
        let text = call("later", "[]", id);
        udp.harness.network.write_datagram(udp.socket, text.as_bytes(), from(address));
        udp.harness.turn();
        udp.harness.stats().calls
    };
    assert_eq!(send("2001:db8::1", "1"), 1);
    assert_eq!(send("2001:db8::2", "2"), 2);
    assert_eq!(send("2001:db8::3", "3"), 2, "refused");
    assert_eq!(send("2001:db8:0:1::1", "4"), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_sequence_of_calls_is_amplified_or_runs_one_twice(
        sent in prop::collection::vec(
            (0..3u8, 0..6u8, 0..1_500usize, 0..400usize, prop::option::of(0..4u8)),
            1..40,
        ),
        dedupe_bytes_max in 2_000..40_000usize,
    ) {
        let mut udp = udp(|config| config.datagrams.dedupe_bytes_max = dedupe_bytes_max);
        let mut cookies: Vec<_> = (0..3).map(|number| udp.cookie(number)).collect();
        cookies.push("0".repeat(32));
        let mut distinct = HashSet::new();
        for (source, id, reply_bytes, padding, cookie_of) in sent {
            let (number, params) = (id.to_string(), format!("[{reply_bytes}]"));
            let cookie = cookie_of.map(|number| &cookies[usize::from(number)]);
            let text = match cookie {
                Some(cookie) => with_cookie("large", &params, &number, cookie),
                None => call("large", &params, &number),
            } + &" ".repeat(padding);
            let replies = udp.send(source, &text);
            prop_assert!(replies.len() <= 1);
            let bytes = replies.first().map_or(0, String::len);
            prop_assert!(bytes <= 1_232, "{text}: {replies:?}");
            let is_proven = cookie_of == Some(source);
            prop_assert!(is_proven || bytes <= 3 * text.len(), "{text}: {replies:?}");
            distinct.insert((source, id, reply_bytes));
        }
        prop_assert!(udp.harness.stats().calls <= distinct.len() as u64);
    }
}
