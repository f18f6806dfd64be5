//! Calls over UDP.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use ucall_engine::Id;
use ucall_proto::{CookieKey, RpcError};
use ucall_server::{DatagramCounts, Drain, Message, WorkerConfig};

use crate::harness::{Harness, call};

const KEY: [u8; 32] = [7; 32];

pub struct Udp {
    pub harness: Harness,
    pub socket: Id,
}

pub fn udp(configure: impl FnOnce(&mut WorkerConfig)) -> Udp {
    let mut harness = Harness::with(|config| {
        config.datagrams.cookie_key = Some(CookieKey::new(&KEY));
        configure(config);
    });
    let unused = UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = harness.worker.listen_datagrams(unused).unwrap();
    Udp { harness, socket }
}

fn source(number: u8) -> SocketAddr {
    ([192, 0, 2, number], 5_000 + u16::from(number)).into()
}

impl Udp {
    pub fn send(&mut self, number: u8, text: &str) -> Vec<String> {
        self.harness.network.write_datagram(self.socket, text.as_bytes(), source(number));
        self.harness.turn();
        self.replies(number)
    }

    /// The replies to one source; there are none to others.
    pub fn replies(&mut self, number: u8) -> Vec<String> {
        let replies = self.harness.network.read_datagrams(self.socket).into_iter();
        let text = |(bytes, to)| {
            assert_eq!(to, source(number));
            String::from_utf8(bytes).unwrap()
        };
        replies.map(text).collect()
    }

    /// Makes new calls until a drain refuses one.
    fn await_refusal(&mut self) {
        let mut id = 100;
        self.harness.turn_until(|harness| {
            id += 1;
            let text = call("echo", "[]", &id.to_string());
            harness.network.write_datagram(self.socket, text.as_bytes(), source(1));
            harness.turn();
            let replies = harness.network.read_datagrams(self.socket);
            replies.iter().any(|(reply, _)| String::from_utf8_lossy(reply).contains("-32002"))
        });
    }

    pub fn counts(&self) -> DatagramCounts {
        self.harness.stats().datagrams
    }

    pub fn cookie(&mut self, number: u8) -> String {
        let replies = self.send(number, &call("rpc.cookie", "[]", "1"));
        let (_, rest) = replies[0].split_once(r#""result":""#).unwrap();
        rest.trim_end_matches("\"}").to_owned()
    }
}

pub fn with_cookie(method: &str, params: &str, id: &str, cookie: &str) -> String {
    let meta = format!(r#"{{"cookie":"{cookie}"}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id},"_meta":{meta}}}"#)
}

pub fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

#[test]
fn a_datagram_is_answered_by_one() {
    let mut udp = udp(|_| {});
    for id in ["1", "\"a\"", "null"] {
        assert_eq!(udp.send(1, &call("echo", "[1,2]", id)), [result(id, "[1,2]")]);
    }
    let batch = format!("[{},{}]", call("echo", "[1]", "1"), call("echo", "[2]", "2"));
    let replies = format!("[{},{}]", result("1", "[1]"), result("2", "[2]"));
    assert_eq!(udp.send(1, &batch), [replies]);
    let notification = r#"{"jsonrpc":"2.0","method":"echo","params":[1]}"#;
    assert_eq!(udp.send(1, notification), [""; 0]);
    assert_eq!(udp.harness.stats().calls, 6);
    assert!(udp.send(1, &call("nothing", "[]", "1"))[0].contains("-32601"));
}

/// Each is dropped and counted, and a valid call after it is answered.
#[test]
fn no_datagram_without_a_valid_request_is_answered() {
    let mut udp = udp(|_| {});
    let valid = call("echo", "[1]", "1");
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let bad: Vec<String> = [
        "",
        " ",
        "{",
        "[]",
        "{}",
        "1",
        "null",
        "\u{0}",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        &valid[..valid.len() - 1],
        &format!("{valid}{valid}"),
        &format!("{valid}x"),
        &format!("[{valid},1]"),
        &format!("[{valid},{{}}]"),
        r#"{"jsonrpc":"1.0","method":"echo","id":1}"#,
        r#"{"jsonrpc":"2.0","method":1,"id":1}"#,
        r#"{"jsonrpc":"2.0","method":"echo","id":{}}"#,
        r#"{"jsonrpc":"2.0","method":"echo","params":1,"id":1}"#,
        r#"{"jsonrpc":"2.0","method":"echo","id":1,"_meta":1}"#,
        // What a server sends.
        &result("1", "[1]"),
        &format!("[{}]", result("1", "[1]")),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32006,"message":"Cookie required"}}"#,
        &deep,
    ]
    .map(str::to_owned)
    .into();
    for (index, text) in bad.iter().enumerate() {
        assert_eq!(udp.send(1, text), [""; 0], "{text}");
        assert_eq!(udp.counts().invalid, index as u64 + 1, "{text}");
        let id = index.to_string();
        assert_eq!(udp.send(1, &call("echo", "[1]", &id)), [result(&id, "[1]")]);
    }
    let many = vec![valid; 1_001].join(",");
    assert_eq!(udp.send(1, &format!("[{many}]")), [""; 0]);
    udp.harness.network.write_datagram(udp.socket, b"{\"jsonrpc\":\"\xff\"}", source(1));
    udp.harness.turn();
    assert_eq!(udp.replies(1), [""; 0]);
}

#[test]
fn two_servers_do_not_answer_each_other() {
    let (mut one, mut other) = (udp(|_| {}), udp(|_| {}));
    for text in [call("echo", "[1]", "1"), call("nothing", "[]", "1"), call("large", "[900]", "1")]
    {
        for reply in one.send(1, &text) {
            assert_eq!(other.send(1, &reply), [""; 0], "{reply}");
        }
    }
}

#[test]
fn a_reply_of_three_times_the_request_needs_a_cookie() {
    let mut udp = udp(|_| {});
    for size in [1, 10, 100, 200, 300, 1_000] {
        for padding in [0, 10, 100, 500] {
            let id = format!("\"{}{}\"", size, "x".repeat(padding));
            let request = call("large", &format!("[{size}]"), &id);
            for reply in udp.send(1, &request) {
                assert!(reply.len() <= 3 * request.len(), "{reply}");
            }
        }
    }
    let request = call("large", "[400]", "77");
    let [refused] = &udp.send(1, &request)[..] else { panic!("no reply") };
    assert!(refused.contains(r#""id":77,"error":{"code":-32006"#), "{refused}");
    let (_, rest) = refused.split_once(r#""cookie":""#).unwrap();
    let cookie = rest.split('"').next().unwrap();
    // The call has run: the same call with a cookie gets its reply, and does not run again.
    let calls = udp.harness.stats().calls;
    let replies = udp.send(1, &with_cookie("large", "[400]", "77", cookie));
    assert!(replies[0].starts_with(r#"{"jsonrpc":"2.0","id":77,"result":""#), "{replies:?}");
    assert_eq!((replies[0].len() > 400, udp.harness.stats().calls), (true, calls));
    // A cookie of another address, or a wrong one, is none.
    for (number, cookie) in [(2, cookie), (1, &"0".repeat(32)), (1, ""), (1, &cookie[1..])] {
        let replies = udp.send(number, &with_cookie("large", "[700]", "78", cookie));
        assert!(replies.iter().all(|reply| reply.contains("-32006")), "{cookie}: {replies:?}");
    }
    // A request too short for that error gets nothing.
    let short = r#"{"jsonrpc":"2.0","method":"large","params":[400],"id":1}"#;
    assert!(udp.send(3, short).iter().all(|reply| reply.len() <= 3 * short.len()));
}

#[test]
fn a_cookie_is_valid_for_an_hour() {
    let mut udp = udp(|_| {});
    let cookie = udp.cookie(1);
    let ask = |udp: &mut Udp, id: &str| {
        let replies = udp.send(1, &with_cookie("large", "[700]", id, &cookie));
        replies.iter().all(|reply| reply.len() > 700)
    };
    assert!(ask(&mut udp, "1"));
    udp.harness.advance(Duration::from_secs(3_600));
    assert!(ask(&mut udp, "2"));
    udp.harness.advance(Duration::from_secs(1));
    assert!(!ask(&mut udp, "3"));
}

#[test]
fn a_reply_that_is_too_long_for_a_datagram_is_an_error() {
    let mut udp = udp(|_| {});
    let cookie = udp.cookie(1);
    let [reply] = &udp.send(1, &with_cookie("large", "[5000]", "5", &cookie))[..] else { panic!() };
    assert!(reply.contains(r#""id":5,"error":{"code":-32603"#), "{reply}");
    assert!(reply.contains(r#""data":{"transport":"tcp","bytes":"#), "{reply}");
    let batch = [call("large", "[700]", "6"), with_cookie("large", "[700]", "7", &cookie)];
    let [reply] = &udp.send(1, &format!("[{}]", batch.join(",")))[..] else { panic!() };
    assert!(reply.contains(r#""id":6,"error":{"code":-32603"#), "{reply}");
}

#[test]
fn a_repeat_gets_the_reply_and_does_not_run() {
    let mut udp = udp(|_| {});
    let text = call("echo", "[1]", "1");
    assert_eq!(udp.send(1, &text), [result("1", "[1]")]);
    assert_eq!(udp.send(1, &text), [result("1", "[1]")]);
    // White space does not make another request, nor does `_meta`.
    let other = r#"{"id":1, "params":[1], "method":"echo", "jsonrpc":"2.0", "_meta":{}}"#;
    assert_eq!(udp.send(1, other), [result("1", "[1]")]);
    assert_eq!((udp.harness.stats().calls, udp.counts().repeated), (1, 2));
    assert_eq!(udp.send(1, &call("echo", "[2]", "1")), [result("1", "[2]")]);
    assert_eq!(udp.send(2, &text), [result("1", "[1]")]);
    assert_eq!(udp.harness.stats().calls, 3);
}

#[test]
fn without_dedupe_a_repeat_runs() {
    let mut udp = udp(|config| config.datagrams.dedupe = false);
    let text = call("echo", "[1]", "1");
    assert_eq!(udp.send(1, &text), udp.send(1, &text));
    assert_eq!(udp.harness.stats().calls, 2);
}

#[test]
fn a_deferred_call_is_answered_later_and_its_repeats_are_dropped() {
    let mut udp = udp(|_| {});
    let text = call("later", "[]", "1");
    assert_eq!(udp.send(1, &text), [""; 0]);
    assert_eq!(udp.send(1, &text), [""; 0]);
    assert_eq!((udp.harness.stats().calls, udp.counts().repeated), (1, 1));
    udp.harness.complete("1", Ok(b"true".to_vec()));
    assert_eq!(udp.replies(1), [result("1", "true")]);
    assert_eq!(udp.send(1, &text), [result("1", "true")]);
    let batch = format!("[{},{}]", call("later", "[]", "2"), call("echo", "[]", "3"));
    assert_eq!(udp.send(1, &batch), [""; 0]);
    udp.harness.complete("2", Err(RpcError::new(7, "no")));
    let [reply] = &udp.replies(1)[..] else { panic!("no reply") };
    assert!(reply.starts_with(r#"[{"jsonrpc":"2.0","id":2,"error":{"code":7,"#), "{reply}");
    assert!(reply.ends_with(r#"{"jsonrpc":"2.0","id":3,"result":[]}]"#), "{reply}");
}

#[test]
fn an_address_past_its_calls_a_second_is_refused() {
    let mut udp = udp(|config| config.datagrams.source_rate_max = Some(3));
    let batch = format!("[{},{}]", call("echo", "[]", "1"), call("echo", "[]", "2"));
    let other = format!("[{},{}]", call("echo", "[]", "5"), call("echo", "[]", "6"));
    assert_eq!(udp.send(1, &batch).len(), 1);
    assert!(udp.send(1, &other)[0].contains("-32006"));
    assert_eq!(udp.send(1, &call("echo", "[]", "3")), [result("3", "[]")]);
    assert!(udp.send(1, &call("echo", "[]", "4"))[0].contains("-32006"));
    assert_eq!((udp.harness.stats().calls, udp.counts().refused), (3, 2));
    assert_eq!(udp.send(2, &call("echo", "[]", "4")), [result("4", "[]")]);
    // A third of a second gives one call back.
    udp.harness.advance(Duration::from_millis(333));
    assert!(udp.send(1, &call("echo", "[]", "7"))[0].contains("-32006"));
    udp.harness.advance(Duration::from_millis(1));
    assert_eq!(udp.send(1, &call("echo", "[]", "8")), [result("8", "[]")]);
    assert!(udp.send(1, &call("echo", "[]", "9"))[0].contains("-32006"));
}

#[test]
fn a_flood_of_forged_addresses_needs_cookies_and_bounded_memory() {
    let mut udp = udp(|config| config.datagrams.dedupe_bytes_max = 100_000);
    for number in 0..5_000u32 {
        let from = SocketAddr::from(((number + 0x0a00_0000).to_be_bytes(), 1_000));
        let text = call("echo", "[]", &number.to_string());
        udp.harness.network.write_datagram(udp.socket, text.as_bytes(), from);
    }
    udp.harness.turns(200);
    let (mut bytes, mut refused) = (0, 0);
    for (reply, _) in udp.harness.network.read_datagrams(udp.socket) {
        bytes += reply.len();
        refused += usize::from(String::from_utf8(reply).unwrap().contains("-32006"));
    }
    assert!(bytes <= 5_000 * 3 * call("echo", "[]", "0000").len());
    // An entry takes 160 bytes and its reply, in half of the memory.
    let calls = udp.harness.stats().calls as usize;
    assert!(calls < 50_000 / 160 && refused == 5_000 - calls, "{calls} calls, {refused} refused");
    // A client with a cookie is served.
    let cookie = udp.cookie(1);
    let reply = udp.send(1, &with_cookie("echo", "[1]", "8", &cookie));
    assert_eq!(reply, [result("8", "[1]")]);
}

#[test]
fn a_full_cache_refuses_new_calls_and_answers_repeats() {
    let mut udp = udp(|config| config.datagrams.dedupe_bytes_max = 10_000);
    let cookie = udp.cookie(1);
    let replies: Vec<_> = (0..40)
        .map(|id| udp.send(1, &with_cookie("echo", "[]", &id.to_string(), &cookie)).remove(0))
        .collect();
    let done = replies.iter().take_while(|reply| reply.contains("result")).count();
    assert!((10..40).contains(&done), "{done}");
    assert!(replies[done..].iter().all(|reply| reply.contains("-32003")), "{replies:?}");
    assert_eq!(udp.send(1, &with_cookie("echo", "[]", "0", &cookie)), [result("0", "[]")]);
    assert_eq!(udp.harness.stats().calls, done as u64);
}

#[test]
fn items_of_streams_need_tcp() {
    let mut udp = udp(|_| {});
    let meta = r#""_meta":{"progressToken":1}"#;
    let text = format!(r#"{{"jsonrpc":"2.0","method":"stream","params":[],"id":1,{meta}}}"#);
    let [reply] = &udp.send(1, &text)[..] else { panic!("no reply") };
    assert!(reply.contains("the items of a stream need TCP"), "{reply}");
    assert_eq!(udp.harness.stats().calls, 0);
}

#[test]
fn a_drain_refuses_calls_and_does_not_remember_that() {
    let mut udp = udp(|_| {});
    assert_eq!(udp.send(1, &call("later", "[]", "1")), [""; 0]);
    udp.harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    udp.await_refusal();
    udp.harness.complete("1", Ok(b"1".to_vec()));
    assert!(udp.replies(1).contains(&result("1", "1")));
    assert!(udp.send(1, &call("echo", "[]", "3"))[0].contains("-32002"));
}

#[test]
fn a_repeat_during_a_drain_is_not_said_to_be_new() {
    let mut udp = udp(|_| {});
    let (done, running) = (call("echo", "[1]", "1"), call("later", "[]", "2"));
    assert_eq!(udp.send(1, &done), [result("1", "[1]")]);
    assert_eq!(udp.send(1, &running), [""; 0]);
    udp.harness.worker.mailbox().send(Message::drain(Drain::Refusing));
    udp.await_refusal();
    assert_eq!(udp.send(1, &done), [result("1", "[1]")]);
    assert_eq!(udp.send(1, &running), [""; 0]);
    udp.harness.complete("2", Ok(b"2".to_vec()));
    assert_eq!(udp.replies(1), [result("2", "2")]);
}

#[test]
fn more_datagrams_than_a_turn_takes_are_answered_in_the_next() {
    let mut udp = udp(|_| {});
    for id in 0..1_000 {
        let text = call("echo", "[]", &id.to_string());
        udp.harness.network.write_datagram(udp.socket, text.as_bytes(), source(1));
    }
    udp.harness.turns(40);
    let expected: Vec<_> = (0..1_000).map(|id| result(&id.to_string(), "[]")).collect();
    assert_eq!(udp.replies(1), expected);
}

#[test]
fn a_sweep_drops_replies_that_no_client_asks_for_any_more() {
    let mut udp = udp(|_| {});
    let text = call("echo", "[1]", "1");
    assert_eq!(udp.send(1, &text), [result("1", "[1]")]);
    udp.harness.advance(Duration::from_millis(9_999));
    assert_eq!(udp.send(1, &text), [result("1", "[1]")]);
    assert_eq!(udp.harness.stats().calls, 1, "it is kept for 10 s after the last copy");
    let waited = udp.harness.turn_until(|harness| harness.worker.deadline().is_none());
    let (shortest, longest) = (Duration::from_secs(10), Duration::from_secs(11));
    assert!((shortest..=longest).contains(&waited), "a sweep drops it, and is the last");
    assert_eq!(udp.send(1, &text), [result("1", "[1]")]);
    assert_eq!(udp.harness.stats().calls, 2, "a request that old is a new one");
}

#[test]
fn an_error_that_the_meta_of_a_copy_has_caused_is_not_kept() {
    let mut udp = udp(|_| {});
    let passed = || RpcError::new(RpcError::DEADLINE_PASSED, "Deadline passed");
    let real = call("later", "[]", "1");
    let forged = format!(r#"{},"_meta":{{"timeout_ms":1}}}}"#, real.strip_suffix('}').unwrap());
    assert!(udp.send(1, &forged).is_empty());
    udp.harness.complete("1", Err(passed()));
    assert!(udp.replies(1)[0].contains("-32001"));
    assert!(udp.send(1, &real).is_empty(), "it runs");
    udp.harness.complete("1", Ok(b"7".to_vec()));
    let expected = r#"{"jsonrpc":"2.0","id":1,"result":7}"#;
    assert_eq!(udp.replies(1), [expected]);
    assert_eq!(udp.send(1, &real), [expected]);
    assert_eq!(udp.send(1, &forged), [expected], "the reply of the first copy that counts");
    // The same error by a limit of the server is kept.
    let other = call("later", "[]", "2");
    assert!(udp.send(1, &other).is_empty());
    udp.harness.complete("2", Err(passed()));
    assert!(udp.replies(1)[0].contains("-32001"));
    assert!(udp.send(1, &other)[0].contains("-32001"));
}
