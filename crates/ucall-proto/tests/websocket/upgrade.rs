//! The upgrade from HTTP.

use ucall_proto::http1::{HeadLimits, HttpError, parse_head};
use ucall_proto::websocket::Upgrade;

/// The key and its answer in RFC 6455, section 1.3.
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";
const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n";

/// The reply to a request with these lines, and the head that authenticates it.
fn upgrade(lines: &str) -> Result<Option<(String, Option<String>)>, HttpError> {
    let text = format!("{lines}Host: localhost\r\n\r\n");
    let head = parse_head(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
    let Some(upgrade) = Upgrade::parse(&head)? else { return Ok(None) };
    let mut reply = Vec::new();
    upgrade.write_reply(&mut reply);
    let authorized = upgrade.authorized_head(&head).map(|text| String::from_utf8(text).unwrap());
    Ok(Some((String::from_utf8(reply).unwrap(), authorized)))
}

fn get(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\n{lines}")
}

fn valid(lines: &str) -> String {
    get(&[UPGRADE, KEY, VERSION, lines].concat())
}

#[test]
fn the_reply_proves_that_the_key_was_read() {
    let (reply, authorized) = upgrade(&valid("")).unwrap().unwrap();
    let expected = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    );
    assert_eq!((reply, authorized), (expected, None));
}

#[test]
fn options_are_lists_in_any_case_and_extensions_are_declined() {
    let lines = [
        "Connection: keep-alive, upgrade\r\nUpgrade: h2c\r\nupgrade: WebSocket\r\n",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n",
        KEY,
        VERSION,
    ];
    let (reply, _) = upgrade(&get(&lines.concat())).unwrap().unwrap();
    assert!(reply.contains(ACCEPT) && !reply.contains("Extensions"), "{reply}");
}

#[test]
fn other_requests_ask_for_no_upgrade() {
    for text in [
        get(&[KEY, VERSION].concat()),
        get(&["Upgrade: websocket\r\n", KEY, VERSION].concat()),
        get(&["Connection: upgrade\r\nUpgrade: h2c\r\n", KEY, VERSION].concat()),
        valid("").replacen("GET", "POST", 1),
        valid("").replacen("HTTP/1.1", "HTTP/1.0", 1),
    ] {
        assert_eq!(upgrade(&text), Ok(None), "{text}");
    }
}

#[test]
fn an_invalid_upgrade_is_refused() {
    let keys = ["", "Sec-WebSocket-Key:\r\n", "Sec-WebSocket-Key: !!hlIHNhbXBsZSBub25jZQ==\r\n"];
    let lengths = [
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ\r\n",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j\r\n",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZWQ=\r\n",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSBhbmQgbW9yZQ==\r\n",
    ];
    let both = [KEY, KEY].concat();
    for key in keys.into_iter().chain(lengths).chain([both.as_str()]) {
        let text = get(&[UPGRADE, key, VERSION].concat());
        assert_eq!(upgrade(&text), Err(HttpError::WebSocketKeyMalformed), "{key}");
    }
    for version in ["", "Sec-WebSocket-Version: 8\r\n", "Sec-WebSocket-Version: 13, 8\r\n"] {
        let refused = upgrade(&get(&[UPGRADE, KEY, version].concat()));
        assert_eq!(refused, Err(HttpError::WebSocketVersionUnsupported), "{version}");
    }
    for body in ["Content-Length: 1\r\n", "Transfer-Encoding: chunked\r\n"] {
        assert_eq!(upgrade(&valid(body)), Err(HttpError::WebSocketBody));
    }
    assert!(upgrade(&valid("Content-Length: 0\r\n")).unwrap().is_some());
}

#[test]
fn only_the_subprotocol_of_json_rpc_is_selected() {
    for (offers, is_selected) in [
        ("Sec-WebSocket-Protocol: chat, jsonrpc\r\n", true),
        ("Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: jsonrpc\r\n", true),
        ("Sec-WebSocket-Protocol: chat\r\n", false),
        ("Sec-WebSocket-Protocol: JSONRPC\r\n", false),
        ("", false),
    ] {
        let (reply, _) = upgrade(&valid(offers)).unwrap().unwrap();
        let selects = reply.contains("\r\nSec-WebSocket-Protocol: jsonrpc\r\n");
        assert_eq!(selects, is_selected, "{offers}");
        assert!(!reply.contains("chat"));
    }
}

#[test]
fn a_bearer_subprotocol_becomes_an_authorization_header_and_is_never_sent_back() {
    // base64url of `s3cret~?>`
    let offers = "Sec-WebSocket-Protocol: jsonrpc, bearer.czNjcmV0fj8-\r\nCookie: a=b\r\n";
    let (reply, authorized) = upgrade(&valid(offers)).unwrap().unwrap();
    assert!(reply.ends_with("Sec-WebSocket-Protocol: jsonrpc\r\n\r\n"), "{reply}");
    let authorized = authorized.unwrap();
    let head = parse_head(authorized.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
    assert_eq!(head.header("Authorization"), Some(&b"Bearer s3cret~?>"[..]));
    assert_eq!(head.header("Cookie"), Some(&b"a=b"[..]));
    assert_eq!(head.host(), Some(&b"localhost"[..]));
    assert!(!authorized.contains("bearer."), "{authorized}");
}

#[test]
fn a_malformed_token_is_refused() {
    // Among them base64url of `a b`, of `a\r\nb: c`, and of an invalid length.
    for token in ["", "czNjcmV0fj8+", "YSBi", "YQ0KYjogYw", "Y", "YQ=="] {
        let offers = format!("Sec-WebSocket-Protocol: jsonrpc, bearer.{token}\r\n");
        assert_eq!(upgrade(&valid(&offers)), Err(HttpError::WebSocketTokenMalformed), "{token}");
    }
    let both = "Sec-WebSocket-Protocol: bearer.YQ\r\nAuthorization: Bearer b\r\n";
    assert_eq!(upgrade(&valid(both)), Err(HttpError::WebSocketTokenMalformed));
}
