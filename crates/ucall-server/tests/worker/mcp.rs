//! The Model Context Protocol: tools, methods, eras and statuses, over HTTP and raw TCP.

use ucall_proto::RpcError;
use ucall_server::{Tool, ToolForm};

use crate::harness::{Harness, Procedure, call, text};

const META: &str = concat!(
    r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientCapabilities":{}}"#
);

fn harness() -> Harness {
    let harness = Harness::new();
    harness.procedures.insert_mcp_method("tools/list", Procedure::Echo);
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

#[test]
fn over_raw_tcp_a_cancelled_tool_gets_no_reply() {
    let mut harness = harness();
    let peer = harness.connect();
    peer.write(call("tools/call", &params("later-tool", true), "1").as_bytes());
    harness.turn();
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    peer.write((cancel.to_owned() + &call("echo", "[]", "2")).as_bytes());
    harness.turn();
    assert_eq!(harness.worker.handler_mut().cancelled_calls.len(), 1);
    harness.complete("1", Ok(b"3".to_vec()));
    assert_eq!(text(&peer), "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":[]}\n");
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
