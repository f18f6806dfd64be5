//! Documents in frames, with binary parts behind their text.

use ucall_buffer::Bytes;
use ucall_proto::arrays::{DType, Kind, Tensor};
use ucall_proto::{
    Binary, Call, CallNumber, CallOutcome, FRAME_ALIGNMENT, Limits, NextAction, Parts, Reply,
    ResultFormat, ResultPart, Service, frame_padding, write_frame_head,
};

use crate::harness::{Driver, post};
use crate::websocket::{frame as socket_frame, upgrade};

const BINARY: u8 = 0x82;

/// `echo` returns the parts of its document, and `later` does so when it is told to; `sum` returns
/// the sum of all their bytes.
#[derive(Default)]
pub struct Framed {
    binary: Option<Binary>,
    result: Vec<ResultPart>,
    pub later: Vec<CallNumber>,
    /// Parts of documents that are kept.
    pub kept: Vec<std::sync::Arc<Parts>>,
    has_tensors: bool,
    /// The output before that of the driver.
    pub sent: Vec<u8>,
}

impl Service for Framed {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let parts = self.binary.as_ref().and_then(|binary| binary.parts.clone());
        let parts: Vec<&[u8]> = parts.iter().flat_map(|parts| all(parts)).collect();
        for part in &parts {
            assert_eq!(part.as_ptr().align_offset(FRAME_ALIGNMENT), 0, "each part is aligned");
        }
        match call.method.raw() {
            b"sum" => {
                let sum: u64 =
                    parts.iter().flat_map(|part| part.iter()).map(|&it| u64::from(it)).sum();
                reply.result().extend_from_slice(sum.to_string().as_bytes());
            }
            b"later" => {
                self.later.push(call.number);
                return CallOutcome::Deferred;
            }
            b"keep" => {
                self.kept.extend(self.binary.as_ref().and_then(|binary| binary.parts.clone()));
                reply.result().extend_from_slice(b"null");
            }
            _ if self.binary.as_ref().is_some_and(|it| it.results == ResultFormat::Parts) => {
                let tensor = self.has_tensors.then(|| Tensor {
                    dtype: DType { kind: Kind::UInt, item_bytes: 1, is_big_endian: false },
                    shape: vec![parts[0].len()],
                    is_fortran: false,
                });
                let part = |bytes: &&[u8]| {
                    let bytes = Bytes::copy_from_slice(bytes);
                    ResultPart { tensor: tensor.clone(), bytes }
                };
                self.result = parts.iter().map(part).collect();
                reply.result().extend_from_slice(references(parts.len()).as_bytes());
            }
            _ => reply.result().extend_from_slice(b"\"text\""),
        }
        CallOutcome::Done
    }

    fn set_binary(&mut self, binary: Option<&Binary>) {
        self.binary = binary.cloned();
    }

    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        std::mem::take(&mut self.result)
    }
}

fn all(parts: &Parts) -> impl Iterator<Item = &[u8]> {
    (0..parts.count()).map(|index| parts.get(index).unwrap().bytes)
}

pub fn references(count: usize) -> String {
    let all: Vec<_> = (0..count).map(|index| format!("{{\"$part\":{index}}}")).collect();
    format!("[{}]", all.join(","))
}

pub fn call(method: &str, count: usize) -> String {
    let params = references(count);
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":1}}"#)
}

pub fn framed(text: impl AsRef<[u8]>, parts: &[&[u8]]) -> Vec<u8> {
    let (mut out, text) = (Vec::new(), text.as_ref());
    let lens: Vec<usize> = parts.iter().map(|it| it.len()).collect();
    write_frame_head(&mut out, text.len(), &lens).unwrap();
    out.extend_from_slice(text);
    for part in parts {
        out.extend_from_slice(frame_padding(out.len()));
        out.extend_from_slice(part);
    }
    out
}

pub fn echoed(parts: &[&[u8]]) -> Vec<u8> {
    let result = references(parts.len());
    framed(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#), parts)
}

pub fn post_bytes(body: &[u8]) -> Vec<u8> {
    let head =
        format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (front, back) = body.split_at(body.len() / 2);
    let chunk =
        |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    [head.as_bytes(), &chunk(front), &chunk(back), b"0\r\n\r\n"].concat()
}

/// The reply to a frame over HTTP, without its date.
pub fn http_reply(body: &[u8]) -> Vec<u8> {
    let media = if body[0] != 0xB1 { "application/json" } else { "application/vnd.ucall.parts" };
    let length = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

pub fn without_dates(mut out: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    while let Some(at) = out.windows(6).position(|it| it == b"Date: ") {
        kept.extend_from_slice(&out[..at]);
        out = &out[at + b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n".len()..];
    }
    kept.extend_from_slice(out);
    kept
}

pub fn driver() -> Driver<Framed> {
    let mut limits = Limits::default();
    limits.parts_max = 4;
    limits.body_bytes_max = 4096;
    Driver::serving(Framed::default(), limits)
}

fn answer_in<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, NextAction) {
    let mut driver = driver();
    for piece in pieces {
        driver.receive(piece);
    }
    (without_dates(&driver.sent_bytes()), driver.connection.next_action())
}

/// What a connection answers, proven to be the same however the input is cut.
fn answer(input: &[u8]) -> (Vec<u8>, NextAction) {
    let whole = answer_in([input]);
    for at in 0..=input.len() {
        let (front, back) = input.split_at(at);
        assert_eq!(answer_in([front, back]), whole, "cut at {at}");
    }
    assert_eq!(answer_in(input.chunks(1)), whole, "byte by byte");
    whole
}

const PARTS: [&[u8]; 3] = [b"\xb1\x00\xff", b"", &[7; 130]];

#[test]
fn a_frame_is_answered_by_a_frame_if_its_result_has_parts() {
    let (with, none) = (framed(call("echo", 3), &PARTS), framed(call("echo", 0), &[]));
    let sum = framed(call("sum", 3), &PARTS);
    let sum_reply = br#"{"jsonrpc":"2.0","id":1,"result":1342}"#;
    let none_reply = br#"{"jsonrpc":"2.0","id":1,"result":[]}"#;
    let json = call("echo", 0);
    let json_reply = br#"{"jsonrpc":"2.0","id":1,"result":"text"}"#;
    let batch = framed(format!("[{}]", call("echo", 3)), &PARTS);
    let batch_reply = br#"[{"jsonrpc":"2.0","id":1,"result":"text"}]"#;

    let input = [&with[..], &sum, b"\n", json.as_bytes(), b"\n", &none, &batch, &with].concat();
    let replies = [
        &echoed(&PARTS)[..],
        &[&sum_reply[..], b"\n", json_reply, b"\n", none_reply, b"\n", batch_reply, b"\n"].concat(),
        &echoed(&PARTS),
    ];
    assert_eq!(answer(&input), (replies.concat(), NextAction::Receive));

    let input = [
        post_bytes(&with),
        post_bytes(&sum),
        post(&json).into_bytes(),
        chunked(&with),
        post_bytes(&batch),
        post_bytes(&with),
    ];
    let replies =
        [&echoed(&PARTS)[..], sum_reply, json_reply, &echoed(&PARTS), batch_reply, &echoed(&PARTS)];
    let replies: Vec<u8> = replies.into_iter().flat_map(http_reply).collect();
    assert_eq!(answer(&input.concat()), (replies, NextAction::Receive));

    let upgrade = upgrade("");
    let (mut head, _) = answer_in([upgrade.as_bytes()]);
    let (front, back) = with.split_at(70);
    let messages = [
        socket_frame(BINARY, &with),
        socket_frame(BINARY, &sum),
        [socket_frame(0x02, front), socket_frame(0x80, back)].concat(),
    ];
    let input = [upgrade.as_bytes(), &messages.concat()].concat();
    for (first, payload) in
        [(BINARY, &echoed(&PARTS)[..]), (0x81, sum_reply), (BINARY, &echoed(&PARTS))]
    {
        head.push(first);
        match payload.len() {
            len @ 0..126 => head.push(len as u8),
            len => head.extend([&[126][..], &(len as u16).to_be_bytes()].concat()),
        }
        head.extend_from_slice(payload);
    }
    assert_eq!(answer(&input), (head, NextAction::Receive));
}

#[test]
fn a_part_is_a_whole_npy() {
    let mut driver = driver();
    driver.service.has_tensors = true;
    driver.receive(&framed(call("echo", 1), &[&[1, 2, 3]]));
    let out = driver.sent_bytes();
    let part = &out[64..];
    assert!(part.starts_with(b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, "));
    assert_eq!(&part[128..], [1, 2, 3]);
}

/// Bad frames, with what they are refused for, and whether they end the stream of raw TCP.
fn hostile() -> Vec<(Vec<u8>, &'static str, bool)> {
    let valid = framed(call("sum", 2), &[b"abc", b"d"]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = valid.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let text_end = 24 + call("sum", 2).len();
    let text_len = |len: u32| changed(4, &len.to_le_bytes());
    let length = |part: usize, len: u64| changed(8 + 8 * part, &len.to_le_bytes());
    vec![
        (changed(1, &[3]), "of version 1, not 3", true),
        (changed(2, &[5, 0]), "at most 4 parts (max_parts)", true),
        (changed(2, &[255, 255]), "at most 4 parts (max_parts)", true),
        (text_len(u32::MAX), "at most 4096 bytes (max_body_bytes)", true),
        (text_len(4096), "at most 4096 bytes (max_body_bytes)", true),
        (length(0, 1 << 63), "at most 4096 bytes (max_body_bytes)", true),
        (length(0, u64::MAX), "at most 4096 bytes (max_body_bytes)", true),
        (length(1, u64::MAX - 63), "at most 4096 bytes (max_body_bytes)", true),
        (length(1, 4096), "at most 4096 bytes (max_body_bytes)", true),
        (changed(text_end, &[1]), "zero bytes between the parts", false),
        (changed(valid.len() - 2, &[1]), "zero bytes between the parts", false),
        (framed("{", &[]), "Parse error", false),
        (framed("", &[b"x"]), "Parse error", false),
        (framed(&valid, &[]), "Parse error", false),
        (framed([call("sum", 0), call("sum", 0)].concat(), &[]), "Parse error", false),
    ]
}

#[test]
fn a_bad_frame_harms_no_other_request() {
    let good = framed(call("sum", 1), &[&[2, 3]]);
    let reply = br#"{"jsonrpc":"2.0","id":1,"result":5}"#;
    for (bad, expected, ends) in hostile() {
        let (out, next) = answer(&[&bad[..], &good].concat());
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(expected), "{expected}: {text}");
        let next_expected = if ends { NextAction::DiscardInput } else { NextAction::Receive };
        assert_eq!((text.lines().count(), next), (2 - usize::from(ends), next_expected), "{text}");
        assert_eq!(text.as_bytes().ends_with(&[&reply[..], b"\n"].concat()), !ends, "{text}");

        let (out, next) = answer(&[post_bytes(&bad), post_bytes(&good)].concat());
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(expected), "{expected}: {text}");
        assert!(text.as_bytes().ends_with(&http_reply(reply)), "{text}");
        assert_eq!(next, NextAction::Receive);
    }
}

#[test]
fn a_frame_has_the_length_of_its_message() {
    let good = framed(call("sum", 1), &[&[2, 3]]);
    let (short, long) = (&good[..good.len() - 1], [&good[..], b"x"].concat());
    for body in [short, &long, &good[..7], &good[..20]] {
        let (out, next) = answer(&[post_bytes(body), post_bytes(&good)].concat());
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("lengths add up to that of the message"), "{text}");
        assert_eq!((text.matches("200 OK").count(), next), (2, NextAction::Receive));
    }
}

#[test]
fn a_frame_may_have_the_length_of_the_longest_body() {
    let padding = 4096 - framed(call("sum", 1), &[b""]).len();
    for (len, is_taken) in [(padding, true), (padding + 1, false)] {
        let frame = framed(call("sum", 1), &[&vec![0; len]]);
        let (out, _) = answer_in([&frame[..]]);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.contains(r#""result":0}"#), is_taken, "{text}");
        let (out, _) = answer_in([&post_bytes(&frame)[..]]);
        let expected: &[u8] = if is_taken { b"HTTP/1.1 200 " } else { b"HTTP/1.1 413 " };
        assert!(out.starts_with(expected));
    }
}

#[test]
fn the_end_of_the_stream_within_a_frame_is_reported() {
    let frame = framed(call("sum", 1), &[&[2; 100]]);
    for len in 1..frame.len() {
        let mut driver = driver();
        driver.receive(&frame[..len]);
        assert_eq!(driver.connection.next_action(), NextAction::Receive);
        driver.handle_eof();
        assert!(driver.sent().contains("it ends too early"), "after {len} bytes");
        assert_eq!(driver.held_bytes(), 0);
    }
}

fn parts(bytes: &'static [u8]) -> Vec<ResultPart> {
    vec![ResultPart { tensor: None, bytes: Bytes::from_static(bytes) }]
}

#[test]
fn the_reply_to_a_deferred_call_may_have_parts() {
    let text = br#"[{"$part":0}]"#;
    let later = framed(call("later", 0), &[]);
    let mut driver = driver();
    driver.receive(&later);
    let number = driver.service.later[0];
    driver.complete_with_parts(number, text, parts(b"abc"));
    assert_eq!(driver.sent_bytes(), echoed(&[b"abc"]));
    // It has its reply.
    driver.complete_with_parts(number, text, parts(b"abc"));
    assert!(driver.sent_bytes().is_empty());

    let mut driver = self::driver();
    let echo = framed(call("echo", 1), &[b"xyz"]);
    driver.receive(&[post_bytes(&later), post_bytes(&echo), post_bytes(&later)].concat());
    assert!(driver.sent_bytes().is_empty(), "replies over HTTP keep the order of the requests");
    let numbers = driver.service.later.clone();
    driver.complete_with_parts(numbers[1], text, parts(b"second"));
    assert!(driver.sent_bytes().is_empty() && driver.held_bytes() > 0);
    driver.complete_with_parts(numbers[0], text, parts(b"first"));
    let replies = [&b"first"[..], b"xyz", b"second"].map(|part| http_reply(&echoed(&[part])));
    assert_eq!(without_dates(&driver.sent_bytes()), replies.concat());
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn parts_go_into_the_text_where_there_is_no_frame() {
    let mut driver = driver();
    driver.receive(format!("[{},{}]", call("later", 0), call("echo", 0)).as_bytes());
    let number = driver.service.later[0];
    driver.complete_with_parts(number, br#"{"a":{"$part":0}}"#, parts(b"abc"));
    let expected = r#"[{"jsonrpc":"2.0","id":1,"result":{"a":"YWJj"}},{"jsonrpc":"2.0","id":1,"#;
    assert!(driver.sent().starts_with(expected));
}

#[test]
fn a_reply_with_parts_has_the_limit_of_all() {
    let echo = framed(call("echo", 1), &[&[1; 100]]);
    let len = echoed(&[&[1; 100]]).len();
    for (reply_bytes_max, is_sent) in [(len, true), (len - 1, false)] {
        let mut driver = driver();
        driver.limits.reply_bytes_max = reply_bytes_max;
        driver.receive(&echo);
        let out = driver.sent_bytes();
        assert_eq!(out[0] == 0xB1, is_sent);
        if !is_sent {
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains(r#""id":1,"error":{"code":-32603"#), "{text}");
        }
    }
}

#[test]
fn parts_are_reserved_until_their_last_holder_drops_them() {
    let mut driver = driver();
    driver.limits.body_bytes_max = 1 << 20;
    let frame = framed(call("keep", 1), &[&[1; 100_000]]);
    driver.receive(&frame);
    driver.receive(&frame);
    assert!((200_000..201_000).contains(&driver.held_bytes()), "{}", driver.held_bytes());
    driver.service.kept.pop();
    driver.service.kept.pop();
    assert_eq!(driver.held_bytes(), 0);
}
