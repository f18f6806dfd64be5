//! Finds the replies and the items of streams in the bytes that an upstream sends.

use ucall_proto::json::{DocumentStream, JsonError, Reader, ValueKind};
use ucall_proto::{Limits, Response, ResponseBody, RpcError};
use ucall_server::NativeOutcome;

/// Arrays and objects inside one another, in a whole reply: as many as a result of this project's
/// servers has, and the reply itself.
const NESTING_MAX: usize = Limits::NESTING_MAX + 1;
/// The id of an error for a call that a server cannot read, so that it does not know its id.
pub(crate) const NO_CALL: u32 = u32::MAX;
/// Memory that is kept for the next incomplete reply.
const CACHED_BYTES_MAX: usize = 64 * 1024;

/// Splits what one connection receives into replies.
#[derive(Debug)]
pub struct ReplyReader {
    /// An incomplete reply.
    partial: Vec<u8>,
    stream: DocumentStream,
    bytes_max: usize,
    is_draining: bool,
}

/// One reply or item: the id that the call was given, and its outcome.
#[derive(Debug, PartialEq, Eq)]
pub struct UpstreamReply {
    /// The number of a slot, or `u32::MAX` for a call that the server could not read.
    pub id: u32,
    /// The text of the result or the item, or the error.
    pub outcome: NativeOutcome,
}

impl ReplyReader {
    /// A reader of replies of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { partial: Vec::new(), stream: DocumentStream::new(), bytes_max, is_draining: false }
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
        if !self.partial.is_empty() {
            let Some(len) = self.find_end(bytes)? else { return self.keep(bytes) };
            let (end, rest) = bytes.split_at(len);
            self.keep(end)?;
            let whole = std::mem::take(&mut self.partial);
            let (response, _) = Response::parse(&whole, NESTING_MAX).map_err(not_json)?;
            self.is_draining |= handle_response(&response, &mut handle)?;
            self.recycle(whole);
            bytes = rest;
        }
        loop {
            bytes = bytes.trim_ascii_start();
            if bytes.is_empty() {
                return Ok(());
            }
            match Response::parse(bytes, NESTING_MAX) {
                Ok((_, len)) if len > self.bytes_max => return Err(self.too_long()),
                Ok((response, len)) => {
                    self.is_draining |= handle_response(&response, &mut handle)?;
                    bytes = &bytes[len..];
                }
                Err(JsonError::Incomplete) => {
                    self.stream = DocumentStream::new();
                    // Its end is not in these bytes, so they only set the state.
                    self.find_end(bytes)?;
                    return self.keep(bytes);
                }
                Err(error) => return Err(not_json(error)),
            }
        }
    }

    /// The length of the rest of the incomplete reply, if that is in `bytes`.
    fn find_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        self.stream.scan(bytes, NESTING_MAX).map_err(not_json)
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.partial.len() + bytes.len() > self.bytes_max {
            return Err(self.too_long());
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn too_long(&self) -> String {
        format!("a reply is longer than {} bytes (max_reply_bytes)", self.bytes_max)
    }

    fn recycle(&mut self, mut memory: Vec<u8>) {
        if memory.capacity() <= CACHED_BYTES_MAX {
            memory.clear();
            self.partial = memory;
        }
    }
}

fn not_json(_: JsonError) -> String {
    "a reply is no JSON object".to_owned()
}

/// Returns whether it announces that the upstream ends.
fn handle_response(
    response: &Response<'_>,
    handle: &mut impl FnMut(UpstreamReply) -> bool,
) -> Result<bool, String> {
    if let ResponseBody::Request { method, params } = response.body {
        // Other notifications are not for a caller.
        let is_item = method == br#""$/progress""#;
        let Some(item) = params.filter(|_| is_item).and_then(item) else {
            return Ok(method == br#""$/drain""#);
        };
        let id = item.id;
        return match handle(item) {
            true => Ok(false),
            false => Err(format!("an item has the token {id}, which is of no stream")),
        };
    }
    let outcome = outcome(response)?;
    let is_refusal =
        |error: &RpcError| [RpcError::PARSE_ERROR, RpcError::INVALID_REQUEST].contains(&error.code);
    let is_nameless = matches!(response.id, None | Some(b"null"))
        && outcome.as_ref().err().is_some_and(is_refusal);
    let Some(id) = response.id.and_then(slot_number).or(is_nameless.then_some(NO_CALL)) else {
        return Err(describe_unexpected(outcome.err()));
    };
    let error = outcome.as_ref().err().filter(|_| is_nameless).cloned();
    match handle(UpstreamReply { id, outcome: NativeOutcome::Reply(outcome) }) {
        true => Ok(false),
        false if is_nameless => Err(describe_unexpected(error)),
        false => Err(format!("a reply has the id {id}, which no call waits for")),
    }
}

/// The item in the params of `$/progress`, unless they are of another form.
fn item(params: &[u8]) -> Option<UpstreamReply> {
    let mut reader = Reader::new(params);
    if reader.kind() != ValueKind::Object {
        return None;
    }
    let (mut token, mut value) = (None, None);
    reader.enter();
    while let Some(name) = reader.next_key() {
        let text = Some(reader.skip());
        match &*name.unescaped() {
            b"token" => token = text,
            b"value" => value = text,
            _ => {}
        }
    }
    let (id, item) = (slot_number(token?)?, value?.to_vec());
    Some(UpstreamReply { id, outcome: NativeOutcome::Item(item) })
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
    if memchr::memchr2(b'\n', b'\r', text).is_some() {
        for byte in text.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
            *byte = b' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_split(text: &str, at: usize) -> (Vec<UpstreamReply>, Result<(), String>) {
        let (mut reader, mut replies) = (ReplyReader::new(1000), Vec::new());
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
            let expected = expected.map(|(id, outcome)| UpstreamReply { id, outcome });
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

    #[test]
    fn a_reply_that_is_too_long_is_not_collected() {
        let (mut reader, none) = (ReplyReader::new(100), |_| unreachable!("no reply is whole"));
        assert_eq!(reader.read(br#"{"id":1,"result":""#, none), Ok(()));
        assert_eq!(reader.read(&[b'x'; 80], none), Ok(()));
        let error = reader.read(b"xxx", none).expect_err("101 bytes");
        assert!(error.contains("max_reply_bytes"), "{error}");
        let whole = format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(100));
        assert!(ReplyReader::new(100).read(whole.as_bytes(), none).is_err());
    }
}
