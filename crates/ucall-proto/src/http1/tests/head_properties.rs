//! What holds for every head, good, bad or neither: made of pieces, so that most are nearly good.

use proptest::prelude::*;

use crate::http1::HeadLimits;
use crate::http1::invariants::check_head;

const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 16 * 1024, headers_max: 100, negotiates_coding: false };

/// Pieces that make heads, good and bad, more often than plain chance would.
const PIECES: &[&str] = &[
    "POST / HTTP/1.1\r\n",
    "GET /x HTTP/1.0\r\n",
    "POST",
    " ",
    "/",
    "HTTP/1.1",
    "\r\n",
    "\r",
    "\n",
    "Host: a\r\n",
    "Host",
    ":",
    "Content-Length: 5\r\n",
    "Content-Length: ",
    "5",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: ",
    "chunked",
    ",",
    "Connection: close\r\n",
    "X: y\r\n",
    "\t",
    "\0",
    "\u{e9}",
    "\r\n\r\n",
    "http://b/",
    "*",
    "{",
    "0",
];

/// Lines of which most heads made from them are good.
const LINES: &[&str] = &[
    "Content-Length: 5\r\n",
    "Content-Type: application/json\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "Origin: null\r\n",
    "Transfer-Encoding: chunked\r\n",
    "X:\r\n",
    "X: \t y \t\r\n",
];

fn lines() -> impl Strategy<Value = Vec<u8>> {
    let start = prop::sample::select(&[
        "POST / HTTP/1.1\r\nHost: a\r\n",
        "\r\nOPTIONS http://b/ HTTP/1.1\r\nHost: a:1\r\n",
        "GET /x HTTP/1.0\r\n",
    ]);
    (start, prop::collection::vec(prop::sample::select(LINES), 0..5))
        .prop_map(|(start, lines)| format!("{start}{}\r\n{{}}", lines.concat()).into_bytes())
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(PIECES), 0..16)
        .prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_bytes_keep_the_invariants(
        input in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        check_head(&input, &cuts, &LIMITS);
    }

    #[test]
    fn any_pieces_keep_the_invariants(
        input in pieces(),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
        bytes_max in 0usize..120,
        headers_max in 0usize..4,
    ) {
        check_head(&input, &cuts, &LIMITS);
        check_head(&input, &cuts, &HeadLimits { bytes_max, headers_max, ..LIMITS });
        let every_byte: Vec<usize> = (0..input.len()).collect();
        check_head(&input, &every_byte, &LIMITS);
    }

    #[test]
    fn mutated_lines_keep_the_invariants(
        mut input in lines(),
        change in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        bytes_max in 20usize..200,
    ) {
        if let Some((at, byte)) = change {
            let at = at.index(input.len());
            input[at] = byte;
        }
        let every_byte: Vec<usize> = (0..input.len()).collect();
        check_head(&input, &every_byte, &LIMITS);
        check_head(&input, &every_byte, &HeadLimits { bytes_max, headers_max: 4, ..LIMITS });
    }

    #[test]
    fn one_changed_byte_of_a_valid_head_keeps_them(at in 0usize..93, byte in any::<u8>()) {
        let mut input = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:8545\r\nContent-Type: \
            application/json\r\nContent-Length: 66\r\n\r\n".to_vec();
        input[at] = byte;
        let every_byte: Vec<usize> = (0..input.len()).collect();
        check_head(&input, &every_byte, &LIMITS);
    }
}
