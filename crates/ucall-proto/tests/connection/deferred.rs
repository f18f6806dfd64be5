//! Replies to deferred calls.

use ucall_proto::{CallNumber, NextAction, RpcError};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

fn later_reply(id: u32, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

#[test]
fn http_replies_in_request_order() {
    let mut driver = Driver::new();
    let requests = [post(&later(1)), post(&sum(2)), post(&later(3)), post(&sum(4))].concat();
    driver.receive(requests.as_bytes());
    assert_eq!(driver.sent(), "");
    let [first, third] = driver.service.deferred[..] else { panic!("two deferred calls") };
    driver.complete(third, Ok(b"\"c\""));
    assert_eq!(driver.sent(), "");
    driver.complete(first, Ok(b"\"a\""));
    let expected = [later_reply(1, "\"a\""), sum_reply(2), later_reply(3, "\"c\""), sum_reply(4)];
    assert_eq!(bodies(&driver.sent()), expected);
}

#[test]
fn raw_replies_in_completion_order() {
    let mut driver = Driver::new();
    driver.receive([later(1), sum(2), later(3)].concat().as_bytes());
    assert_eq!(driver.sent(), sum_reply(2) + "\n");
    let [first, third] = driver.service.deferred[..] else { panic!("two deferred calls") };
    driver.complete(third, Ok(b"3"));
    assert_eq!(driver.sent(), later_reply(3, "3") + "\n");
    driver.complete(first, Err(&RpcError::new(-5, "no")));
    assert_eq!(
        driver.sent(),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-5,\"message\":\"no\"}}\n"
    );
}

#[test]
fn a_batch_waits_for_all_its_calls_and_keeps_its_order() {
    let note = r#"{"jsonrpc":"2.0","method":"later"}"#;
    let body = format!("[{},{},{note},{},7,{},{}]", sum(1), sum(2), later(3), later(4), sum(5));
    for (request, is_http) in [(post(&body), true), (body.clone(), false)] {
        let mut driver = Driver::new();
        driver.receive(request.as_bytes());
        let [note, third, fourth] = driver.service.deferred[..] else { panic!("three deferred") };
        driver.complete(fourth, Ok(b"4"));
        driver.complete(note, Ok(b"0"));
        assert_eq!(driver.sent(), "");
        driver.complete(third, Ok(b"3"));
        let sent = driver.sent();
        let reply = if is_http { bodies(&sent).remove(0) } else { sent.trim_end().to_owned() };
        let (front, back) = reply.split_once(r#"{"jsonrpc":"2.0","id":null,"#).unwrap();
        assert_eq!(front, format!("[{},{},{},", sum_reply(1), sum_reply(2), later_reply(3, "3")));
        assert!(back.ends_with(&format!("}},{},{}]", later_reply(4, "4"), sum_reply(5))));
    }
}

#[test]
fn calls_of_a_batch_complete_in_any_order_wherever_the_first_deferred_one_is() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (answered, order) in (0..4).flat_map(|answered| orders.map(|order| (answered, order))) {
        let mut driver = Driver::new();
        let front: Vec<_> = (0..answered).map(|_| sum(9)).collect();
        let back = [later(1), sum(8), later(2), later(3)];
        driver.receive(format!("[{}]", [&front[..], &back].concat().join(",")).as_bytes());
        let deferred = driver.service.deferred.clone();
        for index in order {
            assert_eq!(driver.sent(), "");
            driver.complete(deferred[index], Ok(b"1"));
            // Neither a second time nor for an item that was never deferred.
            driver.complete(deferred[index], Ok(b"2"));
            let item = deferred[0].item;
            for item in [item.wrapping_sub(1), item + 1, item + 4, u32::MAX] {
                driver.complete(CallNumber { item, ..deferred[0] }, Ok(b"3"));
            }
        }
        let front: Vec<_> = front.iter().map(|_| sum_reply(9)).collect();
        let [first, second, third] = [1, 2, 3].map(|id| later_reply(id, "1"));
        let replies = [&front[..], &[first, sum_reply(8), second, third]].concat();
        assert_eq!(driver.sent(), format!("[{}]\n", replies.join(",")));
    }
}

#[test]
fn a_batch_of_a_hundred_thousand_deferred_calls_does_not_take_quadratic_time() {
    let calls = 100_000;
    let mut driver = Driver::new();
    driver.limits.batch_calls_max = calls as usize;
    let requests: Vec<_> = (0..calls).map(later).collect();
    driver.receive(format!("[{}]", requests.join(",")).as_bytes());
    for call in std::mem::take(&mut driver.service.deferred).into_iter().rev() {
        assert_eq!(driver.sent(), "");
        driver.complete(call, Ok(b"1"));
    }
    let replies: Vec<_> = (0..calls).map(|id| later_reply(id, "1")).collect();
    assert_eq!(driver.sent(), format!("[{}]\n", replies.join(",")));
}

#[test]
fn a_deferred_notification_is_not_waited_for() {
    let mut driver = Driver::new();
    driver.receive(post(r#"{"jsonrpc":"2.0","method":"later"}"#).as_bytes());
    assert!(driver.sent().starts_with("HTTP/1.1 204 "));
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert_eq!(driver.sent(), "");
}

#[test]
fn a_late_or_second_reply_is_dropped() {
    let mut driver = Driver::new();
    driver.receive(later(1).as_bytes());
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    driver.complete(call, Ok(b"2"));
    assert_eq!(driver.sent(), later_reply(1, "1") + "\n");
}

#[test]
fn reading_pauses_at_the_pipeline_limit() {
    let mut driver = Driver::new();
    driver.limits.pipeline_max = 4;
    let requests: String = (1..=6).map(|id| post(&later(id))).collect();
    driver.receive(requests.as_bytes());
    assert_eq!(
        (driver.service.deferred.len(), driver.connection.next_action()),
        (4, NextAction::Pause)
    );
    let first = driver.service.deferred[0];
    driver.complete(first, Ok(b"1"));
    assert_eq!(
        (driver.service.deferred.len(), driver.connection.next_action()),
        (5, NextAction::Pause)
    );
    for index in 1..6 {
        let call = driver.service.deferred[index];
        driver.complete(call, Ok(b"1"));
    }
    assert_eq!(bodies(&driver.sent()).len(), 6);
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
}

#[test]
fn calls_go_on_after_a_half_close() {
    let mut driver = Driver::new();
    driver.receive(post(&later(1)).as_bytes());
    driver.handle_eof();
    assert_eq!(driver.sent(), "HTTP/1.1 100 Continue\r\n\r\n", "a closed socket answers it");
    assert!(driver.connection.is_half_closed());
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    let sent = driver.sent();
    assert!(sent.contains("\r\nConnection: close\r\n"), "{sent}");
    assert_eq!(bodies(&sent), [later_reply(1, "1")]);
    assert_eq!(driver.connection.next_action(), NextAction::Close);

    let mut driver = Driver::new();
    driver.receive(later(1).as_bytes());
    driver.handle_eof();
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert_eq!(
        (driver.sent(), driver.connection.next_action()),
        (later_reply(1, "1") + "\n", NextAction::Close)
    );
}

#[test]
fn all_pipelined_calls_go_on_after_a_half_close() {
    let mut driver = Driver::new();
    driver.limits.pipeline_max = 2;
    driver.receive([post(&later(1)), post(&later(2)), post(&sum(3))].concat().as_bytes());
    driver.handle_eof();
    assert_eq!(driver.sent(), "HTTP/1.1 100 Continue\r\n\r\n");
    for index in 0..2 {
        let call = driver.service.deferred[index];
        driver.complete(call, Ok(b"1"));
    }
    let sent = driver.sent();
    assert_eq!(bodies(&sent).len(), 3, "{sent}");
    assert_eq!(driver.connection.next_action(), NextAction::Close);
}

/// HTTP/1.0 has no interim responses.
#[test]
fn a_half_close_cancels_the_calls_of_http_1_0() {
    let mut driver = Driver::new();
    driver.receive(post(&later(1)).replace("HTTP/1.1", "HTTP/1.0").as_bytes());
    driver.handle_eof();
    assert_eq!(driver.connection.next_action(), NextAction::Close);
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert_eq!(driver.sent(), "");
}

#[test]
fn a_refusal_waits_for_deferred_replies() {
    let mut driver = Driver::new();
    driver.receive((post(&later(1)) + "GARBAGE\n").as_bytes());
    assert_eq!(driver.sent(), "");
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    let sent = driver.sent();
    assert!(sent.starts_with("HTTP/1.1 200 ") && sent.contains("HTTP/1.1 400 "), "{sent}");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn a_parse_error_keeps_deferred_replies() {
    let mut driver = Driver::new();
    let requests = [post(&later(1)), post("{"), post(&sum(3))].concat();
    driver.receive(requests.as_bytes());
    assert_eq!(driver.sent(), "");
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    let replies = bodies(&driver.sent());
    let [first, second, third] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((first, third), (&later_reply(1, "1"), &sum_reply(3)));
    assert!(second.contains("-32700"), "{second}");
}

#[test]
fn a_100_continue_waits_for_deferred_replies() {
    let mut driver = Driver::new();
    let head =
        "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    driver.receive((post(&later(1)) + head).as_bytes());
    assert_eq!(driver.sent(), "");
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"1"));
    assert!(driver.sent().ends_with("}HTTP/1.1 100 Continue\r\n\r\n"));
    driver.receive(b"{}");
    assert!(driver.sent().contains("-32600"));
}
