//! Compressed messages of a WebSocket.

use std::io::Write;

use flate2::write::DeflateEncoder;
use flate2::{Decompress, FlushDecompress};
use ucall_proto::{Compression, Limits, NextAction};

use crate::harness::{Driver, later, sum, sum_reply};
use crate::items::{cancel, cancelled, stream};
use crate::websocket::{CLOSE, PING, frame, message, upgrade};

const TEXT: u8 = 0x81;
const PONG: u8 = 0x8A;
const RSV1: u8 = 0x40;
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
const OFFER: &str = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.compress(Compression { bytes_min: 100, bytes_max: 10_000 });
    limits
}

/// A connection that has agreed on the extension.
fn socket_with(limits: Limits, offer: &str) -> Driver {
    let mut driver = Driver::with_limits(limits);
    driver.receive(upgrade(offer).as_bytes());
    assert!(driver.sent().contains("\r\nSec-WebSocket-Extensions: permessage-deflate; "));
    driver
}

fn socket() -> Driver {
    socket_with(limits(), OFFER)
}

/// The payload of a compressed message.
fn deflate(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_ref()).unwrap();
    encoder.flush().unwrap();
    let payload = encoder.get_ref();
    payload.strip_suffix(&TAIL).expect("the end of a flush").to_vec()
}

fn inflate(payload: &[u8], window_bits: u8) -> String {
    let mut text = Vec::with_capacity(1 << 20);
    let mut stream = Decompress::new_with_window_bits(false, window_bits);
    let input = [payload, &TAIL].concat();
    stream.decompress_vec(&input, &mut text, FlushDecompress::Sync).unwrap();
    assert_eq!(stream.total_in() as usize, input.len());
    String::from_utf8(text).unwrap()
}

fn compressed(text: impl AsRef<[u8]>) -> Vec<u8> {
    frame(TEXT | RSV1, deflate(text))
}

/// The frames of a server: the first byte and the payload of each.
fn frames(mut out: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, len, rest @ ..] = out {
        let (len, rest) = match len {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            127 => (u64::from_be_bytes(rest[..8].try_into().unwrap()) as usize, &rest[8..]),
            len => (usize::from(*len), rest),
        };
        let (payload, rest) = rest.split_at(len);
        frames.push((*first, payload.to_vec()));
        out = rest;
    }
    frames
}

fn decode(driver: &mut Driver) -> usize {
    let mut turns = 0;
    while driver.connection.is_decoding() {
        assert_eq!(driver.connection.next_action(), NextAction::Pause);
        driver.decode_piece();
        turns += 1;
    }
    turns
}

fn answer(driver: &mut Driver, pieces: &[&[u8]]) -> Vec<(u8, Vec<u8>)> {
    for piece in pieces {
        driver.receive(piece);
        decode(driver);
    }
    frames(&driver.sent_bytes())
}

fn texts(texts: &[String]) -> Vec<(u8, Vec<u8>)> {
    texts.iter().map(|text| (TEXT, text.clone().into_bytes())).collect()
}

/// The code and the reason that a connection is closed with.
fn closed(driver: &mut Driver, input: &[u8]) -> (u16, String) {
    let frames = answer(driver, &[input]);
    let [(CLOSE, payload)] = &frames[..] else { panic!("expected a Close frame: {frames:?}") };
    let code = u16::from_be_bytes([payload[0], payload[1]]);
    assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
    assert_eq!(driver.held_bytes(), 0);
    (code, String::from_utf8(payload[2..].to_vec()).unwrap())
}

fn echo(len: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{}"],"id":1}}"#, "x".repeat(len))
}

fn large(len: usize) -> String {
    let overhead = r#"{"jsonrpc":"2.0","id":1,"result":""}"#.len();
    format!(r#"{{"jsonrpc":"2.0","method":"large","params":[{}],"id":1}}"#, len - overhead)
}

#[test]
fn the_extension_is_agreed_on_by_the_option_alone() {
    let mut driver = Driver::new();
    driver.receive(upgrade(OFFER).as_bytes());
    assert!(!driver.sent().contains("Sec-WebSocket-Extensions"));
    assert_eq!(closed(&mut driver, &compressed(sum(1))).0, 1002);
    let mut driver = Driver::with_limits(limits());
    driver.receive(upgrade("").as_bytes());
    assert!(!driver.sent().contains("Sec-WebSocket-Extensions"));
    assert_eq!(closed(&mut driver, &compressed(sum(1))).0, 1002);
}

#[test]
fn compressed_and_plain_messages_are_answered_however_they_are_cut() {
    let split = deflate(sum(3));
    let (front, back) = split.split_at(5);
    let stream = [
        compressed(sum(1)),
        message(sum(2)),
        frame(0x01 | RSV1, front),
        frame(PING, "between"),
        frame(0x00, &back[..1]),
        frame(0x80, &back[1..]),
        frame(0x82 | RSV1, deflate(sum(4))),
        compressed(format!("[{},{}]", sum(5), sum(6))),
    ]
    .concat();
    let mut expected = texts(&[sum_reply(1), sum_reply(2)]);
    expected.push((PONG, b"between".to_vec()));
    let both = format!("[{},{}]", sum_reply(5), sum_reply(6));
    expected.extend(texts(&[sum_reply(3), sum_reply(4), both]));
    assert_eq!(answer(&mut socket(), &[&stream]), expected);
    for at in 0..=stream.len() {
        let (front, back) = stream.split_at(at);
        assert_eq!(answer(&mut socket(), &[front, back]), expected, "cut at {at}");
    }
    let bytes: Vec<_> = stream.chunks(1).collect();
    let mut driver = socket();
    assert_eq!(answer(&mut driver, &bytes), expected);
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_last_block_may_have_any_place() {
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(sum(1).as_bytes()).unwrap();
    // RFC 7692, section 7.2.3.4.
    let block = encoder.finish().unwrap();
    for payload in [[&block[..], &[0]].concat(), block] {
        let sent = frame(TEXT | RSV1, payload);
        assert_eq!(answer(&mut socket(), &[&sent]), texts(&[sum_reply(1)]));
    }
}

#[test]
fn the_bit_is_that_of_the_first_frame_of_a_message() {
    let split = deflate(sum(1));
    let begun = frame(0x01 | RSV1, &split[..5]);
    for (name, sent) in [
        ("continuation", [begun.clone(), frame(0x80 | RSV1, &split[5..])].concat()),
        ("ping", frame(PING | RSV1, "")),
        ("close", frame(CLOSE | RSV1, "")),
        ("other bits", frame(TEXT | RSV1 | 0x20, &split)),
        ("another message", [begun, compressed(sum(2))].concat()),
    ] {
        assert_eq!(closed(&mut socket(), &sent).0, 1002, "{name}");
    }
}

#[test]
fn broken_data_is_refused() {
    let sent = frame(TEXT | RSV1, b"\xff\xff\xff\xff");
    let (code, reason) = closed(&mut socket(), &sent);
    assert_eq!((code, &*reason), (1007, "expected a message in deflate"));
    let (code, reason) = closed(&mut socket(), &compressed(b"\xff{}"));
    assert_eq!((code, &*reason), (1007, "expected text in UTF-8"));
    let mut limits = limits();
    limits.frame_bytes_max = 10;
    assert_eq!(closed(&mut socket_with(limits, OFFER), &compressed(echo(50))).0, 1009);
}

#[test]
fn a_message_that_is_cut_within_a_block_is_refused() {
    let text = format!("[{}]", noise(2_000));
    let blocks = [deflate(&text), stored(text.as_bytes()), deflate(echo(2_000))];
    for whole in blocks {
        assert_eq!(answer(&mut socket(), &[&frame(TEXT | RSV1, &whole)]).len(), 1);
        // One byte of the stored block alone is an empty message.
        for cut in 1..whole.len() - 1 {
            let sent = frame(TEXT | RSV1, &whole[..whole.len() - cut]);
            let (code, reason) = closed(&mut socket(), &sent);
            assert_eq!((code, &*reason), (1007, "expected a message in deflate"), "{cut}");
        }
    }
}

/// A text in a block that is not compressed, and the empty one of a flush.
fn stored(text: &[u8]) -> Vec<u8> {
    let len = text.len() as u16;
    [&[0][..], &len.to_le_bytes(), &(!len).to_le_bytes(), text, &[0]].concat()
}

/// Numbers that do not become much shorter.
fn noise(len: usize) -> String {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'1' + (state >> 24) as u8 % 9)
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn decoded_messages_have_a_largest_length() {
    let text = echo(300_000);
    for (limit, is_read) in [(text.len(), true), (text.len() - 1, false)] {
        let mut limits = limits();
        (limits.body_bytes_max, limits.body_ratio_max) = (limit, usize::MAX);
        let mut driver = socket_with(limits, OFFER);
        if is_read {
            assert_eq!(answer(&mut driver, &[&compressed(&text)]).len(), 1);
        } else {
            let (code, reason) = closed(&mut driver, &compressed(&text));
            assert!(code == 1009 && reason.contains("max_body_bytes"), "{code} {reason}");
        }
    }
}

#[test]
fn decoded_messages_have_a_largest_ratio() {
    // A ratio of some hundreds, which counts from 64 KiB on.
    for (len, is_read) in [(60_000, true), (70_000, false)] {
        let sent = compressed(echo(len));
        let mut driver = socket();
        if is_read {
            assert_eq!(answer(&mut driver, &[&sent]).len(), 1);
        } else {
            let (code, reason) = closed(&mut driver, &sent);
            assert!(code == 1009 && reason.contains("max_body_ratio"), "{code} {reason}");
        }
    }
}

#[test]
fn a_turn_decodes_a_piece_and_nothing_overtakes_it() {
    let mut limits = limits();
    (limits.body_ratio_max, limits.output_bytes_max) = (usize::MAX, 4 << 20);
    let mut driver = socket_with(limits, OFFER);
    let sent = [compressed(echo(1 << 20)), frame(PING, ""), message(sum(2))].concat();
    driver.receive(&sent);
    assert!(driver.connection.is_decoding() && driver.out.is_empty());
    driver.decode_piece();
    assert!(driver.held_bytes() > 128 << 10, "{}", driver.held_bytes());
    assert_eq!(decode(&mut driver), 15);
    let frames = frames(&driver.sent_bytes());
    let firsts: Vec<u8> = frames.iter().map(|(first, _)| *first).collect();
    assert_eq!(firsts, [TEXT, PONG, TEXT]);
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn a_turn_decodes_about_a_piece_of_many_messages() {
    let mut driver = socket();
    let padded = [sum(2), " ".repeat(60_000)].concat();
    driver.receive(&compressed(padded).repeat(20));
    let mut answered = frames(&driver.sent_bytes()).len();
    while driver.connection.is_decoding() {
        driver.decode_piece();
        let in_turn = frames(&driver.sent_bytes()).len();
        assert!(in_turn <= 3, "{in_turn}");
        answered += in_turn;
    }
    assert_eq!(answered, 20);
}

#[test]
fn what_is_urgent_gets_through_compressed_messages_that_wait() {
    let mut limits = limits();
    limits.connection_calls_max = 1;
    let mut driver = socket_with(limits, OFFER);
    driver.receive(&message(stream(1, "1")));
    driver.receive(&[compressed(sum(2)), frame(PING, "p"), message(cancel("1"))].concat());
    let payloads: Vec<Vec<u8>> = frames(&driver.sent_bytes()).into_iter().map(|it| it.1).collect();
    assert_eq!(payloads, ["p".into(), cancelled("1").into_bytes(), sum_reply(2).into_bytes()]);
}

#[test]
fn decoding_waits_for_memory() {
    let mut limits = limits();
    (limits.held_bytes_max, limits.body_ratio_max) = (10 << 20, usize::MAX);
    let mut driver = socket_with(limits, OFFER);
    let others = (10 << 20) - (100 << 10);
    driver.hold_in_others(0, others);
    driver.receive(&compressed(echo(1 << 20)));
    while driver.connection.is_decoding() && !driver.connection.is_waiting_for_memory() {
        driver.decode_piece();
    }
    assert!(driver.connection.is_waiting_for_memory());
    driver.hold_in_others(others, 0);
    driver.resume();
    decode(&mut driver);
    assert_eq!(frames(&driver.sent_bytes()).len(), 1);
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn the_end_of_the_stream_ends_what_is_decoded() {
    let mut limits = limits();
    limits.body_ratio_max = usize::MAX;
    let mut driver = socket_with(limits, OFFER);
    driver.receive(&compressed(echo(1 << 20)));
    driver.handle_eof();
    assert!(!driver.connection.is_decoding() && driver.out.is_empty());
    assert_eq!(driver.connection.next_action(), NextAction::Close);
    assert_eq!(driver.held_bytes(), 0);
}

#[test]
fn replies_of_some_lengths_are_compressed() {
    for (len, is_compressed) in
        [(60, false), (99, false), (100, true), (10_000, true), (10_001, false), (200, true)]
    {
        let mut driver = socket();
        // Both lengths of heads, and back again.
        for _ in 0..2 {
            let sent = answer(&mut driver, &[&message(large(len)), &message(sum(1))]);
            let [(first, payload), short] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!(*short, (TEXT, sum_reply(1).into_bytes()));
            assert_eq!(*first, if is_compressed { TEXT | RSV1 } else { TEXT }, "{len}");
            let text = match is_compressed {
                true => inflate(payload, 15),
                false => String::from_utf8(payload.clone()).unwrap(),
            };
            assert_eq!(text.len(), len);
            assert!(text.starts_with(r#"{"jsonrpc":"2.0","id":1,"result":"#));
        }
    }
}

#[test]
fn windows_have_the_size_that_the_client_asks_for() {
    let offer = OFFER.replace("client_max_window_bits", "server_max_window_bits=9");
    let mut driver = socket_with(limits(), &offer);
    // What repeats is further away than a window of 512 bytes reaches.
    let words: Vec<String> = (0..300).map(|number| format!("{}", number * number)).collect();
    let text = [&words[..], &words[..]].concat().join(" ");
    let sent = format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{text}"],"id":1}}"#);
    let frames = answer(&mut driver, &[&message(sent)]);
    assert_eq!(frames[0].0, TEXT | RSV1);
    assert!(inflate(&frames[0].1, 9).contains(&text));
}

#[test]
fn deferred_replies_are_compressed() {
    let mut driver = socket();
    driver.receive(&compressed(later(1)));
    let number = driver.service.deferred[0];
    let result = format!("\"{}\"", "y".repeat(500));
    driver.complete(number, Ok(result.as_bytes()));
    let frames = frames(&driver.sent_bytes());
    assert_eq!(frames[0].0, TEXT | RSV1);
    assert!(inflate(&frames[0].1, 15).contains(&result));
}
