//! Calls over HTTP/1.1: each is a `POST`, and its reply is the body of the response. One call at a
//! time is in flight on a connection.
//!
//! | state    | input                           | next                 |
//! |----------|---------------------------------|----------------------|
//! | `Idle`   | any byte                        | an error             |
//! | `Framed` | a body that its head delimits   | `Idle`, with a reply |
//! | `Framed` | a head that delimits no body    | `Open`               |
//! | `Open`   | the end of a document           | `Idle`, with a reply |
//!
//! [`HttpReplyReader::begin`] leads from `Idle` to `Framed`. The end of the connection delimits an
//! `Open` body, which may have been cut: so it is read as one JSON object, whose end is its own.

use std::mem;

use ucall_proto::http1::{
    ResponseBodyLength, ResponseError, ResponseHead, ResponsePart, ResponseReader,
};
use ucall_proto::json::DocumentStream;
use ucall_server::NativeOutcome;

use crate::errors::unavailable;
use crate::replies::{NESTING_MAX, UpstreamReply, read_reply};
use crate::request::{CallContext, write_number};

/// The id of each call. Some servers take 0 for none.
pub(crate) const ID: u32 = 1;
/// Headers that the relay sets itself.
const RESERVED: [&str; 6] =
    ["host", "content-length", "transfer-encoding", "connection", "content-type", "accept"];

/// Where calls are posted to, and with which headers.
#[derive(Debug)]
pub(crate) struct HttpTarget {
    /// The head of each request, up to the value of `Content-Length`.
    head: String,
    /// Whether the server reads `_meta`.
    pub(crate) takes_meta: bool,
}

impl HttpTarget {
    /// `path` has no spaces, and `headers` were checked.
    pub(crate) fn new(
        authority: &str,
        path: &str,
        headers: &[(String, String)],
        takes_meta: bool,
    ) -> Self {
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
             Accept: application/json\r\n"
        );
        for (name, value) in headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("Content-Length: ");
        Self { head, takes_meta }
    }

    /// Appends the head of a request.
    pub(crate) fn write_head(&self, out: &mut Vec<u8>, body_len: usize, context: &CallContext) {
        out.extend_from_slice(self.head.as_bytes());
        write_number(out, body_len as u64);
        for (name, value) in context.trace.iter().flat_map(|trace| trace.members()) {
            let line = ["\r\n", name, ": ", value];
            line.into_iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        }
        out.extend_from_slice(b"\r\n\r\n");
    }
}

/// Appends a request that reads `path`, with the headers of calls over HTTP. `label` is that of the
/// upstream.
pub(crate) fn write_get(out: &mut Vec<u8>, path: &str, label: &str, target: Option<&HttpTarget>) {
    let after_line = target.and_then(|it| it.head.split_once("\r\n"));
    let headers = after_line.and_then(|(_, headers)| headers.strip_suffix("Content-Length: "));
    let authority = label.split_once("://").map_or(label, |(_, authority)| authority);
    // That of a Unix socket is a path.
    let host = if authority.starts_with('/') { "localhost" } else { authority };
    let headers = headers.map_or_else(|| format!("Host: {host}\r\n"), str::to_owned);
    let request = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    out.extend_from_slice(request.as_bytes());
}

/// Checks a header for upstreams.
///
/// # Errors
/// What was expected. The value is not repeated, because it may be a secret.
pub(crate) fn check_header(name: &str, value: &str) -> Result<(), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("expected the name of a header, got {name:?}"));
    }
    if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(format!("expected other headers than {name}, which the relay sets"));
    }
    match value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        true => Ok(()),
        false => Err(format!("expected a value of visible ASCII characters for {name}")),
    }
}

/// Reads the responses of one connection.
#[derive(Debug)]
pub(crate) struct HttpReplyReader {
    state: ReaderState,
    responses: ResponseReader,
    /// What has arrived of an open body.
    partial: Vec<u8>,
    /// The head of the response whose body is read.
    status: u16,
    reason: String,
    keeps_alive: bool,
    is_notification: bool,
    bytes_max: usize,
}

#[derive(Debug)]
enum ReaderState {
    Idle,
    Framed,
    Open(DocumentStream),
}

impl HttpReplyReader {
    /// A reader of bodies of at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: ReaderState::Idle,
            responses: ResponseReader::new(bytes_max),
            partial: Vec::new(),
            status: 0,
            reason: String::new(),
            keeps_alive: true,
            is_notification: false,
            bytes_max,
        }
    }

    /// A call was written; of a notification the response has no document.
    pub(crate) fn begin(&mut self, is_notification: bool) {
        (self.state, self.is_notification) = (ReaderState::Framed, is_notification);
    }

    /// Whether another call may be written after this one.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Memory of an incomplete reply.
    pub(crate) fn held_bytes(&self) -> usize {
        self.responses.held_bytes() + self.partial.capacity()
    }

    /// Reads the next bytes, and passes the reply to `handle` once it is complete, with the
    /// number 0: a connection has one call at a time, whose id is always the same.
    ///
    /// # Errors
    /// Why the connection cannot be used any more.
    pub(crate) fn read(
        &mut self,
        mut bytes: &[u8],
        mut handle: impl FnMut(UpstreamReply) -> bool,
    ) -> Result<(), String> {
        loop {
            let used = match self.state {
                ReaderState::Idle if bytes.is_empty() => return Ok(()),
                ReaderState::Idle => return Err("it has sent more than a reply".to_owned()),
                ReaderState::Framed => self.read_framed(bytes, &mut handle)?,
                ReaderState::Open(_) => self.read_open(bytes, &mut handle)?,
            };
            let Some(used) = used else { return Ok(()) };
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }

    /// Reads a head or a body; returns its length in `bytes`, `None` while it is incomplete.
    fn read_framed(
        &mut self,
        bytes: &[u8],
        handle: &mut impl FnMut(UpstreamReply) -> bool,
    ) -> Result<Option<usize>, String> {
        let (used, part) = self.responses.read(bytes).map_err(|error| match error {
            ResponseError::BodyTooLarge(_) => self.refuse_long(handle),
            ResponseError::Invalid(what) => format!("it has replied with {what}"),
        })?;
        match part {
            None => return Ok(None),
            Some(ResponsePart::Head(head)) => self.begin_body(head, handle)?,
            Some(ResponsePart::Body(body)) => self.finish(&body, handle)?,
        }
        Ok(Some(used))
    }

    fn begin_body(
        &mut self,
        head: ResponseHead,
        handle: &mut impl FnMut(UpstreamReply) -> bool,
    ) -> Result<(), String> {
        (self.status, self.reason) = (head.status, head.reason);
        self.keeps_alive = head.keeps_alive;
        if head.body != ResponseBodyLength::UntilClose {
            return Ok(());
        }
        // It accepts no codings, so the end is no error.
        let _ = self.responses.end();
        self.state = ReaderState::Open(DocumentStream::new());
        match self.is_notification {
            // It needs no document.
            true => self.finish(b"", handle),
            false => Ok(()),
        }
    }

    fn read_open(
        &mut self,
        bytes: &[u8],
        handle: &mut impl FnMut(UpstreamReply) -> bool,
    ) -> Result<Option<usize>, String> {
        let ReaderState::Open(stream) = &mut self.state else { return Ok(None) };
        let text = if self.partial.is_empty() { bytes.trim_ascii_start() } else { bytes };
        let Some(first) = self.partial.first().or(text.first()) else { return Ok(None) };
        let end = match first {
            b'{' => stream.scan(text, NESTING_MAX).unwrap_or(Some(text.len())),
            // A page, perhaps: its status tells what to do.
            _ => Some(text.len()),
        };
        let rest = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
        if self.partial.len() + rest.len() > self.bytes_max {
            return Err(self.refuse_long(handle));
        }
        self.partial.extend_from_slice(rest);
        let Some(len) = end else { return Ok(None) };
        let body = mem::take(&mut self.partial);
        self.finish(&body, handle)?;
        Ok(Some(bytes.len() - text.len() + len))
    }

    /// What the end of the connection means for a call, if its response may end so: an error of it
    /// alone.
    pub(crate) fn error_at_end(&self) -> Option<String> {
        let is_its_own = !matches!(self.status, 200..300 | 408 | 429 | 502 | 503);
        let is_open = matches!(self.state, ReaderState::Open(_));
        (is_open && is_its_own).then(|| self.describe_status())
    }

    /// The body is complete.
    fn finish(
        &mut self,
        body: &[u8],
        handle: &mut impl FnMut(UpstreamReply) -> bool,
    ) -> Result<(), String> {
        self.state = ReaderState::Idle;
        let mut id = itoa::Buffer::new();
        let is_success = (200..300).contains(&self.status);
        let outcome = match (self.is_notification, is_success) {
            (true, true) => Ok(Ok(Vec::new())),
            (_, _) => read_reply(body, id.format(ID).as_bytes()),
        };
        let outcome = outcome.or_else(|error| {
            let reason = || self.describe_status();
            match self.status {
                200..300 => Err(error),
                // The server is busy, has closed an idle connection, has no server behind it, or
                // speaks another protocol.
                101 | 408 | 429 | 502 | 503 => Err(reason()),
                // What a call can cause says nothing about other calls.
                _ => Ok(Err(unavailable(true, &reason()))),
            }
        })?;
        handle(UpstreamReply { id: 0, outcome: outcome.into(), is_last: true });
        Ok(())
    }

    fn describe_status(&self) -> String {
        format!("it has replied with HTTP status {} {}", self.status, self.reason)
    }

    /// The body is too long: an error of its call alone, whose connection ends.
    fn refuse_long(&self, handle: &mut impl FnMut(UpstreamReply) -> bool) -> String {
        let reason = format!("a reply is longer than {} bytes (max_reply_bytes)", self.bytes_max);
        let outcome = NativeOutcome::Reply(Err(unavailable(true, &reason)));
        handle(UpstreamReply { id: 0, outcome, is_last: true });
        reason
    }
}

#[cfg(test)]
mod tests {
    use ucall_proto::RpcError;

    use super::*;

    fn read_split(text: &[u8], at: usize) -> (Vec<UpstreamReply>, Result<(), String>) {
        let (mut reader, mut replies) = (HttpReplyReader::new(100), Vec::new());
        reader.begin(false);
        let (first, second) = text.split_at(at);
        let mut handle = |reply: UpstreamReply| {
            replies.push(reply);
            true
        };
        let result = reader.read(first, &mut handle).and_then(|()| reader.read(second, handle));
        (replies, result)
    }

    fn reply(outcome: Result<Vec<u8>, RpcError>) -> UpstreamReply {
        UpstreamReply { id: 0, outcome: outcome.into(), is_last: true }
    }

    fn at_each_split(text: &str, check: impl Fn(Vec<UpstreamReply>, Result<(), String>)) {
        (0..=text.len()).for_each(|at| {
            let (replies, result) = read_split(text.as_bytes(), at);
            check(replies, result);
        });
    }

    #[test]
    fn a_reply_is_found_at_every_split() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{\"id\":1,\"result\":7} ",
            "HTTP/1.1 500 No\r\nContent-Length: 19\r\n\r\n{\"id\":1,\"result\":7}",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             5;a=b\r\n{\"id\"\r\ne\r\n:1,\"result\":7}\r\n0\r\nA: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n \r\n{\"id\":1,\"result\":7}",
            "HTTP/1.0 500 No\r\nContent-Type: application/json\r\n\r\n{\"id\":1,\"result\":7}",
        ] {
            at_each_split(text, |replies, result| {
                let expected = [reply(Ok(b"7".to_vec()))];
                assert_eq!((replies.as_slice(), result), (&expected[..], Ok(())), "{text}");
            });
        }
    }

    #[test]
    fn an_error_may_have_no_id_and_any_status() {
        let body = r#"{"id":null,"error":{"code":-4,"message":"no"}}"#;
        for status in ["200 OK", "400 Bad Request"] {
            let length = body.len();
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            at_each_split(&text, |replies, result| {
                let error = reply(Err(RpcError::new(-4, "no")));
                assert_eq!((replies, result), (vec![error], Ok(())));
            });
        }
    }

    #[test]
    fn a_refused_call_fails_alone() {
        for status in ["413 No", "500 No", "504 No", "302 No"] {
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\n\r\nx");
            at_each_split(&text, |replies, result| {
                let reason = format!("it has replied with HTTP status {status}");
                let error = reply(Err(unavailable(true, &reason)));
                assert_eq!((replies, result), (vec![error], Ok(())));
            });
        }
    }

    #[test]
    fn a_reply_that_is_too_long_is_an_error_of_its_call() {
        for (head, body, is_long) in [
            ("Content-Length: 100", "", false),
            ("Content-Length: 101", "", true),
            ("Transfer-Encoding: chunked", "64\r\n", false),
            ("Transfer-Encoding: chunked", "65\r\n", true),
            ("Connection: close", &format!("{{\"{}", "x".repeat(98)), false),
            ("Connection: close", &format!("{{\"{}", "x".repeat(99)), true),
        ] {
            at_each_split(
                &format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"),
                |replies, result| {
                    let reason = "a reply is longer than 100 bytes (max_reply_bytes)";
                    let error = vec![reply(Err(unavailable(true, reason)))];
                    let expected =
                        if is_long { (error, Err(reason.to_owned())) } else { (vec![], Ok(())) };
                    assert_eq!((replies, result), expected, "{head}");
                },
            );
        }
    }

    #[test]
    fn what_is_no_reply_ends_the_connection() {
        for (head, body, reason) in [
            ("HTTP/1.1 503 Busy\r\nContent-Length: 1", "x", "HTTP status 503 Busy"),
            ("HTTP/1.1 429 Busy\r\nContent-Length: 1", "x", "HTTP status 429 Busy"),
            ("HTTP/1.1 204 No Content", "", "no JSON"),
            ("HTTP/1.1 101 Switching Protocols", "", "HTTP status 101"),
            ("HTTP/1.1 200 OK", "{}", "no result"),
            ("HTTP/1.0 200 OK", "{\"id\":1,\"result\":1]", "no JSON"),
            ("HTTP/1.1 200 OK", "[1]", "no JSON"),
            ("HTTP/1.0 503 Busy", "<p>busy", "HTTP status 503 Busy"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "x", "HTTP where"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 19", r#"{"id":2,"result":7}"#, "of no call"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 22", r#"{"id":null,"result":7}"#, "of no call"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 8", r#"{"id":1}"#, "no result"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4", "{}{}", "more than one"),
            ("HTTP/1.1 200 OK\r\nContent-Length: +4", "", "HTTP with a bad Content-Length"),
            ("HTTX", "", "HTTP with"),
        ] {
            let text = format!("{head}\r\n\r\n{body}");
            at_each_split(&text, |replies, result| {
                let error = result.expect_err(&text);
                assert!(error.contains(reason) && replies.is_empty(), "{text}: {error}");
            });
        }
    }

    #[test]
    fn the_end_of_a_body_without_a_length_is_that_of_its_document() {
        let head = "HTTP/1.0 200 OK\r\n\r\n";
        let mut reader = HttpReplyReader::new(100);
        reader.begin(false);
        let mut replies = Vec::new();
        let mut handle = |it| {
            replies.push(it);
            true
        };
        let cut = format!("{head}{}", r#"{"id":1,"result":[7"#);
        assert_eq!(reader.read(cut.as_bytes(), &mut handle), Ok(()));
        assert_eq!(reader.error_at_end(), None, "it was cut");
        assert_eq!(reader.read(b"]}", &mut handle), Ok(()));
        assert_eq!(replies, [reply(Ok(b"[7]".to_vec()))]);
        assert!(!reader.keeps_alive());
        for (status, is_its_own) in [("404 No", true), ("500 No", true), ("503 No", false)] {
            reader.begin(false);
            let head = format!("HTTP/1.0 {status}\r\n\r\n");
            assert_eq!(reader.read(head.as_bytes(), |_| unreachable!("no body")), Ok(()));
            assert_eq!(reader.error_at_end().is_some(), is_its_own, "{status}");
        }
    }

    #[test]
    fn a_notification_needs_no_document() {
        let mut reader = HttpReplyReader::new(100);
        let mut count = 0;
        for text in [
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert_eq!(reader.keeps_alive(), count < 2);
            reader.begin(true);
            let mut handle = |_| {
                count += 1;
                true
            };
            assert_eq!(reader.read(text.as_bytes(), &mut handle), Ok(()));
        }
        assert_eq!((count, reader.keeps_alive()), (3, false));
    }

    #[test]
    fn headers_that_could_change_the_request_are_refused() {
        assert_eq!(check_header("Authorization", "Bearer x.y"), Ok(()));
        for (name, value) in [("", "x"), ("a b", "x"), ("X", "a\r\nY: b"), ("HOST", "x")] {
            assert!(check_header(name, value).is_err(), "{name}");
        }
        let (target, mut out) =
            (HttpTarget::new("a:1", "/rpc?k=v", &[("X".into(), "y".into())], false), Vec::new());
        target.write_head(&mut out, 12, &CallContext::default());
        let expected = "POST /rpc?k=v HTTP/1.1\r\nHost: a:1\r\nContent-Type: application/json\r\n\
                        Accept: application/json\r\nX: y\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
