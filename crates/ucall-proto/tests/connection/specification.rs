//! Every example of the JSON-RPC 2.0 specification (§7), over raw TCP and over HTTP.

use crate::harness::{answer, bodies, post};

const PARSE: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error","data":"#;
const INVALID: &str =
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request","data":"#;

/// A request and its reply: the whole of it, or the start of an error; "" for none.
const EXAMPLES: [(&str, &str); 13] = [
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":19}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}"#,
        r#"{"jsonrpc":"2.0","id":2,"result":-19}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}"#,
        r#"{"jsonrpc":"2.0","id":3,"result":19}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}"#,
        r#"{"jsonrpc":"2.0","id":4,"result":19}"#,
    ),
    (r#"{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}"#, ""),
    (r#"{"jsonrpc": "2.0", "method": "foobar"}"#, ""),
    (
        r#"{"jsonrpc": "2.0", "method": "foobar", "id": "1"}"#,
        r#"{"jsonrpc":"2.0","id":"1","error":{"code":-32601,"message":"Method not found"}}"#,
    ),
    (r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#, PARSE),
    (r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#, INVALID),
    (
        r#"[ {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method" ]"#,
        PARSE,
    ),
    ("[]", INVALID),
    (
        r#"[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]}, {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]"#,
        "",
    ),
    (
        r#"[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}, {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"}, {"foo": "boo"}, {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"}, {"jsonrpc": "2.0", "method": "get_data", "id": "9"}]"#,
        r#"[{"jsonrpc":"2.0","id":"1","result":7},{"jsonrpc":"2.0","id":"2","result":19},{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request","data":"expected a member \"jsonrpc\" that is \"2.0\""}},{"jsonrpc":"2.0","id":"5","error":{"code":-32601,"message":"Method not found"}},{"jsonrpc":"2.0","id":"9","result":["hello",5]}]"#,
    ),
];

fn check(request: &str, expected: &str, reply: &str) {
    if expected.ends_with("\"data\":") {
        assert!(reply.starts_with(expected), "{request}: {reply}");
    } else {
        assert_eq!(reply, expected, "{request}");
    }
}

#[test]
fn every_example_over_raw_tcp() {
    for (request, expected) in EXAMPLES {
        let (reply, _) = answer(request);
        assert_eq!(reply.ends_with('\n'), !expected.is_empty());
        check(request, expected, reply.trim_end());
    }
}

#[test]
fn every_example_over_http() {
    for (request, expected) in EXAMPLES {
        let (reply, _) = answer(post(request));
        let status = if expected.is_empty() { "204 No Content" } else { "200 OK" };
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {reply}");
        check(request, expected, &bodies(&reply)[0]);
    }
}

#[test]
fn a_batch_of_nothing_valid_is_answered_item_by_item() {
    for (request, count) in [("[1]", 1), ("[1,2,3]", 3)] {
        let (reply, _) = answer(request);
        assert_eq!(reply.matches("-32600").count(), count);
        assert!(reply.starts_with('[') && reply.ends_with("]\n"));
    }
}

#[test]
fn ids_come_back_byte_for_byte() {
    for id in ["1", "-0", "1.50e+2", "null", r#""a\u0062\"""#, "123456789012345678901234567890"] {
        let request = format!(r#"{{"jsonrpc":"2.0","method":"get_data","id": {id} }}"#);
        let (reply, _) = answer(request);
        assert_eq!(
            reply,
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":[\"hello\",5]}}\n")
        );
    }
}
