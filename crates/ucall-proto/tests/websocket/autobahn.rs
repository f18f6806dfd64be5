//! The cases 1 to 7 and 10 of the Autobahn test suite, by number and meaning.
//!
//! A case that the suite sends in chops has no row of its own, because each row is read whole, cut
//! at every byte, byte by byte and in pieces of 997 bytes. Expected is what an endpoint echoes,
//! and the code that the connection closes with.

use crate::model::{Item, decode, read};
use crate::{BINARY, CLOSE, CONTINUATION, FINAL, LIMITS, PING, PONG, TEXT};
use crate::{close, fragmented, frame, whole};

/// Longer streams are not cut at every byte.
const CUT_BYTES_MAX: usize = 2_000;
const TEXT_WITH_ACCENTS: &str = "κόσμε";

fn check(number: &str, stream: &[u8], expected: &[Item]) {
    assert_eq!(decode(stream, &LIMITS), expected, "{number}, by the model");
    assert_eq!(read([stream], &LIMITS), expected, "{number}");
    assert_eq!(read(stream.chunks(997), &LIMITS), expected, "{number}, in chops");
    if stream.len() > CUT_BYTES_MAX {
        return;
    }
    assert_eq!(read(stream.chunks(1), &LIMITS), expected, "{number}, byte by byte");
    for at in 0..=stream.len() {
        let (front, back) = stream.split_at(at);
        assert_eq!(read([front, back], &LIMITS), expected, "{number}, cut at {at}");
    }
}

fn check_all(cases: impl IntoIterator<Item = (&'static str, Vec<Vec<u8>>, Vec<Item>)>) {
    for (number, frames, expected) in cases {
        check(number, &frames.concat(), &expected);
    }
}

fn text(text: impl AsRef<[u8]>) -> Item {
    Item::Text(text.as_ref().to_vec())
}

fn ping(payload: &[u8]) -> Item {
    Item::Ping(payload.to_vec())
}

fn pong(payload: &[u8]) -> Item {
    Item::Pong(payload.to_vec())
}

fn closed(code: u16, reason: &str) -> Item {
    Item::Close(Some((code, reason.to_owned())))
}

const VIOLATION: Item = Item::Error(1002);
const NOT_UTF8: Item = Item::Error(1007);

#[test]
fn case_1_messages_of_all_forms_of_length() {
    for (index, len) in [0, 125, 126, 127, 128, 65_535, 65_536].into_iter().enumerate() {
        let payload = vec![b'*'; len];
        let number = index + 1;
        check(&format!("1.1.{number}"), &whole(TEXT, &payload), &[text(&payload)]);
        let bytes = vec![0xFE; len];
        check(&format!("1.2.{number}"), &whole(BINARY, &bytes), &[Item::Binary(bytes.clone())]);
    }
}

#[test]
fn case_2_pings_and_pongs() {
    let long = [b'*'; 126];
    let pings: Vec<_> = (0..10u8).map(|number| [b'0' + number]).collect();
    check_all([
        ("2.1", vec![whole(PING, b"")], vec![ping(b"")]),
        ("2.2", vec![whole(PING, b"Hello")], vec![ping(b"Hello")]),
        ("2.3", vec![whole(PING, b"\0\xFF\xFE")], vec![ping(b"\0\xFF\xFE")]),
        ("2.4", vec![whole(PING, &long[1..])], vec![ping(&long[1..])]),
        ("2.5", vec![whole(PING, &long)], vec![VIOLATION]),
        ("2.7", vec![whole(PONG, b"")], vec![pong(b"")]),
        ("2.8", vec![whole(PONG, b"unasked")], vec![pong(b"unasked")]),
        ("2.9", vec![whole(PONG, b"1"), whole(PING, b"2")], vec![pong(b"1"), ping(b"2")]),
        (
            "2.10",
            pings.iter().map(|payload| whole(PING, payload)).collect(),
            pings.iter().map(|payload| ping(payload)).collect(),
        ),
    ]);
}

#[test]
fn case_3_reserved_bits() {
    let reserved = |bits: u8, opcode: u8| frame(FINAL | bits << 4 | opcode, b"x");
    let hello = || whole(TEXT, b"Hello");
    check_all([
        ("3.1", vec![reserved(1, TEXT), whole(PING, b"")], vec![VIOLATION]),
        ("3.2", vec![hello(), reserved(2, TEXT), whole(PING, b"")], vec![text("Hello"), VIOLATION]),
        ("3.3", vec![hello(), reserved(3, TEXT)], vec![text("Hello"), VIOLATION]),
        ("3.4", vec![hello(), reserved(4, TEXT)], vec![text("Hello"), VIOLATION]),
        ("3.5", vec![reserved(5, BINARY)], vec![VIOLATION]),
        ("3.6", vec![reserved(6, PING)], vec![VIOLATION]),
        ("3.7", vec![reserved(7, CLOSE)], vec![VIOLATION]),
    ]);
}

#[test]
fn case_4_opcodes_that_are_not_defined() {
    for (number, opcode) in [("4.1", 3), ("4.1", 4), ("4.1", 5), ("4.1", 6), ("4.1", 7)]
        .into_iter()
        .chain([("4.2", 11), ("4.2", 12), ("4.2", 13), ("4.2", 14), ("4.2", 15)])
    {
        check(number, &whole(opcode, b""), &[VIOLATION]);
        check(number, &whole(opcode, b"content"), &[VIOLATION]);
        let stream = [whole(TEXT, b"Hello"), whole(opcode, b""), whole(PING, b"")].concat();
        check(number, &stream, &[text("Hello"), VIOLATION]);
    }
}

#[test]
fn case_5_fragments() {
    let (first, next) = (|| frame(TEXT, b"one"), |payload| frame(CONTINUATION, payload));
    let last = |payload| whole(CONTINUATION, payload);
    check_all([
        ("5.1", vec![frame(PING, b"a"), last(b"b")], vec![VIOLATION]),
        ("5.2", vec![frame(PONG, b"a"), last(b"b")], vec![VIOLATION]),
        ("5.3", vec![first(), last(b"two")], vec![text("onetwo")]),
        ("5.6", vec![first(), whole(PING, b"p"), last(b"two")], vec![ping(b"p"), text("onetwo")]),
        ("5.9", vec![last(b"none"), whole(TEXT, b"x")], vec![VIOLATION]),
        ("5.12", vec![next(b"none"), whole(TEXT, b"x")], vec![VIOLATION]),
        (
            "5.15",
            vec![first(), last(b"two"), next(b"none"), whole(TEXT, b"x")],
            vec![text("onetwo"), VIOLATION],
        ),
        ("5.16", vec![next(b"none"), first(), last(b"two")], vec![VIOLATION]),
        ("5.17", vec![last(b"none"), first(), last(b"two")], vec![VIOLATION]),
        ("5.18", vec![first(), whole(TEXT, b"two")], vec![VIOLATION]),
        (
            "5.19",
            vec![
                first(),
                next(b"2"),
                whole(PING, b"p"),
                next(b"3"),
                next(b"4"),
                whole(PING, b"q"),
                last(b"5"),
            ],
            vec![ping(b"p"), ping(b"q"), text("one2345")],
        ),
    ]);
}

#[test]
fn case_6_1_empty_fragments() {
    check_all([
        ("6.1.1", vec![whole(TEXT, b"")], vec![text("")]),
        ("6.1.2", vec![fragmented(TEXT, &[b"", b"", b""])], vec![text("")]),
        ("6.1.3", vec![fragmented(TEXT, &[b"", b"middle", b""])], vec![text("middle")]),
    ]);
}

#[test]
fn case_6_2_valid_text_however_it_is_fragmented() {
    let valid = "Hello-µ@ßöäüàá-UTF-8!!";
    check("6.2.1", &whole(TEXT, valid.as_bytes()), &[text(valid)]);
    let (front, back) = valid.split_at(8);
    let halves = fragmented(TEXT, &[front.as_bytes(), back.as_bytes()]);
    check("6.2.2", &halves, &[text(valid)]);
    for (number, valid) in [("6.2.3", valid), ("6.2.4", TEXT_WITH_ACCENTS)] {
        let octets: Vec<_> = valid.as_bytes().chunks(1).collect();
        check(number, &fragmented(TEXT, &octets), &[text(valid)]);
    }
}

#[test]
fn case_6_3_and_6_4_invalid_text_is_refused_at_the_end_of_its_frame() {
    let invalid = [TEXT_WITH_ACCENTS.as_bytes(), b"\xED\xA0\x80edited"].concat();
    let octets: Vec<_> = invalid.chunks(1).collect();
    check("6.3.1", &whole(TEXT, &invalid), &[NOT_UTF8]);
    check("6.3.2", &fragmented(TEXT, &octets), &[NOT_UTF8]);
    // The rest of the message never arrives.
    let valid = frame(TEXT, TEXT_WITH_ACCENTS.as_bytes());
    for (number, end) in [("6.4.1", &b"\xF4\x90\x80\x80"[..]), ("6.4.2", b"\xF4\x90")] {
        let stream = [valid.clone(), frame(CONTINUATION, end)].concat();
        check(number, &stream, &[NOT_UTF8]);
    }
    check(
        "6.4.3",
        &whole(TEXT, &[TEXT_WITH_ACCENTS.as_bytes(), b"\xF4\x90"].concat()),
        &[NOT_UTF8],
    );
}

/// A text alone, and in two fragments cut at every byte.
fn check_text(number: &str, bytes: &[u8], is_valid: bool) {
    let expected = if is_valid { text(bytes) } else { NOT_UTF8 };
    check(number, &whole(TEXT, bytes), std::slice::from_ref(&expected));
    for at in 0..=bytes.len() {
        let (front, back) = bytes.split_at(at);
        let stream = fragmented(TEXT, &[front, back]);
        assert_eq!(read([&*stream], &LIMITS), std::slice::from_ref(&expected), "{number} at {at}");
        assert_eq!(decode(&stream, &LIMITS), std::slice::from_ref(&expected));
    }
}

#[test]
fn case_6_6_prefixes_of_a_text() {
    let bytes = TEXT_WITH_ACCENTS.as_bytes();
    for len in 1..=bytes.len() {
        check_text("6.6", &bytes[..len], TEXT_WITH_ACCENTS.is_char_boundary(len));
    }
}

#[test]
fn case_6_7_to_6_23_sequences_of_utf8() {
    let valid: &[(&str, &[&[u8]])] = &[
        ("6.7", &[b"\0", b"\xC2\x80", b"\xE0\xA0\x80", b"\xF0\x90\x80\x80"]),
        ("6.9", &[b"\x7F", b"\xDF\xBF", b"\xEF\xBF\xBF", b"\xF4\x8F\xBF\xBF"]),
        ("6.11", &[b"\xED\x9F\xBF", b"\xEE\x80\x80", b"\xEF\xBF\xBD", b"\xF4\x8F\xBF\xBF"]),
        ("6.22", &[b"\xEF\xBF\xBE", b"\xF0\x9F\xBF\xBE", b"\xF0\x9F\xBF\xBF", b"\xF4\x8F\xBF\xBE"]),
        ("6.23", &[b"\xEF\xBF\xB9", b"\xEF\xBF\xBA", b"\xEF\xBF\xBB", b"\xEF\xBF\xBC"]),
    ];
    let invalid: &[(&str, &[&[u8]])] = &[
        ("6.8", &[b"\xF8\x88\x80\x80\x80", b"\xFC\x84\x80\x80\x80\x80"]),
        ("6.10", &[b"\xF7\xBF\xBF\xBF", b"\xFB\xBF\xBF\xBF\xBF", b"\xFD\xBF\xBF\xBF\xBF\xBF"]),
        ("6.11.5", &[b"\xF4\x90\x80\x80"]),
        ("6.12", &[b"\x80", b"\xBF", b"\x80\xBF", b"\x80\xBF\x80\xBF\x80\xBF"]),
        ("6.13", &[b"\xC2 \xDF ", b"\xE0 \xEF ", b"\xF0 \xF4 ", b"\xF8 ", b"\xFC "]),
        ("6.14", &[b"\xC0", b"\xE0\x80", b"\xF0\x80\x80", b"\xDF", b"\xEF\xBF", b"\xF7\xBF\xBF"]),
        ("6.15", &[b"\xC0\xE0\x80\xF0\x80\x80\xDF\xEF\xBF\xF7\xBF\xBF"]),
        ("6.16", &[b"\xFE", b"\xFF", b"\xFE\xFE\xFF\xFF"]),
        ("6.17", &[b"\xC0\xAF", b"\xE0\x80\xAF", b"\xF0\x80\x80\xAF", b"\xF8\x80\x80\x80\xAF"]),
        ("6.18", &[b"\xC1\xBF", b"\xE0\x9F\xBF", b"\xF0\x8F\xBF\xBF", b"\xF8\x87\xBF\xBF\xBF"]),
        ("6.19", &[b"\xC0\x80", b"\xE0\x80\x80", b"\xF0\x80\x80\x80", b"\xF8\x80\x80\x80\x80"]),
        ("6.20", &[b"\xED\xA0\x80", b"\xED\xAD\xBF", b"\xED\xB0\x80", b"\xED\xBF\xBF"]),
        ("6.21", &[b"\xED\xA0\x80\xED\xB0\x80", b"\xED\xAF\xBF\xED\xBF\xBF"]),
    ];
    for (sequences, is_valid) in [(valid, true), (invalid, false)] {
        for (number, texts) in sequences {
            for bytes in *texts {
                check_text(number, bytes, is_valid);
            }
        }
    }
}

#[test]
fn case_7_1_nothing_counts_after_a_close_frame() {
    let end = || close(1000, b"");
    let last = || closed(1000, "");
    let large = vec![b'*'; 256 << 10];
    check_all([
        ("7.1.1", vec![whole(TEXT, b"Hello"), end()], vec![text("Hello"), last()]),
        ("7.1.2", vec![end(), end()], vec![last()]),
        ("7.1.3", vec![end(), whole(PING, b"")], vec![last()]),
        ("7.1.4", vec![end(), whole(TEXT, b"Hello")], vec![last()]),
        ("7.1.5", vec![frame(TEXT, b"Hello"), end(), whole(CONTINUATION, b"x")], vec![last()]),
        ("7.1.6", vec![whole(TEXT, &large), end(), whole(PING, b"")], vec![text(&large), last()]),
    ]);
}

#[test]
fn case_7_3_and_7_5_payloads_of_close_frames() {
    let reason = "*".repeat(123);
    check_all([
        ("7.3.1", vec![whole(CLOSE, b"")], vec![Item::Close(None)]),
        ("7.3.2", vec![whole(CLOSE, b"a")], vec![VIOLATION]),
        ("7.3.3", vec![close(1000, b"")], vec![closed(1000, "")]),
        ("7.3.4", vec![close(1000, b"Hello World!")], vec![closed(1000, "Hello World!")]),
        ("7.3.5", vec![close(1000, reason.as_bytes())], vec![closed(1000, &reason)]),
        ("7.3.6", vec![close(1000, &[b'*'; 124])], vec![VIOLATION]),
        ("7.5.1", vec![close(1000, b"\xCE\xBA\xED\xA0\x80")], vec![NOT_UTF8]),
    ]);
}

#[test]
fn case_7_7_7_9_and_7_13_close_codes() {
    let valid = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999];
    for code in valid.into_iter().chain([1012, 1013, 1014]) {
        check("7.7", &close(code, b""), &[closed(code, "")]);
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        check("7.9, 7.13", &close(code, b"reason"), &[VIOLATION]);
    }
}

#[test]
fn case_10_a_message_in_many_frames() {
    let payload = vec![b'*'; 65_536];
    let fragments: Vec<_> = payload.chunks(1300).collect();
    check("10.1.1", &fragmented(TEXT, &fragments), &[text(&payload)]);
}
