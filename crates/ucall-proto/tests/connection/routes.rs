//! Requests of routes, among calls.

use std::sync::Arc;
use std::time::Duration;

use ucall_proto::http1::{ErrorBody, Head, Methods};
use ucall_proto::tls::TlsSession;
use ucall_proto::{
    AuthenticationError, Call, CallNumber, CallOutcome, CallerIdentity, Limits, LoadState,
    NextAction, Reply, RpcError, Service,
};

use crate::harness::{Driver, Examples, bodies, later, post, sum, sum_reply};

/// `/a` has GET and PUT, `/later` has GET and is deferred, `/public` is not authenticated. The
/// errors of HTTP itself are JSON at `/v2`, which has PUT.
#[derive(Default)]
struct Site {
    examples: Examples,
    is_protected: bool,
    seen: Vec<String>,
}

fn methods(names: &[&str]) -> Methods {
    let named = names.iter().map(|name| Methods::named(name).unwrap());
    named.fold(Methods::default(), Methods::union)
}

impl Service for Site {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        self.examples.call(call, reply)
    }

    fn requires_authentication(&self) -> bool {
        self.is_protected
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        _: Option<&Arc<TlsSession>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        match head.and_then(|head| head.header("Authorization")) {
            Some(_) => Ok(Arc::new(())),
            None => Err(AuthenticationError::Unauthorized),
        }
    }

    fn route_methods(&self, path: &[u8]) -> Methods {
        match path {
            b"/a" => methods(&["GET", "PUT"]),
            b"/v2" => methods(&["PUT"]),
            b"/" | b"/later" | b"/public" | b"/error" | b"/silent" | b"/ws" => methods(&["GET"]),
            _ => Methods::default(),
        }
    }

    fn error_body(&self, path: &[u8]) -> ErrorBody {
        if path.starts_with(b"/v2") { ErrorBody::Json } else { ErrorBody::Text }
    }

    fn is_public(&self, head: &Head<'_>) -> bool {
        head.path_and_query().0 == b"/public"
    }

    fn respond(&mut self, call: &Call<'_>, body: &[u8], reply: &mut Reply<'_>) -> CallOutcome {
        let head = call.head.unwrap();
        let (path, query) = head.path_and_query();
        assert_eq!(path, call.method.raw());
        let parts = [head.method().name().unwrap().as_bytes(), path, query, body];
        let text = String::from_utf8(parts.join(&b' ')).unwrap();
        self.seen.push(text.clone());
        match path {
            b"/later" => {
                self.examples.deferred.push(call.number);
                return CallOutcome::Deferred;
            }
            b"/error" => reply.error(&RpcError::new(-5, "no")),
            b"/silent" => {}
            _ => reply.response().extend_from_slice(response(&text).as_bytes()),
        }
        CallOutcome::Done
    }
}

fn response(body: &str) -> String {
    format!("HTTP/1.1 201 Created\r\nX: y\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The reply with that body.
fn reply(body: &str, lines: &str) -> String {
    response(body).replace("X: y", &format!("Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n{lines}X: y"))
}

fn request(line: &str, lines: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")
}

fn driver() -> Driver<Site> {
    Driver::serving(Site::default(), Limits::default())
}

fn answer(input: &str) -> String {
    let mut driver = driver();
    driver.receive(input.as_bytes());
    let whole = driver.sent();
    for at in 0..input.len() {
        let mut driver = self::driver();
        driver.receive(&input.as_bytes()[..at]);
        driver.receive(&input.as_bytes()[at..]);
        assert_eq!(driver.sent(), whole, "cut at {at}");
    }
    whole
}

#[test]
fn a_route_gets_path_query_and_body_and_its_response_gets_the_date() {
    for (line, seen) in [
        ("GET /a", "GET /a  "),
        ("GET /a?x=%20&?", "GET /a x=%20&? "),
        ("GET http://localhost/a?q", "GET /a q "),
        ("GET http://localhost", "GET /  "),
        ("GET http://localhost?q", "GET / q "),
        ("GET /", "GET /  "),
        ("GET /ws?q", "GET /ws q "),
    ] {
        assert_eq!(answer(&request(line, "")), reply(seen, ""), "{line}");
    }
    let put = request("PUT /a", "Content-Length: 3\r\n") + "abc";
    assert_eq!(answer(&put), reply("PUT /a  abc", ""));
    let chunked = request("PUT /a", "Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n0\r\n\r\n";
    assert_eq!(answer(&chunked), reply("PUT /a  abc", ""));
    let close = request("GET /a", "Connection: close\r\n");
    assert_eq!(answer(&close), reply("GET /a  ", "Connection: close\r\n"));
}

#[test]
fn a_head_request_gets_the_head_of_its_response() {
    for path in ["/a", "/later"] {
        let mut driver = driver();
        driver.receive(request(&format!("HEAD {path}"), "").as_bytes());
        if let [number] = driver.service.examples.deferred[..] {
            assert_eq!(driver.sent(), "");
            driver.complete(number, Ok(response("HEAD /a  ").as_bytes()));
        }
        let whole = reply("HEAD /a  ", "");
        assert_eq!(driver.sent(), whole.strip_suffix("HEAD /a  ").unwrap());
        driver.receive(post(&sum(1)).as_bytes());
        assert_eq!(bodies(&driver.sent()), [sum_reply(1)]);
    }
}

#[test]
fn other_methods_and_paths_are_refused_before_their_body() {
    for (line, status, allow) in [
        ("POST /a", "405", "GET, HEAD, PUT, OPTIONS"),
        ("DELETE /", "405", "GET, HEAD, POST, OPTIONS"),
        ("PATCH /later", "405", "GET, HEAD, OPTIONS"),
        ("BREW /later", "405", "GET, HEAD, OPTIONS"),
        ("POST /ws", "405", "GET, HEAD, OPTIONS"),
        ("CONNECT localhost:80", "405", ""),
        ("GET /b", "404", "-"),
        ("GET /a/", "404", "-"),
        ("OPTIONS /b", "404", "-"),
    ] {
        let mut driver = driver();
        driver.receive(request(line, "Content-Length: 9\r\n").as_bytes());
        let sent = driver.sent();
        assert!(sent.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {sent}");
        let line = sent.lines().find_map(|it| it.strip_prefix("Allow: "));
        assert_eq!(line.unwrap_or("-"), allow, "{sent}");
        assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    }
}

/// Requests that are refused, from the method to the end.
const REFUSED: [(&str, &str); 8] = [
    ("GET /{}?q HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
    ("PUT http://localhost/{}/x HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
    ("PUT /{} HTTP/3.0\r\nHost: localhost\r\n\r\n", "505"),
    ("PUT /{} HTTP/1.1\nHost: localhost\r\n\r\n", "400"),
    ("\r\nPUT /{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", "400"),
    ("PUT /{} HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
    ("PUT /{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", "413"),
    ("PUT /{} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", "400"),
];

/// Checks the body of an error.
fn check_error_body(sent: &str, status: &str, is_json: bool) {
    assert!(sent.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {sent}");
    assert_eq!(sent.contains("\r\nContent-Type: application/json\r\n"), is_json, "{sent}");
    let body = bodies(sent).remove(0);
    assert_eq!(body.starts_with("{\"error\":\"") && body.ends_with("\"}"), is_json, "{body}");
}

#[test]
fn errors_of_http_itself_are_json_at_the_paths_that_have_them_so() {
    for (text, status) in REFUSED {
        for (path, is_json) in [("v2", true), ("a", false)] {
            // The method that `/a` lacks is another one.
            let text = text.replace("{}", path);
            let text = if path == "a" { text.replace("GET", "POST") } else { text };
            check_error_body(&answer(&text), status, is_json);
        }
    }
    let head = answer("HEAD /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.contains("application/json") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn requests_that_stop_or_meet_a_full_server_have_errors_of_their_path() {
    let put = |path: &str, lines: &str| request(&format!("PUT {path}"), lines);
    for (path, is_json) in [("/v2", true), ("/a", false)] {
        for (begun, status) in [
            (put(path, "")[..30].to_owned(), "408"),
            (put(path, "Content-Length: 9\r\n") + "a", "408"),
            (put(path, "Transfer-Encoding: chunked\r\n") + "1\r\n", "408"),
        ] {
            let mut driver = driver();
            driver.receive(begun.as_bytes());
            driver.advance_time(Duration::from_secs(31));
            check_error_body(&driver.sent(), status, is_json);
        }
        let mut full = driver();
        full.load = LoadState::Overloaded;
        full.receive(put(path, "").as_bytes());
        check_error_body(&full.sent(), "503", is_json);
        let mut protected = driver();
        protected.service.is_protected = true;
        protected.receive(put(path, "").as_bytes());
        check_error_body(&protected.sent(), "401", is_json);
    }
}

#[test]
fn options_names_the_methods_of_the_path() {
    for (path, allow) in [
        ("/a", "GET, HEAD, PUT, OPTIONS"),
        ("/", "GET, HEAD, POST, OPTIONS"),
        ("*", "POST, OPTIONS"),
    ] {
        let sent = answer(&request(&format!("OPTIONS {path}"), ""));
        assert!(sent.starts_with("HTTP/1.1 204 "), "{sent}");
        assert!(sent.contains(&format!("\r\nAllow: {allow}\r\n")), "{path}: {sent}");
    }
}

#[test]
fn responses_keep_their_place_among_replies() {
    let requests = [
        post(&later(1)),
        request("GET /a", ""),
        request("GET /later", ""),
        post(&sum(2)),
        request("HEAD /a", ""),
    ];
    let mut driver = driver();
    driver.receive(requests.concat().as_bytes());
    assert_eq!(driver.sent(), "");
    assert!(driver.service.seen.is_empty(), "a route waits for the replies before it");
    driver.complete(driver.service.examples.deferred[0], Ok(b"1"));
    let sent = driver.sent();
    assert!(sent.starts_with("HTTP/1.1 200 ") && sent.ends_with(&reply("GET /a  ", "")));
    driver.complete(driver.service.examples.deferred[1], Ok(response("late").as_bytes()));
    let sent = driver.sent();
    assert!(sent.starts_with(&reply("late", "")), "{sent}");
    let heads: Vec<_> = sent.split("HTTP/1.1 ").skip(1).map(|it| &it[..3]).collect();
    assert_eq!(heads, ["201", "200", "201"]);
}

/// A driver whose `/later` was requested, and the number of that request.
fn streaming(request: &str) -> (Driver<Site>, CallNumber) {
    let mut driver = driver();
    driver.receive(request.as_bytes());
    let number = driver.service.examples.deferred[0];
    assert!(driver.item(number, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"));
    (driver, number)
}

const DATE: &str = "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

#[test]
fn a_streamed_body_is_chunked_and_other_replies_follow_it() {
    let get = request("GET /later", "");
    let (mut driver, number) = streaming(&(get + &post(&sum(1))));
    let head = format!("HTTP/1.1 200 OK\r\n{DATE}Transfer-Encoding: chunked\r\nX: y\r\n\r\n");
    assert_eq!(driver.sent(), head);
    for (part, chunk) in [("a\n", "2\r\na\n\r\n"), ("", ""), ("0123456789", "a\r\n0123456789\r\n")]
    {
        assert!(driver.item(number, part));
        assert_eq!(driver.sent(), chunk);
    }
    driver.complete(number, Ok(b""));
    let sent = driver.sent();
    let reply = sent.strip_prefix("0\r\n\r\n").unwrap();
    assert_eq!(bodies(reply), [sum_reply(1)]);
    assert!(!driver.item(number, "late"));
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
}

#[test]
fn a_whole_response_may_come_in_parts() {
    for method in ["GET", "HEAD"] {
        let mut driver = driver();
        driver.receive(request(&format!("{method} /later"), "").as_bytes());
        let number = driver.service.examples.deferred[0];
        let whole = response("0123456789");
        let (first, second) = whole.split_at(whole.len() - 5);
        driver.item(number, first);
        driver.item(number, second);
        driver.complete(number, Ok(b""));
        let expected = reply("0123456789", "");
        let body = if method == "HEAD" { "0123456789" } else { "" };
        assert_eq!(driver.sent() + body, expected);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
}

#[test]
fn a_streamed_body_of_a_head_request_is_omitted() {
    let (mut driver, number) = streaming(&request("HEAD /later", ""));
    assert!(driver.sent().ends_with("\r\n\r\n"));
    driver.item(number, "part");
    driver.complete(number, Ok(b""));
    assert_eq!(driver.sent(), "");
    assert_eq!(driver.connection.next_action(), NextAction::Receive);
}

#[test]
fn a_streamed_body_ends_with_the_connection_over_http_1_0() {
    let text = "GET /later HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";
    let (mut driver, number) = streaming(&text.repeat(2));
    let head = format!("HTTP/1.1 200 OK\r\n{DATE}Connection: close\r\nX: y\r\n\r\n");
    assert_eq!(driver.sent(), head);
    driver.item(number, "part");
    driver.complete(number, Ok(b""));
    assert_eq!(driver.sent(), "part");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn a_body_that_fails_is_cut_off() {
    let get = request("GET /later", "");
    let (mut driver, number) = streaming(&(get + &post(&sum(1))));
    driver.sent();
    driver.complete(number, Err(&RpcError::new(-5, "no")));
    assert_eq!(driver.sent(), "", "neither a last chunk nor another reply");
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
}

#[test]
fn an_error_is_a_response_with_its_status() {
    for (code, status) in [
        (-32602, "400 Bad Request"),
        (-32004, "403 Forbidden"),
        (-32002, "503 Service Unavailable"),
        (-32003, "503 Service Unavailable"),
        (-32001, "504 Gateway Timeout"),
        (-5, "500 Internal Server Error"),
    ] {
        let mut driver = driver();
        driver.receive(request("GET /later", "").as_bytes());
        let number = driver.service.examples.deferred[0];
        driver.complete(number, Err(&RpcError::new(code, "no")));
        let sent = driver.sent();
        assert!(sent.starts_with(&format!("HTTP/1.1 {status}\r\nDate: ")), "{sent}");
        let body = format!("{{\"error\":{{\"code\":{code},\"message\":\"no\"}}}}\n");
        assert_eq!(bodies(&sent), [body]);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
    }
    let now = bodies(&answer(&request("GET /error", ""))).remove(0);
    assert_eq!(now, "{\"error\":{\"code\":-5,\"message\":\"no\"}}\n");
    let silent = bodies(&answer(&request("GET /silent", ""))).remove(0);
    assert!(silent.contains("The handler did not reply"), "{silent}");
}

#[test]
fn a_response_beyond_the_limit_is_an_error() {
    for path in ["/a", "/later"] {
        let mut driver = driver();
        driver.limits.reply_bytes_max = 150;
        let query = "x".repeat(200);
        driver.receive(request(&format!("GET {path}?{query}"), "").as_bytes());
        if let [number] = driver.service.examples.deferred[..] {
            driver.complete(number, Ok(response(&query).as_bytes()));
        }
        let sent = driver.sent();
        assert!(sent.starts_with("HTTP/1.1 500 "), "{sent}");
        assert!(bodies(&sent)[0].contains("max_reply_bytes"));
    }
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let mut driver = driver();
    driver.limits.body_bytes_max = 2;
    driver.receive(request("PUT /a", "Content-Length: 3\r\n").as_bytes());
    assert!(driver.sent().starts_with("HTTP/1.1 413 "));
    assert!(driver.service.seen.is_empty());
}

#[test]
fn authentication_precedes_all_but_public_routes() {
    let body = "Content-Length: 1\r\n";
    for (line, lines, status) in [
        ("GET /a", "", "401"),
        ("GET /a", "Authorization: x\r\n", "201"),
        ("GET /public", "", "201"),
        ("HEAD /public", "", "201"),
        ("GET /", "", "401"),
        ("PUT /a", body, "401"),
        ("OPTIONS /a", "", "204"),
    ] {
        let mut driver = driver();
        driver.service.is_protected = true;
        driver.receive(request(line, lines).as_bytes());
        let sent = driver.sent();
        assert!(sent.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {sent}");
    }
}

#[test]
fn a_public_request_lends_its_identity_to_none() {
    let mut driver = driver();
    driver.service.is_protected = true;
    let known = request("GET /a", "Authorization: x\r\n");
    driver.receive((known + &request("GET /public", "Content-Length: 1\r\n")).as_bytes());
    driver.receive(b"x");
    assert_eq!(driver.sent().matches("HTTP/1.1 201 ").count(), 2);
    driver.receive(request("GET /a", "").as_bytes());
    assert!(driver.sent().starts_with("HTTP/1.1 401 "));
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    for lines in ["Host: localhost\r\nOrigin: http://evil.example", "Host: evil.example"] {
        let mut driver = driver();
        driver.receive(format!("GET /a HTTP/1.1\r\n{lines}\r\n\r\n").as_bytes());
        assert!(driver.sent().starts_with("HTTP/1.1 403 "), "{lines}");
        assert!(driver.service.seen.is_empty());
    }
}
