//! Frames that are received in several turns, whose parts go to memory of their own.

use std::time::Duration;

use ucall_proto::NextAction;

use crate::frames::{Framed, call, driver, echoed, framed, http_reply, post_bytes, without_dates};
use crate::harness::Driver;

/// All output is sent.
fn send(driver: &mut Driver<Framed>) {
    driver.service.sent.extend(std::mem::take(&mut driver.out));
    driver.resume();
}

/// Gives the connection bytes as an engine does: to its target if it wants one, at most `piece` at
/// once. Returns the most that was reserved meanwhile.
fn feed(driver: &mut Driver<Framed>, mut bytes: &[u8], piece: usize) -> usize {
    let mut held_max = 0;
    while !bytes.is_empty() {
        match driver.connection.next_action() {
            NextAction::Fill => {
                let mut target = driver.poll_target().unwrap();
                while !target.is_full() && !bytes.is_empty() {
                    let count = target.write(&bytes[..bytes.len().min(piece)]);
                    bytes = &bytes[count..];
                    driver.handle_progress();
                }
                held_max = held_max.max(driver.held_bytes());
                driver.return_target(target);
            }
            NextAction::Pause if !driver.out.is_empty() => send(driver),
            _ => {
                let (front, rest) = bytes.split_at(bytes.len().min(piece));
                driver.receive(front);
                bytes = rest;
            }
        }
        held_max = held_max.max(driver.held_bytes());
    }
    held_max
}

fn large_driver() -> Driver<Framed> {
    let mut driver = driver();
    driver.limits.body_bytes_max = 8 << 20;
    driver
}

/// The first two parts are large.
fn large_parts() -> [Vec<u8>; 3] {
    let bytes = |len: usize, seed: usize| (0..len).map(|at| (at * seed % 251) as u8).collect();
    [bytes(3_000_000, 7), bytes(100_001, 3), bytes(5, 1)]
}

/// A request with a `Content-Type`, after which a client may send the body by itself.
fn post_frame(frame: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.ucall.parts\r\n\
         Content-Length: {}\r\n\r\n",
        frame.len()
    );
    [head.as_bytes(), frame].concat()
}

#[test]
fn the_parts_of_a_large_frame_are_received_into_memory_of_their_own() {
    let parts = large_parts();
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let frame = framed(call("echo", 3), &parts);
    let next = framed(call("sum", 1), &[&[2, 3]]);
    let sum = br#"{"jsonrpc":"2.0","id":1,"result":5}"#;
    let raw = [&frame[..], &next, &frame, &next].concat();
    let line = [&sum[..], b"\n"].concat();
    let raw_replies = [&echoed(&parts)[..], &line, &echoed(&parts), &line].concat();
    let http = [post_frame(&frame), post_bytes(&next), post_bytes(&frame), post_bytes(&next)];
    let http_replies: Vec<u8> =
        [&echoed(&parts)[..], sum, &echoed(&parts), sum].into_iter().flat_map(http_reply).collect();
    for piece in [97, 1460, 65_536, 1_000_000, usize::MAX] {
        for (input, replies) in [(&raw, &raw_replies), (&http.concat(), &http_replies)] {
            let mut driver = large_driver();
            let held_max = feed(&mut driver, input, piece);
            while !driver.out.is_empty() {
                send(&mut driver);
            }
            let out = std::mem::take(&mut driver.service.sent);
            assert!(without_dates(&out) == *replies, "in pieces of {piece}");
            assert_eq!(
                (driver.held_bytes(), driver.connection.next_action()),
                (0, NextAction::Receive)
            );
            if piece < 1_000_000 {
                assert!(held_max < frame.len() + (256 << 10), "{held_max} in pieces of {piece}");
            }
        }
    }
}

#[test]
fn a_large_frame_is_the_same_wherever_it_is_cut() {
    let parts = [&[1; 70_000][..], &[2; 66_000]];
    let frame = framed(call("echo", 2), &parts);
    let expected = echoed(&parts);
    let http = post_frame(&frame);
    let around = |at: usize| at.saturating_sub(3)..at + 3;
    let front_len = frame.len() - 66_000 - 70_016;
    let cuts = (0..300).chain(around(front_len + 4096)).chain(around(front_len + 70_016));
    for at in cuts.chain(around(frame.len() - 65_536)).chain(around(frame.len() - 3)) {
        for (input, is_http) in [(&frame, false), (&http, true)] {
            let mut driver = large_driver();
            let (front, back) = input.split_at(at.min(input.len()));
            feed(&mut driver, front, usize::MAX);
            feed(&mut driver, back, 50_000);
            let out = without_dates(&driver.sent_bytes());
            assert!(out == if is_http { http_reply(&expected) } else { expected.clone() }, "{at}");
        }
    }
}

#[test]
fn the_memory_of_a_large_frame_is_released_however_it_ends() {
    let frame = framed(call("sum", 1), &[&vec![1; 1_000_000]]);
    for input in [post_frame(&frame), frame] {
        for len in [input.len() - 900_000, input.len() - 100_000, input.len() - 1] {
            let begun = || {
                let mut driver = large_driver();
                feed(&mut driver, &input[..len], 30_000);
                assert!(driver.held_bytes() >= len.saturating_sub(1000), "{}", driver.held_bytes());
                driver
            };
            let mut driver = begun();
            driver.advance_time(Duration::from_secs(4000));
            assert_eq!(driver.held_bytes(), 0);
            let mut driver = begun();
            driver.handle_eof();
            assert_eq!(driver.held_bytes(), 0);
            let mut driver = begun();
            driver.release();
            assert_eq!(driver.held_bytes(), 0);
            if driver.connection.next_action() != NextAction::Fill {
                continue;
            }
            let mut driver = begun();
            let target = driver.poll_target().unwrap();
            driver.advance_time(Duration::from_secs(4000));
            driver.return_target(target);
            assert_eq!(driver.held_bytes(), 0);
        }
    }
}

#[test]
fn a_large_frame_waits_as_other_requests_do() {
    let later = framed(call("later", 0), &[]);
    let parts = [&[1; 200_000][..]];
    let frame = framed(call("echo", 1), &parts);
    let cancel = br#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}"#;
    for is_http in [false, true] {
        let wrap = |frame: &[u8]| if is_http { post_bytes(frame) } else { frame.to_vec() };
        let mut driver = large_driver();
        driver.limits.connection_calls_max = 1;
        feed(&mut driver, &[wrap(&later), wrap(&frame)].concat(), 10_000);
        if !is_http {
            driver.receive(cancel);
        }
        assert!(driver.sent_bytes().is_empty());
        assert_eq!(driver.connection.next_action(), NextAction::Pause);
        assert!(driver.held_bytes() >= 200_000);
        let number = driver.service.later[0];
        driver.complete(number, Ok(b"1"));
        let out = without_dates(&driver.sent_bytes());
        let reply = br#"{"jsonrpc":"2.0","id":1,"result":1}"#;
        let replies = match is_http {
            true => [http_reply(reply), http_reply(&echoed(&parts))].concat(),
            false => [reply, &b"\n"[..], &echoed(&parts)].concat(),
        };
        assert!(out == replies, "{}", String::from_utf8_lossy(&out[..200]));
        assert_eq!(driver.held_bytes(), 0);
    }
}

#[test]
fn a_large_frame_with_bad_padding_or_text_harms_no_other() {
    let good = framed(call("sum", 1), &[&[2, 3]]);
    let valid = framed(call("sum", 2), &[&[1; 100_001], &[1; 100_001]]);
    let mut padding = valid.clone();
    padding[valid.len() - 100_001 - 1] = 1;
    let text = framed("{]", &[&[1; 100_001], &[1; 100_001]]);
    for (bad, expected) in [(padding, "zero bytes between"), (text, "Parse error")] {
        for is_http in [false, true] {
            let wrap = |frame: &[u8]| if is_http { post_frame(frame) } else { frame.to_vec() };
            let mut driver = large_driver();
            feed(&mut driver, &[wrap(&bad), wrap(&good)].concat(), 60_000);
            let out = driver.sent();
            assert!(out.contains(expected) && out.contains(r#""result":5}"#), "{out}");
            assert_eq!(driver.held_bytes(), 0);
        }
    }
}

#[test]
fn large_parts_of_a_result_are_sent_from_where_they_lie() {
    let bytes: Vec<u8> = (0..400_000).map(|at| (at % 253) as u8).collect();
    // What is copied makes the output a large one, or the part is short.
    let cases: [(&[usize], &[usize]); 4] = [
        (&[65_536], &[65_536 - (16_385 - 64)]),
        (&[65_535], &[]),
        (&[20_000, 70_000, 3, 100_000], &[70_000, 100_000]),
        (&[0, 400_000, 0], &[400_000 - (16_385 - 128)]),
    ];
    for (lens, attached) in cases {
        let parts: Vec<&[u8]> = lens.iter().map(|&len| &bytes[..len]).collect();
        let frame = framed(call("echo", parts.len()), &parts);
        let mut driver = large_driver();
        driver.limits.parts_max = 5;
        feed(&mut driver, &frame, usize::MAX);
        assert!(driver.sent_bytes() == echoed(&parts), "{lens:?}");
        let total = |lens: &[usize]| lens.iter().sum::<usize>();
        assert_eq!(driver.attached.len(), attached.len());
        assert!(total(&driver.attached).abs_diff(total(attached)) < 64, "{:?}", driver.attached);
        let mut driver = large_driver();
        driver.limits.parts_max = 5;
        feed(&mut driver, &post_frame(&frame), usize::MAX);
        assert!(without_dates(&driver.sent_bytes()) == http_reply(&echoed(&parts)), "{lens:?}");
    }
}
