//! Bodies in a content coding that are decoded while they arrive.

use ucall_proto::{Limits, NextAction};

use crate::coded::{gzip, zstd};

use super::{
    PROBE, RESPONSE, Uploads, complete, decode, driver, in_chunks, read_to_end, with_length,
};

/// Text that becomes about half as long.
fn text(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b'a' + (state >> 60) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The requests with this body in each coding and framing.
fn requests(body: &[u8]) -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    for (name, encoded) in [("gzip", gzip(body)), ("zstd", zstd(body))] {
        let line = format!("Content-Encoding: {name}\r\n");
        requests.push(with_length(&line, &encoded));
        requests.push(in_chunks(&line, &encoded));
    }
    requests
}

fn lavish() -> Limits {
    let mut limits = Limits::default();
    limits.body_ratio_max = usize::MAX;
    limits
}

#[test]
fn parts_are_decoded_before_the_end_has_arrived() {
    let body = text(500_000);
    for request in requests(&body) {
        let mut driver = driver(Uploads::reading(), Limits::default());
        let (front, back) = request.split_at(request.len() / 2);
        driver.receive(front);
        decode(&mut driver);
        let begun = driver.service.body.len();
        assert!((100_000..400_000).contains(&begun) && !driver.service.is_over, "{begun}");
        assert!(driver.held_bytes() > 32 << 10, "{}", driver.held_bytes());
        driver.receive(back);
        decode(&mut driver);
        assert!(driver.service.is_over && driver.service.body == body);
        assert!(driver.service.longest <= 64 << 10);
        let head = &driver.service.head;
        assert!(!head.contains("Content-Encoding") && !head.contains("Content-Length"), "{head}");
        complete(&mut driver);
    }
}

#[test]
fn bodies_are_the_same_however_they_are_cut() {
    let body = text(300);
    for request in requests(&body) {
        for at in 0..=request.len() {
            let mut driver = driver(Uploads::reading(), Limits::default());
            driver.receive(&request[..at]);
            decode(&mut driver);
            driver.receive(&request[at..]);
            decode(&mut driver);
            assert!(driver.service.is_over && driver.service.body == body, "cut at {at}");
            complete(&mut driver);
        }
    }
}

#[test]
fn decoding_waits_for_room() {
    let body = vec![b'x'; 1 << 20];
    for request in requests(&body) {
        let mut driver = driver(Uploads::default(), lavish());
        driver.receive(&request);
        decode(&mut driver);
        for _ in 0..2 {
            assert!(driver.service.body.len() <= 128 << 10, "{}", driver.service.body.len());
            assert!(!driver.connection.is_decoding());
            assert_eq!(driver.connection.next_action(), NextAction::Pause);
            // The window of zstd is as long as the body.
            assert!(driver.held_bytes() < 3 << 19, "{}", driver.held_bytes());
            // Without room it goes on waiting.
            driver.resume();
        }
        read_to_end(&mut driver);
        assert!(driver.service.body == body && driver.service.longest <= 64 << 10);
        complete(&mut driver);
    }
}

#[test]
fn the_limits_are_those_of_what_is_decoded() {
    let body = text(200_000);
    for request in requests(&body) {
        for (own, others, is_taken) in [
            (None, 200_000, true),
            (None, 199_999, false),
            (Some(200_000), 1_000, true),
            (Some(199_999), 1_000_000, false),
        ] {
            let mut limits = Limits::default();
            limits.body_bytes_max = others;
            let service = Uploads { own_bytes_max: own, ..Uploads::reading() };
            let mut driver = driver(service, limits);
            driver.receive(&request);
            decode(&mut driver);
            assert_eq!(driver.service.is_over, is_taken, "{own:?} {others}");
            assert_eq!(driver.service.is_cancelled, !is_taken);
            if is_taken {
                assert!(driver.service.body == body);
                continue;
            }
            let sent = driver.sent();
            assert!(sent.starts_with("HTTP/1.1 413 ") && sent.contains("199999"), "{sent}");
            assert!(driver.service.body.len() < 200_000);
            assert_eq!(driver.connection.next_action(), NextAction::DiscardInput);
        }
    }
}

#[test]
fn the_ratio_has_a_limit() {
    let body = vec![b'x'; 1 << 20];
    for request in requests(&body) {
        let mut driver = driver(Uploads::reading(), Limits::default());
        driver.receive(&request);
        decode(&mut driver);
        let sent = driver.sent();
        assert!(sent.starts_with("HTTP/1.1 413 ") && sent.contains("max_body_ratio"), "{sent}");
        assert!(driver.service.is_cancelled && driver.service.body.len() <= 256 << 10);
    }
}

#[test]
fn broken_bodies_are_refused() {
    let whole = gzip(&text(1_000));
    let broken = [&whole[..whole.len() - 9], &[&whole[..], b"more"].concat(), b"no gzip"];
    for body in broken {
        for request in [
            with_length("Content-Encoding: gzip\r\n", body),
            in_chunks("Content-Encoding: gzip\r\n", body),
        ] {
            let mut driver = driver(Uploads::reading(), Limits::default());
            driver.receive(&request);
            decode(&mut driver);
            assert!(driver.sent().starts_with("HTTP/1.1 400 "));
            assert!(driver.service.is_cancelled && !driver.service.is_over);
            assert_eq!(driver.held_bytes(), 0);
        }
    }
}

#[test]
fn an_unknown_coding_is_refused() {
    let mut driver = driver(Uploads::reading(), Limits::default());
    driver.receive(&with_length("Content-Encoding: br\r\n", b"abc"));
    assert!(driver.sent().starts_with("HTTP/1.1 415 "));
    assert!(driver.service.number.is_none());
}

#[test]
fn a_body_that_has_arrived_is_decoded_after_the_client_has_shut_down_its_side() {
    let body = vec![b'x'; 4 << 20];
    for request in requests(&body) {
        let mut driver = driver(Uploads::default(), lavish());
        driver.receive(&request);
        driver.handle_eof();
        assert_eq!(driver.sent(), PROBE);
        assert!(driver.connection.is_half_closed());
        decode(&mut driver);
        read_to_end(&mut driver);
        assert!(driver.service.body == body && !driver.service.is_cancelled);
        driver.complete(driver.service.number.unwrap(), Ok(RESPONSE));
        assert!(driver.sent().ends_with("done"));
        assert_eq!(driver.connection.next_action(), NextAction::Close);
    }
}

#[test]
fn a_body_that_is_cut_off_is_cancelled() {
    for request in requests(&text(100_000)) {
        let mut driver = driver(Uploads::reading(), Limits::default());
        driver.receive(&request[..request.len() - 20]);
        driver.handle_eof();
        assert_eq!((driver.sent(), driver.service.is_over), (String::new(), false));
        assert_eq!(driver.connection.next_action(), NextAction::Close);
    }
}
