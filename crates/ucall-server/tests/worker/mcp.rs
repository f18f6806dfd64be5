//! The Model Context Protocol: tools, methods, eras and statuses, over HTTP and raw TCP.

use std::io::ErrorKind;
use std::time::Duration;

use ucall_engine::fake::SendMode;
use ucall_proto::RpcError;
use ucall_server::{Overflow, Tool, ToolForm};

use crate::harness::{Harness, Procedure, call, text};

const META: &str = concat!(
    r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientCapabilities":{}}"#
);

fn harness() -> Harness {
    let harness = Harness::new();
    harness.procedures.insert_mcp_method("tools/list", Procedure::Echo);
    harness.procedures.insert_mcp_method("later/list", Procedure::Later);
    let tool = |name: &str, method: &str, form| Tool {
        name: name.to_owned(),
        method: method.to_owned(),
        form,
        schema: None,
        headers: Vec::new(),
    };
    harness.procedures.set_tools(vec![
        tool("echo-tool", "echo", ToolForm::Object),
        tool("later-tool", "later", ToolForm::Value),
    ]);
    harness
}

/// A request over HTTP, with the headers of the newest era or without any.
fn post(body: &str, newest: Option<(&str, &str)>) -> String {
    let headers = newest.map_or_else(String::new, |(method, name)| {
        let name = if name.is_empty() { String::new() } else { format!("Mcp-Name: {name}\r\n") };
        format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}")
    });
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// The params of a call of a tool.
fn params(tool: &str, newest: bool) -> String {
    let meta = if newest { format!(",{META}") } else { String::new() };
    format!(r#"{{"name":"{tool}","arguments":{{"a":1}}{meta}}}"#)
}

/// The status and the body of a response.
fn response(text: &str) -> (&str, &str) {
    let (head, body) = text.split_once("\r\n\r\n").expect("it is a response");
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|head| head.get(..3));
    (status.expect("it has a status"), body)
}

#[test]
fn a_tool_is_answered_at_once_or_later_in_each_era() {
    for (newest, kind) in [(true, r#""resultType":"complete","#), (false, "")] {
        let mut harness = harness();
        let peer = harness.connect();
        let headers = |tool: &'static str| newest.then_some(("tools/call", tool));
        let body = call("tools/call", &params("echo-tool", newest), "1");
        peer.write(post(&body, headers("echo-tool")).as_bytes());
        harness.turn();
        let content = r#""content":[{"type":"text","text":"{\"a\":1}"}]"#;
        let result = format!(r#"{{{kind}"structuredContent":{{"a":1}},{content}}}"#);
        let expected = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        assert_eq!(response(&text(&peer)), ("200", &*expected));
        let body = call("tools/call", &params("later-tool", newest), "2");
        peer.write(post(&body, headers("later-tool")).as_bytes());
        harness.turn();
        assert_eq!(text(&peer), "");
        harness.complete("2", Ok(b"3".to_vec()));
        let sent = text(&peer);
        assert!(sent.contains(r#""structuredContent":{"result":3}"#), "{sent}");
        assert_eq!(sent.contains("resultType"), newest, "{sent}");
        peer.write(
            post(&call("tools/call", &params("later-tool", newest), "3"), headers("later-tool"))
                .as_bytes(),
        );
        harness.turn();
        harness.complete("3", Err(RpcError::new(RpcError::DEADLINE_PASSED, "Deadline passed")));
        let sent = text(&peer);
        assert!(sent.contains(r#""text":"Deadline passed"}],"isError":true}"#), "{sent}");
        assert!(!sent.contains("-32001"), "{sent}");
    }
}

#[test]
fn a_method_gets_the_params_and_the_version() {
    let mut harness = harness();
    let peer = harness.connect();
    let params = format!("{{{META}}}");
    peer.write(post(&call("tools/list", &params, "1"), Some(("tools/list", ""))).as_bytes());
    harness.turn();
    let expected = format!(r#"{{"jsonrpc":"2.0","id":1,"result":[{params},"2026-07-28"]}}"#);
    assert_eq!(response(&text(&peer)), ("200", &*expected));
    peer.write(call("tools/list", "{}", "2").as_bytes());
    harness.turn();
    let raw = harness.connect();
    raw.write(call("tools/list", "{}", "2").as_bytes());
    harness.turn();
    assert_eq!(text(&raw), "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":[{},\"\"]}\n");
}

#[test]
fn statuses_follow_the_era() {
    let newest = format!("{{{META}}}");
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let unknown_tool = params("nothing", true);
    for (body, headers, status, part) in [
        (call("echo", &newest, "1"), Some(("echo", "")), "404", "-32601"),
        (call("echo", "{}", "1"), None, "200", "-32601"),
        (call("tools/call", &unknown_tool, "1"), Some(("tools/call", "nothing")), "200", "-32602"),
        (call("tools/list", &newest, "1"), Some(("other", "")), "400", "-32020"),
        (call("tools/list", &newest, "1"), None, "400", "-32020"),
        (call("tools/list", "{}", "1"), Some(("tools/list", "")), "400", "-32602"),
        (notification.to_owned(), None, "202", ""),
        (r#"{"jsonrpc":"2.0","id":"s","result":{}}"#.to_owned(), None, "202", ""),
        (r#"{"id":"s","result":{},"error":{}}"#.to_owned(), None, "400", "-32600"),
        (format!("[{},{}]", call("ping", "{}", "1"), call("ping", "[]", "2")), None, "200", "2602"),
        (format!("[{0},{0}]", call("ping", "[]", "2")), None, "400", "-32602"),
        ("{".to_owned(), None, "400", r#"{"jsonrpc":"2.0","error":{"code":-32700"#),
        (r#"{"id":true}"#.to_owned(), None, "400", r#"{"jsonrpc":"2.0","error":{"code":-32600"#),
    ] {
        let mut harness = harness();
        let peer = harness.connect();
        peer.write(post(&body, headers).as_bytes());
        harness.turn();
        let sent = text(&peer);
        let (found, text) = response(&sent);
        assert!(found == status && text.contains(part), "{body}: {sent}");
    }
}

#[test]
fn a_refusal_has_no_code_of_this_server() {
    for newest in [true, false] {
        let mut harness = harness();
        let peer = harness.connect();
        let headers = newest.then_some(("tools/call", "later-tool"));
        let body = call("tools/call", &params("later-tool", newest), "1");
        peer.write(post(&body, headers).as_bytes());
        harness.turn();
        harness.complete("1", Err(RpcError::new(RpcError::DRAINING, "Draining")));
        let sent = text(&peer);
        assert!(sent.ends_with(r#"{"code":-32603,"message":"Draining"}}"#), "{sent}");
    }
}

/// Asks to cancel a call.
fn cancelled(id: &str) -> String {
    let params = format!(r#"{{"requestId":{id}}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
}

#[test]
fn over_raw_tcp_a_cancelled_tool_gets_no_reply() {
    for slash in ["/", "\\/"] {
        let mut harness = harness();
        let peer = harness.connect();
        peer.write(call("tools/call", &params("later-tool", true), "1").as_bytes());
        harness.turn();
        let cancelled = cancelled("1").replace('/', slash);
        peer.write((cancelled + &call("echo", "[]", "2")).as_bytes());
        harness.turn();
        assert_eq!(harness.worker.handler_mut().cancelled_calls.len(), 1, "{slash}");
        harness.complete("1", Ok(b"3".to_vec()));
        assert_eq!(text(&peer), "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":[]}\n");
    }
}

#[test]
fn a_cancelled_tool_leaves_the_other_replies_of_its_batch() {
    let later = |id| call("tools/call", &params("later-tool", false), id);
    let mut harness = harness();
    let peer = harness.connect();
    let kept = call("tools/list", "{}", "1");
    let kept_reply = "[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[{},\"\"]}]\n";
    for (batch, ids, replies) in [
        (format!("[{kept},{}]", later("2")), vec!["2"], kept_reply),
        (format!("[{},{}]", later("3"), later("4")), vec!["3", "4"], ""),
    ] {
        peer.write(batch.as_bytes());
        harness.turn();
        assert_eq!(text(&peer), "");
        for id in ids {
            peer.write(cancelled(id).as_bytes());
            harness.turn();
        }
        assert_eq!(text(&peer), replies, "{batch}");
    }
}

#[test]
fn each_way_to_cancel_is_a_notification_with_its_own_member() {
    let mut harness = harness();
    let peer = harness.connect();
    peer.write(call("tools/call", &params("later-tool", false), "1").as_bytes());
    harness.turn();
    let other = |text: String| text.replace("notifications/cancelled", "$/cancelRequest");
    let wrong_member = cancelled("1").replace("requestId", "id");
    peer.write((other(cancelled("1")) + &wrong_member).as_bytes());
    harness.turn();
    assert_eq!(text(&peer), "");
    assert!(harness.worker.handler_mut().cancelled_calls.is_empty());
    peer.write(cancelled("1").replacen('{', r#"{"id":2,"#, 1).as_bytes());
    harness.turn();
    assert!(text(&peer).contains(r#""id":2,"error":{"code":-32601"#));
    peer.write(other(wrong_member).as_bytes());
    harness.turn();
    assert!(text(&peer).contains(r#""id":1,"error":{"code":-32800"#));
}

#[test]
fn a_notification_that_ends_later_ends_with_its_connection() {
    let mut harness = harness();
    let peer = harness.connect();
    let socket = peer.socket().unwrap();
    peer.write(post(r#"{"jsonrpc":"2.0","method":"later/list"}"#, None).as_bytes());
    harness.turn();
    assert_eq!(response(&text(&peer)).0, "202");
    peer.write(post(&call("later", "{}", "1"), None).replace("/mcp", "/").as_bytes());
    harness.turn();
    peer.set_send_mode(SendMode::Failing(ErrorKind::BrokenPipe));
    peer.shut_down();
    harness.turns(2);
    assert!(peer.is_closed());
    assert_eq!(harness.worker.handler_mut().cancelled, [socket]);
}

#[test]
fn without_mcp_there_is_no_such_path_nor_method() {
    let mut harness = Harness::new();
    let (peer, raw) = (harness.connect(), harness.connect());
    peer.write(post(&call("tools/list", "{}", "1"), None).as_bytes());
    raw.write(call("tools/call", "{}", "1").as_bytes());
    harness.turn();
    assert_eq!(response(&text(&peer)).0, "404");
    assert!(text(&raw).contains("-32601"));
}

/// A call of a tool that takes long, whose client takes events.
fn long_call(id: &str, token: &str) -> String {
    let params = params("later-tool", true).replacen("{\"io", &format!("{{{token}\"io"), 1);
    let request = post(&call("tools/call", &params, id), Some(("tools/call", "later-tool")));
    request.replacen("Host", "Accept: application/json, text/event-stream\r\nHost", 1)
}

#[test]
fn a_long_call_becomes_a_stream_of_events_before_its_client_gives_up() {
    let mut harness = harness();
    let peer = harness.connect();
    peer.write(long_call("1", "").as_bytes());
    harness.turn();
    harness.advance(Duration::from_millis(2_900));
    assert_eq!(text(&peer), "");
    harness.complete("1", Ok(b"3".to_vec()));
    assert!(text(&peer).contains("Content-Type: application/json"));
    peer.write(long_call("2", "").as_bytes());
    harness.turn();
    harness.advance(Duration::from_millis(4_100));
    let begun = text(&peer);
    assert!(begun.contains("Content-Type: text/event-stream") && begun.ends_with(": \n\n\r\n"));
    harness.complete("2", Ok(b"3".to_vec()));
    let sent = text(&peer);
    assert!(sent.contains(r#"data: {"jsonrpc":"2.0","id":2,"result":{"#), "{sent}");
    assert!(sent.ends_with("0\r\n\r\n"), "{sent}");
}

#[test]
fn progress_goes_to_callers_with_a_token() {
    let report = r#"{"progress":1,"total":2}"#;
    let notification = concat!(
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":"#,
        r#"{"progressToken":"t","progress":1,"total":2}}"#
    );
    let token = r#""progressToken":"t","#;
    let mut harness = harness();
    let (peer, raw) = (harness.connect(), harness.connect());
    peer.write(long_call("1", token).as_bytes());
    let params = params("later-tool", true).replacen("{\"io", &format!("{{{token}\"io"), 1);
    raw.write(call("tools/call", &params, "2").as_bytes());
    harness.turn();
    for id in ["1", "2"] {
        let handler = harness.worker.handler_mut();
        let call = handler.deferred[id.as_bytes()];
        handler.items.push_back((call, Overflow::Pause, report.to_owned()));
        handler.calls.outcomes().wake();
        harness.turn();
    }
    assert!(text(&peer).contains(&format!("data: {notification}\n\n")));
    assert_eq!(text(&raw), format!("{notification}\n"));
    for id in ["1", "2"] {
        harness.complete(id, Ok(b"3".to_vec()));
    }
    assert!(text(&peer).contains("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\""));
    assert!(text(&raw).starts_with("{\"jsonrpc\":\"2.0\",\"id\":2,\"result\""));
}

#[test]
fn notifications_of_any_kind_leave_before_the_reply() {
    let message = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
    let mut harness = harness();
    let (peer, raw) = (harness.connect(), harness.connect());
    peer.write(long_call("1", "").as_bytes());
    raw.write(call("later/list", &format!("{{{META}}}"), "2").as_bytes());
    harness.turn();
    for id in ["1", "2"] {
        let handler = harness.worker.handler_mut();
        let call = handler.deferred[id.as_bytes()];
        handler.items.push_back((call, Overflow::Pause, message.to_owned()));
        handler.calls.outcomes().wake();
        harness.turn();
    }
    assert!(text(&peer).ends_with(&format!("data: {message}\n\n\r\n")));
    assert_eq!(text(&raw), format!("{message}\n"));
    harness.complete("2", Err(RpcError::new(RpcError::DEADLINE_PASSED, "Deadline passed")));
    let error = r#"{"code":-32603,"message":"Deadline passed"}"#;
    assert_eq!(text(&raw), format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{error}}}\n"));
}

#[test]
fn the_end_of_a_stream_cancels_its_call_in_the_newest_era_alone() {
    for newest in [true, false] {
        let mut harness = harness();
        let peer = harness.connect();
        let socket = peer.socket().unwrap();
        let headers = newest.then_some(("tools/call", "later-tool"));
        peer.write(
            post(&call("tools/call", &params("later-tool", newest), "1"), headers).as_bytes(),
        );
        harness.turn();
        peer.set_send_mode(SendMode::Failing(ErrorKind::BrokenPipe));
        peer.shut_down();
        harness.turns(2);
        assert!(peer.is_closed());
        let cancelled = harness.worker.handler_mut().cancelled.clone();
        assert_eq!(cancelled, if newest { vec![socket] } else { vec![] });
        harness.complete("1", Ok(b"1".to_vec()));
        assert_eq!(text(&peer), "");
    }
}
