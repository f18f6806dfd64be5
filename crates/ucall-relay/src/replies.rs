//! Finds the replies and the items of streams in the bytes that an upstream sends.

use ucall_proto::json::{DocumentStream, JsonError, Reader};
use ucall_proto::{Limits, Response, ResponseBody, RpcError};
use ucall_server::NativeOutcome;

use crate::errors::unavailable;
use crate::long_reply::LongReply;

/// Arrays and objects inside one another, in a whole reply: as many as a result of this project's
/// servers has, and the reply itself.
pub(crate) const NESTING_MAX: usize = Limits::NESTING_MAX + 1;
/// The id of an error for a call that a server cannot read, so that it does not know its id.
pub(crate) const NO_CALL: u32 = u32::MAX;
/// Memory that is kept for the next incomplete reply.
const CACHED_BYTES_MAX: usize = 64 * 1024;

/// Texts that are not searched first.
const SHORT_BYTES: usize = 8;

/// What an item has around its value: `max_reply_bytes` limits the value, as it does at the server
/// that sends it.
const AROUND_ITEM_BYTES: usize = 256;

/// Splits what one connection receives into replies.
#[derive(Debug)]
pub struct ReplyReader {
    /// An incomplete reply.
    partial: Vec<u8>,
    /// What is left of it, once it is too long.
    long: Option<LongReply>,
    /// Whether there is one.
    is_incomplete: bool,
    stream: DocumentStream,
    bytes_max: usize,
    is_draining: bool,
}

/// One reply or item: the id that the call was given, and its outcome.
#[derive(Debug, PartialEq, Eq)]
pub struct UpstreamReply {
    /// The number of a slot, or `u32::MAX` for a call that is not known: the server could not read
    /// it, or its reply is too long.
    pub id: u32,
    /// The text of the result or the item, or the error.
    pub outcome: NativeOutcome,
    /// Whether the upstream sends no more for this call. If it does after an error, the call has to
    /// be cancelled.
    pub is_last: bool,
}

impl ReplyReader {
    /// A reader of replies, and of items, of at most `bytes_max` bytes. Longer ones are read, and
    /// not kept: they are errors of their calls.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            partial: Vec::new(),
            long: None,
            is_incomplete: false,
            stream: DocumentStream::new(),
            bytes_max,
            is_draining: false,
        }
    }

    /// Memory of an incomplete reply.
    pub(crate) fn held_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Whether the upstream has announced that it ends, so that it should get no more calls here.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Reads the next bytes, and passes the replies that are complete to `handle`, which returns
    /// whether it knows the id.
    ///
    /// # Errors
    /// Why the connection cannot be used any more.
    pub fn read(
        &mut self,
        mut bytes: &[u8],
        mut handle: impl FnMut(UpstreamReply) -> bool,
    ) -> Result<(), String> {
        loop {
            if self.is_incomplete {
                let Some(len) = self.stream.scan(bytes, NESTING_MAX).map_err(not_json)? else {
                    self.keep(bytes);
                    return Ok(());
                };
                let (end, rest) = bytes.split_at(len);
                self.keep(end);
                self.finish(&mut handle)?;
                bytes = rest;
            }
            bytes = bytes.trim_ascii_start();
            if bytes.is_empty() {
                return Ok(());
            }
            match Response::parse(bytes, NESTING_MAX) {
                Ok((response, len)) if len <= self.bytes_max + AROUND_ITEM_BYTES => {
                    self.handle(&response, &bytes[..len], &mut handle)?;
                    bytes = &bytes[len..];
                }
                // The stream finds the same end, however the document is split.
                _ => {
                    (self.is_incomplete, self.stream) = (true, DocumentStream::new());
                }
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        match &mut self.long {
            Some(long) => long.extend(bytes),
            None => {
                let is_long = self.partial.len() + bytes.len() > self.bytes_max + AROUND_ITEM_BYTES;
                if is_long {
                    let mut long = LongReply::begin(&std::mem::take(&mut self.partial));
                    long.extend(bytes);
                    self.long = Some(long);
                } else {
                    self.partial.extend_from_slice(bytes);
                }
            }
        }
    }

    /// The incomplete reply is complete.
    fn finish(&mut self, handle: &mut impl FnMut(UpstreamReply) -> bool) -> Result<(), String> {
        self.is_incomplete = false;
        if let Some(long) = self.long.take() {
            return self.refuse(&long, handle);
        }
        let mut whole = std::mem::take(&mut self.partial);
        let (response, _) = Response::parse(&whole, NESTING_MAX).map_err(not_json)?;
        self.handle(&response, &whole, handle)?;
        if whole.capacity() <= CACHED_BYTES_MAX {
            whole.clear();
            self.partial = whole;
        }
        Ok(())
    }

    /// A document has arrived whose text is `text`.
    fn handle(
        &mut self,
        response: &Response<'_>,
        text: &[u8],
        handle: &mut impl FnMut(UpstreamReply) -> bool,
    ) -> Result<(), String> {
        if let ResponseBody::Request { method, params } = response.body {
            // Other notifications are not for a caller.
            let is_item = method == br#""$/progress""#;
            let Some((id, item)) = params.filter(|_| is_item).and_then(item) else {
                self.is_draining |= method == br#""$/drain""#;
                return Ok(());
            };
            let is_long = item.len() > self.bytes_max;
            let outcome =
                if is_long { self.too_long() } else { NativeOutcome::Item(item.to_vec()) };
            return pass(UpstreamReply { id, outcome, is_last: false }, handle);
        }
        match text.len() > self.bytes_max {
            true => self.refuse(&LongReply::begin(text), handle),
            false => handle_reply(response, handle),
        }
    }

    /// A document has ended that is longer than a reply may be.
    fn refuse(
        &self,
        long: &LongReply,
        handle: &mut impl FnMut(UpstreamReply) -> bool,
    ) -> Result<(), String> {
        let (number, outcome) = (|text| slot_number(text).unwrap_or(NO_CALL), self.too_long());
        let (id, is_last) = match long.method() {
            Some(br#""$/progress""#) => (long.token().map_or(NO_CALL, number), false),
            Some(_) => return Ok(()),
            None => (long.id().map_or(NO_CALL, number), true),
        };
        if id != NO_CALL {
            return pass(UpstreamReply { id, outcome, is_last }, handle);
        }
        match handle(UpstreamReply { id, outcome, is_last: true }) {
            true => Ok(()),
            false => Err(self.describe_too_long()),
        }
    }

    fn too_long(&self) -> NativeOutcome {
        NativeOutcome::Reply(Err(unavailable(true, &self.describe_too_long())))
    }

    fn describe_too_long(&self) -> String {
        format!("a reply is longer than {} bytes (max_reply_bytes)", self.bytes_max)
    }
}

fn not_json(_: JsonError) -> String {
    "a reply is no JSON object".to_owned()
}

/// Passes what has an id to `handle`.
fn pass(
    reply: UpstreamReply,
    handle: &mut impl FnMut(UpstreamReply) -> bool,
) -> Result<(), String> {
    let (id, is_last) = (reply.id, reply.is_last);
    match (handle(reply), is_last) {
        (true, _) => Ok(()),
        (false, true) => Err(format!("a reply has the id {id}, which no call waits for")),
        (false, false) => Err(format!("an item has the token {id}, which is of no stream")),
    }
}

fn handle_reply(
    response: &Response<'_>,
    handle: &mut impl FnMut(UpstreamReply) -> bool,
) -> Result<(), String> {
    let outcome = outcome(response)?;
    let is_refusal =
        |error: &RpcError| [RpcError::PARSE_ERROR, RpcError::INVALID_REQUEST].contains(&error.code);
    let is_nameless = matches!(response.id, None | Some(b"null"))
        && outcome.as_ref().err().is_some_and(is_refusal);
    let Some(id) = response.id.and_then(slot_number).or(is_nameless.then_some(NO_CALL)) else {
        return Err(describe_unexpected(outcome.err()));
    };
    let error = outcome.as_ref().err().filter(|_| is_nameless).cloned();
    let reply = UpstreamReply { id, outcome: outcome.into(), is_last: true };
    if !is_nameless {
        return pass(reply, handle);
    }
    match handle(reply) {
        true => Ok(()),
        false => Err(describe_unexpected(error)),
    }
}

/// The item in the params of `$/progress` and its call, unless they are of another form.
fn item(params: &[u8]) -> Option<(u32, &[u8])> {
    let [token, value] = Reader::new(params).members([b"token", b"value"])?;
    Some((slot_number(token?)?, value?))
}

/// The result of a reply, or its error.
fn outcome(response: &Response<'_>) -> Result<Result<Vec<u8>, RpcError>, String> {
    match response.body {
        ResponseBody::Result(result) => Ok(Ok(result.to_vec())),
        ResponseBody::Error(error) => match RpcError::parse_response(error) {
            Some(error) => Ok(Err(error)),
            None => Err("a reply has an error without code and message".to_owned()),
        },
        ResponseBody::Request { .. } | ResponseBody::Invalid => {
            Err("a reply has no result and no error".to_owned())
        }
    }
}

/// The outcome in a document that is one reply, to the call with this id. An error may have no id:
/// a server that cannot read a call does not know it.
pub(crate) fn read_reply(text: &[u8], id: &[u8]) -> Result<Result<Vec<u8>, RpcError>, String> {
    let text = text.trim_ascii();
    let (response, len) = Response::parse(text, NESTING_MAX).map_err(not_json)?;
    if len < text.len() {
        return Err("a reply is more than one JSON object".to_owned());
    }
    let outcome = outcome(&response)?;
    let is_expected = match response.id {
        None | Some(b"null") => outcome.is_err(),
        Some(found) => found == id,
    };
    if is_expected { Ok(outcome) } else { Err(describe_unexpected(outcome.err())) }
}

/// What a reply without a known id says.
fn describe_unexpected(error: Option<RpcError>) -> String {
    match error {
        Some(error) => {
            let message: String = error.message.chars().take(100).collect();
            format!("it has replied with error {} {message:?}, of no call", error.code)
        }
        None => "a reply has an id of no call".to_owned(),
    }
}

fn slot_number(text: &[u8]) -> Option<u32> {
    // A number in another form, such as 01 or 1e0, is not what was sent.
    match text {
        b"0" => Some(0),
        [b'1'..=b'9', rest @ ..] if rest.len() < 9 && rest.iter().all(u8::is_ascii_digit) => {
            Some(text.iter().fold(0, |number, digit| number * 10 + u32::from(digit & 0xf)))
        }
        _ => None,
    }
}

/// Replaces the line breaks of a JSON text, which are between tokens only, by spaces. Calls and
/// replies over raw TCP and items of streams are lines.
pub(crate) fn to_one_line(text: &mut [u8]) {
    // Most results are so short that a search costs more.
    if text.len() < SHORT_BYTES || memchr::memchr2(b'\n', b'\r', text).is_some() {
        for byte in text.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 100;

    fn read_split(text: &str, at: usize) -> (Vec<UpstreamReply>, Result<(), String>) {
        let (mut reader, mut replies) = (ReplyReader::new(BYTES_MAX), Vec::new());
        let (first, second) = text.as_bytes().split_at(at);
        let mut handle = |reply: UpstreamReply| {
            let is_known = reply.id < 10;
            replies.push(reply);
            is_known
        };
        let result = reader.read(first, &mut handle).and_then(|()| reader.read(second, handle));
        (replies, result)
    }

    #[test]
    fn replies_are_found_at_every_split() {
        let text = concat!(
            r#"{"jsonrpc":"2.0","id":0,"result":{"a":[1.0,"\u00e9}{"]}}"#,
            "\n{\"id\":9,\"result\":[1,\r\n2]} \n\n",
            r#"{"jsonrpc":"2.0","method":"$/progress","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"$/progress","params":{"token":5,"value":["#,
            "1.0,\n\"\\u00e9\"]}}",
            r#"{"method":"$/progress","params":{"token":"5","value":1}}"#,
            r#"{"method":"$/other","params":{"token":5,"value":1}}"#,
            r#"{"method":"$/drain","params":{"read":3}}"#,
            "{\"id\":3,\"error\":{\"code\":-5,\"message\":\"no\",\"data\":[1.0,\n2]}}",
        );
        for at in 0..=text.len() {
            let (replies, result) = read_split(text, at);
            assert_eq!(result, Ok(()), "{at}");
            let error = RpcError { data: Some(b"[1.0,\n2]".to_vec()), ..RpcError::new(-5, "no") };
            let expected = [
                (0, Ok(br#"{"a":[1.0,"\u00e9}{"]}"#.to_vec()).into()),
                (9, Ok(b"[1,\r\n2]".to_vec()).into()),
                (5, NativeOutcome::Item(b"[1.0,\n\"\\u00e9\"]".to_vec())),
                (3, Err(error).into()),
            ];
            let reply = |(id, outcome)| {
                let is_last = !matches!(outcome, NativeOutcome::Item(_));
                UpstreamReply { id, outcome, is_last }
            };
            let expected = expected.map(reply);
            assert_eq!(replies, expected, "{at}");
        }
    }

    #[test]
    fn what_no_call_can_expect_ends_the_connection() {
        for (text, reason) in [
            (r#"{"id":10,"result":1}"#, "the id 10"),
            (r#"{"method":"$/progress","params":{"token":10,"value":1}}"#, "the token 10"),
            (r#"{"id":"1","result":1}"#, "of no call"),
            (r#"{"id":1.0,"result":1}"#, "of no call"),
            (r#"{"id":null,"error":{"code":-4,"message":"who?"}}"#, r#"error -4 "who?""#),
            (r#"{"result":1}"#, "of no call"),
            (r#"{"id":1}"#, "no result"),
            (r#"{"id":1,"result":1,"error":{}}"#, "no result"),
            (r#"{"id":1,"error":{"code":1}}"#, "without code"),
            (r#"[{"id":1,"result":1}]"#, "no JSON"),
            ("HTTP/1.1 400 Bad Request\r\n\r\n", "no JSON"),
            (r#"{"id":1,"result":01}"#, "no JSON"),
        ] {
            for at in 0..=text.len() {
                let error = read_split(text, at).1.expect_err(text);
                assert!(error.contains(reason), "{text} at {at}: {error}");
            }
        }
    }

    #[test]
    fn a_result_may_nest_as_deep_as_servers_write_it() {
        let nested = |levels: usize| {
            let value = "[".repeat(levels) + &"]".repeat(levels);
            let text = format!(r#"{{"id":1,"result":{value}}}"#);
            let mut reader = ReplyReader::new(10_000);
            let pieces = [text.as_bytes(), &text.as_bytes()[..700], &text.as_bytes()[700..]];
            pieces.iter().all(|piece| reader.read(piece, |_| true).is_ok())
        };
        assert!(nested(1024) && !nested(1025));
    }

    #[test]
    fn a_drain_is_noticed() {
        for (method, is_draining) in [("$/drain", true), ("$/other", false)] {
            let mut reader = ReplyReader::new(1000);
            let text = format!(r#"{{"method":"{method}"}}"#);
            reader.read(text.as_bytes(), |_| unreachable!("it is no reply")).unwrap();
            assert_eq!(reader.is_draining(), is_draining);
        }
    }

    fn code_and_reason(outcome: &NativeOutcome) -> Option<(i64, String)> {
        let NativeOutcome::Reply(Err(error)) = outcome else { return None };
        let data = String::from_utf8_lossy(error.data.as_deref().unwrap_or_default());
        Some((error.code, data.into_owned()))
    }

    #[test]
    fn a_reply_that_is_too_long_is_an_error_of_its_call_alone() {
        let text = |id: u32, len: usize| {
            let form = |value: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{value}"}}"#);
            form(&"x".repeat(len - form("").len()))
        };
        // It is an error beyond the limit, and not kept beyond that and what an item has around it.
        let lengths = [BYTES_MAX, BYTES_MAX + 1, BYTES_MAX + 256, BYTES_MAX + 257, 900];
        let texts: Vec<_> = (0..).zip(lengths).map(|(id, len)| text(id, len)).collect();
        let all = texts.concat() + r#"{"id":5,"result":1}"#;
        for at in 0..=all.len() {
            let (replies, result) = read_split(&all, at);
            assert_eq!(result, Ok(()), "{at}");
            let ids: Vec<u32> = replies.iter().map(|reply| reply.id).collect();
            assert_eq!(ids, [0, 1, 2, 3, 4, 5], "{at}");
            for reply in replies {
                let error = code_and_reason(&reply.outcome);
                assert_eq!(error.is_some(), (1..5).contains(&reply.id), "{reply:?}");
                let is_told = |(code, data): (i64, String)| {
                    code == -32005 && data.contains("max_reply_bytes")
                };
                assert!(reply.is_last && error.is_none_or(is_told));
            }
        }
    }

    #[test]
    fn an_item_is_as_long_as_the_server_that_sends_it_allows() {
        let text = |id: u32, len: usize, rest: &str| {
            let (value, method) = ("x".repeat(len - 2), r#""method":"$/progress""#);
            format!(r#"{{{method},"params":{{"token":{id},"value":"{value}"{rest}}}}}"#)
        };
        let rest = format!(r#","more":"{}""#, "x".repeat(300));
        let [last, first] = [BYTES_MAX, BYTES_MAX + 1];
        let items = [text(0, last, ""), text(1, first, ""), text(2, 900, ""), text(3, 90, &rest)];
        let other = format!(r#"{{"method":"other","params":["{}"]}}"#, "x".repeat(500));
        let all = items.concat() + &other;
        for at in 0..=all.len() {
            let (replies, result) = read_split(&all, at);
            assert_eq!((replies.len(), result), (4, Ok(())), "{at}");
            for (reply, is_long) in replies.iter().zip([false, true, true, true]) {
                assert!(!reply.is_last && reply.id < 4);
                assert_eq!(code_and_reason(&reply.outcome).is_some(), is_long, "{at}: {reply:?}");
            }
        }
    }

    #[test]
    fn a_reply_that_is_too_long_and_of_no_known_call_is_not_collected() {
        let text = format!(r#"{{"result":["{}"],"more":[],"id":2}}"#, "x".repeat(5000));
        let replies = read_split(&text, 100).0;
        assert_eq!(replies.iter().map(|reply| reply.id).collect::<Vec<_>>(), [2]);
        let text = format!(r#"{{"result":["{}"],"id":2,"more":[]}}"#, "x".repeat(5000));
        let (replies, result) = read_split(&text, 100);
        assert_eq!(replies.iter().map(|reply| reply.id).collect::<Vec<_>>(), [NO_CALL]);
        assert!(result.expect_err("it is unknown").contains("max_reply_bytes"));
    }

    #[test]
    fn a_long_reply_is_not_kept() {
        let mut reader = ReplyReader::new(1000);
        for piece in [&b"{\"id\":1,\"result\":\""[..], &[b'x'; 1_000_000], b"\"}"] {
            reader.read(piece, |reply| reply.id == 1).expect("it is skipped");
            assert!(reader.held_bytes() <= 2000, "{} bytes", reader.held_bytes());
        }
    }
}
