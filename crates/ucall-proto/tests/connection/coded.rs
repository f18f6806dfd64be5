//! Bodies in a content coding.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use ucall_proto::{Limits, LoadState, NextAction};

use crate::harness::{Driver, bodies, later, post, sum, sum_reply};

pub fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
    zstd_safe::compress(&mut out, data, 3).unwrap();
    out
}

type Encode = fn(&[u8]) -> Vec<u8>;

const CODINGS: [(&str, Encode); 4] =
    [("gzip", gzip), ("zstd", zstd), ("X-GZip", gzip), ("identity, zstd", zstd)];

fn head(lines: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").into_bytes()
}

/// A request whose body is these bytes.
fn coded(coding: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    [head(&format!("Content-Encoding: {coding}\r\nContent-Length: {length}\r\n")), body.to_vec()]
        .concat()
}

/// The same in chunks of three bytes.
fn in_chunks(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut request =
        head(&format!("Transfer-Encoding: chunked\r\nContent-Encoding: {coding}\r\n"));
    for chunk in body.chunks(3) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
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

fn answer_in<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, NextAction) {
    let mut driver = Driver::new();
    for piece in pieces {
        driver.receive(piece);
        decode(&mut driver);
    }
    let answered = (driver.sent(), driver.connection.next_action());
    if answered.1 == NextAction::Receive {
        assert_eq!(driver.held_bytes(), 0);
    }
    answered
}

/// What is answered to `input`, however it is cut.
fn answer(input: &[u8]) -> (String, NextAction) {
    let whole = answer_in([input]);
    for at in 0..=input.len() {
        let (front, back) = input.split_at(at);
        assert_eq!(answer_in([front, back]), whole, "cut at {at}");
    }
    assert_eq!(answer_in(input.chunks(1)), whole, "byte by byte");
    whole
}

/// The reply to a request that arrives whole.
fn reply(limits: Limits, request: &[u8]) -> String {
    let mut driver = Driver::with_limits(limits);
    driver.receive(request);
    decode(&mut driver);
    driver.sent()
}

fn echo(len: usize) -> Vec<u8> {
    let text = "x".repeat(len);
    format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{text}"],"id":1}}"#).into_bytes()
}

/// Bytes that no coding makes smaller, as JSON text.
fn noise(len: usize) -> String {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'A' + (state >> 59) as u8)
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn bodies_are_decoded() {
    for (name, encode) in CODINGS {
        let body = encode(sum(1).as_bytes());
        for request in [coded(name, &body), in_chunks(name, &body)] {
            let (sent, next_action) = answer(&[&request[..], post(&sum(2)).as_bytes()].concat());
            assert_eq!(bodies(&sent), [sum_reply(1), sum_reply(2)], "{name}");
            assert_eq!(next_action, NextAction::Receive);
        }
    }
}

#[test]
fn members_and_frames_are_joined() {
    let text = sum(1);
    let (front, back) = text.as_bytes().split_at(20);
    for (name, encode) in CODINGS {
        let parts = [encode(front), encode(b""), encode(back)].concat();
        assert_eq!(bodies(&answer(&coded(name, &parts)).0), [sum_reply(1)], "{name}");
        let many = [encode(b"").repeat(1000), encode(text.as_bytes())].concat();
        assert_eq!(bodies(&reply(Limits::default(), &coded(name, &many))), [sum_reply(1)]);
    }
}

#[test]
fn an_empty_body_has_no_coding() {
    for name in ["gzip", "br"] {
        let sent = answer(&coded(name, b"")).0;
        assert!(sent.contains("-32700"), "{sent}");
    }
}

#[test]
fn unknown_codings_are_refused_with_those_that_are_known() {
    for name in ["br", "deflate", "gzip, zstd", "gzip,gzip", "compress", "\u{1f}"] {
        let request = coded(name, &gzip(sum(1).as_bytes()));
        let sent = reply(Limits::default(), &request);
        if name == "\u{1f}" {
            assert!(sent.starts_with("HTTP/1.1 400 "), "{sent}");
            continue;
        }
        assert!(sent.starts_with("HTTP/1.1 415 "), "{name}: {sent}");
        assert!(sent.contains("\r\nAccept-Encoding: zstd, gzip\r\n"), "{sent}");
    }
    let twice = head("Content-Encoding: gzip\r\nContent-Encoding: zstd\r\nContent-Length: 3\r\n");
    assert!(reply(Limits::default(), &twice).starts_with("HTTP/1.1 415 "));
}

#[test]
fn broken_data_is_refused() {
    for (name, encode) in CODINGS {
        let body = encode(sum(1).as_bytes());
        let mut last_changed = body.clone();
        *last_changed.last_mut().unwrap() ^= 1;
        let mut cases = vec![
            sum(1).into_bytes(),
            body[..body.len() - 1].to_vec(),
            body[..1].to_vec(),
            [&body[..], b"x"].concat(),
        ];
        if name != "zstd" && !name.contains("zstd") {
            cases.push(last_changed);
        }
        for case in cases {
            for request in [coded(name, &case), in_chunks(name, &case)] {
                let (sent, next_action) = answer(&request);
                assert!(sent.starts_with("HTTP/1.1 400 "), "{name}: {sent}");
                assert!(sent.contains("that Content-Encoding names"), "{sent}");
                assert_eq!(next_action, NextAction::DiscardInput);
            }
        }
    }
}

#[test]
fn a_window_of_zstd_has_at_most_8_mib() {
    for (bits, is_allowed) in [(23, true), (24, false)] {
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::WindowLog(bits)).unwrap();
        let mut body = Vec::with_capacity(1 << 20);
        let mut output = zstd_safe::OutBuffer::around(&mut body);
        let text = sum(1);
        let mut input = zstd_safe::InBuffer::around(text.as_bytes());
        context.compress_stream(&mut output, &mut input).unwrap();
        context.end_stream(&mut output).unwrap();
        let sent = reply(Limits::default(), &coded("zstd", &body));
        assert_eq!(sent.contains("\"result\":2"), is_allowed, "{sent}");
        assert_eq!(sent.contains("8 MiB (RFC 9659)"), !is_allowed, "{sent}");
    }
}

#[test]
fn decoded_bodies_have_a_largest_length() {
    let mut limits = Limits::default();
    limits.body_bytes_max = echo(200).len();
    for (name, encode) in CODINGS {
        for (len, is_allowed) in [(200, true), (201, false)] {
            let request = coded(name, &encode(&echo(len)));
            let sent = reply(limits.clone(), &request);
            assert_eq!(sent.starts_with("HTTP/1.1 200 "), is_allowed, "{sent}");
            assert_eq!(sent.contains("HTTP/1.1 413 "), !is_allowed);
            assert_eq!(sent.contains("decoded, is larger than max_body_bytes"), !is_allowed);
        }
        let claim = coded(name, &vec![0; limits.body_bytes_max + 1]);
        assert!(reply(limits.clone(), &claim).starts_with("HTTP/1.1 413 "));
    }
}

#[test]
fn decoded_bodies_have_a_largest_ratio() {
    // Below 64 KiB any ratio is allowed.
    for (len, ratio_max, is_allowed) in
        [(60_000, 1, true), (70_000, 10, false), (70_000, 1_000, true), (1 << 20, 100, false)]
    {
        for (name, encode) in CODINGS {
            let mut limits = Limits::default();
            limits.body_ratio_max = ratio_max;
            let sent = reply(limits, &coded(name, &encode(&echo(len))));
            assert_eq!(sent.starts_with("HTTP/1.1 200 "), is_allowed, "{name} {len}: {sent:.200}");
            assert_eq!(sent.contains("max_body_ratio"), !is_allowed, "{sent:.200}");
        }
    }
}

#[test]
fn the_ratio_is_that_of_the_whole_body_so_far() {
    for (name, encode) in CODINGS {
        let text = noise(100_000);
        let body = format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{text}"],"id":1}}"#);
        let encoded = encode(body.as_bytes());
        let ratio = body.len() / encoded.len() + 1;
        for (ratio_max, is_allowed) in [(ratio, true), (ratio - 1, false)] {
            let mut limits = Limits::default();
            limits.body_ratio_max = ratio_max;
            let sent = reply(limits, &coded(name, &encoded));
            assert_eq!(sent.starts_with("HTTP/1.1 200 "), is_allowed, "{name}: {sent:.200}");
        }
    }
}

#[test]
fn a_turn_decodes_a_piece() {
    for (name, encode) in CODINGS {
        let mut limits = Limits::default();
        limits.body_ratio_max = usize::MAX;
        let mut driver = Driver::with_limits(limits);
        let text = echo(4 << 20);
        driver.receive(&coded(name, &encode(&text)));
        driver.receive(post(&sum(2)).as_bytes());
        assert_eq!(driver.sent(), "", "{name}");
        let turns = decode(&mut driver);
        assert!((63..=66).contains(&turns), "{name}: {turns}");
        assert!(driver.sent().len() > 4 << 20, "{name}");
        driver.resume();
        assert!(driver.sent().ends_with(&sum_reply(2)), "{name}");
        assert_eq!(
            (driver.held_bytes(), driver.connection.next_action()),
            (0, NextAction::Receive)
        );
    }
}

#[test]
fn what_is_decoded_is_held() {
    for (name, encode) in CODINGS {
        let mut driver = Driver::new();
        let body = encode(format!("[{}", noise(300_000)).as_bytes());
        let request = coded(name, &body);
        driver.receive(&request[..request.len() - 1]);
        decode(&mut driver);
        assert!((300_000..1_000_000).contains(&driver.held_bytes()), "{}", driver.held_bytes());
        driver.release();
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn a_bomb_is_refused_before_it_is_held() {
    for (name, encode) in CODINGS {
        let mut limits = Limits::default();
        limits.body_ratio_max = usize::MAX;
        let mut driver = Driver::with_limits(limits);
        driver.receive(&coded(name, &encode(&vec![b' '; 17 << 20])));
        let mut most = 0;
        while driver.connection.is_decoding() {
            driver.decode_piece();
            most = most.max(driver.held_bytes());
        }
        assert!(driver.sent().starts_with("HTTP/1.1 413 "), "{name}");
        assert!(most < (16 << 20) * 2 + (1 << 20), "{name}: {most}");
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn decoding_waits_for_memory() {
    for (name, encode) in CODINGS {
        let mut limits = Limits::default();
        (limits.held_bytes_max, limits.body_ratio_max) = (10 << 20, usize::MAX);
        let mut driver = Driver::with_limits(limits);
        driver.hold_in_others(0, (10 << 20) - (100 << 10));
        driver.receive(&coded(name, &encode(&echo(1 << 20))));
        while driver.connection.is_decoding() && !driver.connection.is_waiting_for_memory() {
            driver.decode_piece();
        }
        assert!(driver.connection.is_waiting_for_memory(), "{name}");
        driver.hold_in_others((10 << 20) - (100 << 10), 0);
        driver.resume();
        assert!(!driver.connection.is_waiting_for_memory());
        decode(&mut driver);
        assert!(driver.sent().starts_with("HTTP/1.1 200 "), "{name}");
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn the_end_of_the_input_does_not_cut_a_body_that_has_arrived() {
    for (name, encode) in CODINGS {
        let mut limits = Limits::default();
        limits.body_ratio_max = usize::MAX;
        let mut driver = Driver::with_limits(limits);
        driver.receive(&coded(name, &encode(&echo(1 << 20))));
        assert!(driver.connection.is_decoding());
        driver.handle_eof();
        assert!(driver.sent().starts_with("HTTP/1.1 200 "), "{name}");
        assert_eq!(driver.connection.next_action(), NextAction::Close);
    }
}

#[test]
fn the_end_of_the_input_decodes_no_more_than_a_turn_may_take() {
    for (name, encode) in CODINGS {
        let mut limits = Limits::default();
        limits.body_ratio_max = usize::MAX;
        let mut driver = Driver::with_limits(limits);
        driver.receive(&coded(name, &encode(&echo(2 << 20))));
        driver.handle_eof();
        assert!(driver.sent().starts_with("HTTP/1.1 503 "), "{name}");
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn a_step_decodes_a_part_of_what_has_arrived() {
    // Bytes without an order have no shorter form.
    let body = echo(10);
    let noise = gzip(noise(60_000).as_bytes());
    let mut driver = Driver::new();
    driver.receive(&coded("gzip", &[gzip(&body), noise].concat()));
    assert!(driver.connection.is_decoding());
    assert!(decode(&mut driver) > 3);
}

#[test]
fn slow_bodies_have_the_time_of_the_bytes_that_were_sent() {
    // 1 MiB of spaces in a kilobyte or less.
    let body = [gzip(&vec![b' '; 1 << 20]), gzip(sum(1).as_bytes())].concat();
    let mut limits = Limits::default();
    limits.body_ratio_max = usize::MAX;
    let mut driver = Driver::with_limits(limits);
    let request = coded("gzip", &body);
    driver.receive(&request[..request.len() - 40]);
    decode(&mut driver);
    let mut waited = 0;
    for byte in &request[request.len() - 40..request.len() - 1] {
        driver.advance_time(Duration::from_secs(1));
        driver.receive(&[*byte]);
        waited += 1;
        if driver.connection.next_action() != NextAction::Receive {
            break;
        }
    }
    assert!(driver.sent().starts_with("HTTP/1.1 408 "), "after {waited} s");
    assert!((30..35).contains(&waited), "{waited}");
}

#[test]
fn requests_under_load_are_refused_before_they_are_decoded() {
    let mut driver = Driver::new();
    driver.load = LoadState::Overloaded;
    driver.receive(&coded("gzip", &gzip(sum(1).as_bytes())));
    assert!(driver.sent().starts_with("HTTP/1.1 503 "));
}

#[test]
fn calls_that_are_deferred_and_clients_that_wait_for_100_are_served() {
    let mut driver = Driver::new();
    let body = gzip(later(1).as_bytes());
    let length = body.len();
    driver.receive(&head(&format!(
        "Content-Encoding: gzip\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n"
    )));
    assert_eq!(driver.sent(), "HTTP/1.1 100 Continue\r\n\r\n");
    driver.receive(&body);
    let call = driver.service.deferred[0];
    driver.complete(call, Ok(b"3"));
    assert!(driver.sent().ends_with(r#""result":3}"#));
}
