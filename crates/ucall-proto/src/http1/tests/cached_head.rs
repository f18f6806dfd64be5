//! A head that is recognized by comparison is read as a new parser reads it.

use super::head::{LIMITS, with};
use crate::http1::{BodyLength, HeadParser, parse_head};

#[test]
fn a_cached_head_matches_only_the_same_bytes() {
    let first = with("Content-Length: 5\r\nUser-Agent: a");
    let others = [
        with("Content-Length: 6\r\nUser-Agent: a"),
        with("Content-Length: 5\r\nUser-Agent: b"),
        with("Content-Length: 5\r\nUser-Agent: a\r\nOrigin: null"),
        first[..first.len() - 1].to_vec(),
    ];
    let mut parser = HeadParser::default();
    for _ in 0..3 {
        assert_eq!(parser.parse(&first, &LIMITS), parse_head(&first, &LIMITS));
    }
    for other in &others {
        let mut parser = parser.clone();
        for input in [other, &first, &first, &[first.clone(), b"12345".to_vec()].concat()] {
            let expected = parse_head(input, &LIMITS);
            let read = parser.parse(input, &LIMITS);
            assert_eq!(read, expected, "{}", input.escape_ascii());
            if read == Ok(None) {
                parser = HeadParser::default();
            }
        }
    }
}

/// Compares the verdict on each head that differs in one byte with that of a new parser.
#[test]
fn a_cached_head_gives_the_verdict_of_a_new_parser() {
    let trace = "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for headers in [
        format!("Content-Length: 50\r\n{trace}"),
        format!("{trace}\r\nX: a\r\ncontent-length:\t50 \r\nUcall-Timeout-Ms: 5"),
        "Expect: 100-continue\r\nContent-Length: 1".to_owned(),
        "Content-Length: 0".to_owned(),
        format!("{trace}\r\n{trace}"),
        format!("Cookie: a=1; b=2\r\nContent-Length: 50\r\n{trace}"),
        "Cookie: a=1\r\ncookie: \r\nContent-Length: 50\r\nX: a".to_owned(),
    ] {
        let mut head = with(&headers);
        let mut parser = HeadParser::default();
        (0..2).for_each(|_| assert!(parser.parse(&head, &LIMITS).is_ok()));
        assert!(parser.match_cached_head(&head).is_some());
        for at in 0..head.len() {
            let before = head[at];
            for byte in 0..=u8::MAX {
                head[at] = byte;
                let read = parser.clone().parse(&head, &LIMITS);
                assert_eq!(read, parse_head(&head, &LIMITS), "{}", head.escape_ascii());
            }
            head[at] = before;
        }
    }
}

#[test]
fn a_cached_head_matches_other_lengths_traces_and_cookies() {
    let head = |length, value| {
        with(&format!("Cookie: id={value}\r\nContent-Length: {length}\r\nTraceparent: {value}"))
    };
    let mut parser = HeadParser::default();
    for _ in 0..2 {
        parser.parse(&head(64, "00-1-2-01"), &LIMITS).unwrap();
    }
    let other = head(65, "00-3-4-00");
    let matched = parser.match_cached_head(&other);
    assert_eq!(matched, parse_head(&other, &LIMITS).unwrap());
    assert_eq!(matched.unwrap().body(), BodyLength::Length(65));
    assert_eq!(parser.match_cached_head(&head(640, "00-3-4-00")), None);
}
