//! Decodes every body whole, byte by byte, from every split, and with bytes after it.

use proptest::prelude::*;

use super::splits;
use crate::http1::invariants::check_chunked;
use crate::http1::{ChunkedDecoder, ChunkedLimits, HttpError};

const LIMITS: ChunkedLimits = ChunkedLimits { body_bytes_max: 1000, overhead_bytes_max: 16 * 1024 };

/// Decodes `pieces` one after another: the body and how many bytes it took, or `None` when it
/// is not complete.
fn decode(pieces: &[&[u8]]) -> Result<Option<(Vec<u8>, usize)>, HttpError> {
    let mut decoder = ChunkedDecoder::default();
    let mut body = Vec::new();
    let mut consumed = 0;
    let mut is_done = false;
    for piece in pieces {
        let progress = decoder.decode(piece, &mut body, &LIMITS)?;
        assert!(progress.is_done || progress.consumed == piece.len());
        consumed += progress.consumed;
        is_done = progress.is_done;
    }
    Ok(is_done.then_some((body, consumed)))
}

/// Decodes `input` in every split.
#[track_caller]
fn decode_at_every_cut(input: &[u8]) -> Result<Option<Vec<u8>>, HttpError> {
    let whole = decode(&[input]);
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(decode(&bytes), whole, "byte by byte");
    for split in splits(input.len()) {
        let (start, end) = input.split_at(split);
        assert_eq!(decode(&[start, end]), whole, "split at {split}");
        for second in splits(end.len()) {
            let (middle, end) = end.split_at(second);
            assert_eq!(decode(&[start, middle, end]), whole, "split at {split}, {second}");
        }
    }
    if let Ok(Some((_, consumed))) = &whole {
        assert_eq!(*consumed, input.len());
        let longer = [input, b"\0POST / HTTP/1.1"].concat();
        assert_eq!(decode(&[&longer]), whole, "with bytes behind it");
        for end in 0..input.len() {
            assert_eq!(decode(&[&input[..end]]), Ok(None), "prefix of {end}");
        }
    }
    whole.map(|done| done.map(|(body, _)| body))
}

#[test]
fn decodes() {
    for (input, body) in [
        ("0\r\n\r\n", ""),
        ("0000000000000000\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("a\r\n0123456789\r\nA\r\n\r\n\r\n\0\n:;0\r\r\n0\r\n\r\n", "0123456789\r\n\r\n\0\n:;0\r"),
        ("5;x=y\r\nhello\r\n0;z\r\n\r\n", "hello"),
        ("5; x = \"; \t\"\r\nhello\r\n0\r\n\r\n", "hello"),
        ("2;a\r\nhi\r\n0;a=b;c=\"\";!#=1 ; d\r\n\r\n", "hi"),
        ("2;\t a\t = \t\"q\\\"x\\\\\u{e9}\"\t;b\r\nhi\r\n0\r\n\r\n", "hi"),
        ("1\r\na\r\n01\r\nb\r\n0001\r\nc\r\n00\r\n\r\n", "abc"),
        ("1\r\na\r\n0\r\nX-Sum: 5\r\nContent-Length: 7\r\nempty:\r\n\r\n", "a"),
    ] {
        assert_eq!(decode_at_every_cut(input.as_bytes()), Ok(Some(body.into())), "{input:?}");
    }
}

#[test]
fn refuses() {
    use HttpError::{
        BodyTooLarge, CarriageReturnAlone, ChunkExtensionMalformed, ChunkSizeMalformed,
        ChunkUnterminated, ControlCharacter, HeaderFolded, HeaderNameMalformed, LineFeedAlone,
        SpaceBeforeColon,
    };
    for (input, error) in [
        ("\r\n", ChunkSizeMalformed),
        (";x\r\n", ChunkSizeMalformed),
        ("0x5\r\nhello\r\n", ChunkSizeMalformed),
        ("1_0\r\n", ChunkSizeMalformed),
        (" 5\r\nhello\r\n", ChunkSizeMalformed),
        ("5 \r\nhello\r\n", ChunkSizeMalformed),
        ("5 ;x\r\nhello\r\n", ChunkSizeMalformed),
        ("5\t\r\nhello\r\n", ChunkSizeMalformed),
        ("+5\r\nhello\r\n", ChunkSizeMalformed),
        ("-5\r\nhello\r\n", ChunkSizeMalformed),
        ("5.\r\nhello\r\n", ChunkSizeMalformed),
        ("g\r\n", ChunkSizeMalformed),
        ("10000000000000000\r\n", ChunkSizeMalformed),
        ("00000000000000005\r\nhello\r\n", ChunkSizeMalformed),
        ("\0\r\n", ChunkSizeMalformed),
        ("5\nhello\r\n0\r\n\r\n", LineFeedAlone),
        ("\n", LineFeedAlone),
        ("5;x\nhello\r\n0\r\n\r\n", LineFeedAlone),
        ("5\rhello\r\n", CarriageReturnAlone),
        ("5\r\rhello\r\n", CarriageReturnAlone),
        ("5;x\ry\r\n", CarriageReturnAlone),
        ("5;\0\r\n", ControlCharacter),
        ("5;\r\n", ChunkExtensionMalformed),
        ("5; \r\n", ChunkExtensionMalformed),
        ("5;=x\r\n", ChunkExtensionMalformed),
        ("5;;x\r\n", ChunkExtensionMalformed),
        ("5;x;\r\n", ChunkExtensionMalformed),
        ("5;x \r\n", ChunkExtensionMalformed),
        ("5;x y\r\n", ChunkExtensionMalformed),
        ("5;x=\r\n", ChunkExtensionMalformed),
        ("5;x= \r\n", ChunkExtensionMalformed),
        ("5;x==y\r\n", ChunkExtensionMalformed),
        ("5;x=y \r\n", ChunkExtensionMalformed),
        ("5;x=y\"\r\n", ChunkExtensionMalformed),
        ("5;x=\"y\r\n", ChunkExtensionMalformed),
        ("5;x=\"y\\\r\n", ChunkExtensionMalformed),
        ("5;x=\"y\\\"\r\n", ChunkExtensionMalformed),
        ("5;x=\"y\"z\r\n", ChunkExtensionMalformed),
        ("5;x=\"y\" \r\n", ChunkExtensionMalformed),
        ("5;x=\"\0\"\r\n", ControlCharacter),
        ("5;\u{e9}\r\n", ChunkExtensionMalformed),
        ("5\r\nhello\n0\r\n\r\n", ChunkUnterminated),
        ("5\r\nhello0\r\n\r\n", ChunkUnterminated),
        ("5\r\nhello!\r\n0\r\n\r\n", ChunkUnterminated),
        ("5\r\nhello\r0\r\n\r\n", ChunkUnterminated),
        ("5\r\nhello\r\r\n0\r\n\r\n", ChunkUnterminated),
        ("5\r\nhello\r\n\r\n0\r\n\r\n", ChunkSizeMalformed),
        ("0\r\n\n", LineFeedAlone),
        ("0\r\n\r\r\n", CarriageReturnAlone),
        ("0\r\nX: a\n\r\n", LineFeedAlone),
        ("0\r\nX: a\r\r\n", CarriageReturnAlone),
        ("0\r\nX: a\0\r\n", ControlCharacter),
        ("0\r\nX : a\r\n", SpaceBeforeColon),
        ("0\r\n: a\r\n", HeaderNameMalformed),
        ("0\r\nX\r\n", HeaderNameMalformed),
        ("0\r\nX: a\r\n b\r\n\r\n", HeaderFolded),
        ("3e9\r\n", BodyTooLarge { limit: 1000 }),
        ("ffffffffffffffff\r\n", BodyTooLarge { limit: 1000 }),
        ("1\r\na\r\nffffffffffffffff\r\n", BodyTooLarge { limit: 1000 }),
        ("1\r\na\r\n3e8\r\n", BodyTooLarge { limit: 1000 }),
    ] {
        assert_eq!(decode_at_every_cut(input.as_bytes()), Err(error), "{input:?}");
    }
}

#[test]
fn takes_a_body_of_exactly_the_limit() {
    let data = "x".repeat(999);
    let input = format!("3e7\r\n{data}\r\n1\r\ny\r\n0\r\n\r\n");
    let (body, _) = decode(&[input.as_bytes()]).unwrap().unwrap();
    assert_eq!(body.len(), 1000);
}

#[test]
fn limits_extensions_and_trailers_together() {
    let error = HttpError::ChunkOverheadTooLarge { limit: LIMITS.overhead_bytes_max };
    let half = "e".repeat(LIMITS.overhead_bytes_max / 2 - 1);
    let extension = format!("1;{half}\r\na\r\n0\r\n");
    // A trailer counts whole: `X:` and CRLF are four bytes.
    let fits = format!("{extension}X:{}\r\n\r\n", &half[..half.len() - 3]);
    assert!(decode(&[fits.as_bytes()]).unwrap().is_some());
    let over = format!("{extension}X:{}\r\n\r\n", &half[..half.len() - 2]);
    assert_eq!(decode(&[over.as_bytes()]), Err(error));
    let many = "1;eeeeeeeeeeeeeee\r\na\r\n".repeat(1025 - 100);
    let limits = ChunkedLimits { overhead_bytes_max: 1024, ..LIMITS };
    let outcome = ChunkedDecoder::default().decode(many.as_bytes(), &mut Vec::new(), &limits);
    assert_eq!(outcome, Err(HttpError::ChunkOverheadTooLarge { limit: 1024 }));
    assert_eq!(error.status(), 400);
    let mut decoder = ChunkedDecoder::default();
    let endless = std::iter::repeat_n(b"a", 20_000)
        .find_map(|byte| decoder.decode(byte, &mut Vec::new(), &LIMITS).err());
    assert_eq!(endless, Some(HttpError::ChunkSizeMalformed));
}

#[test]
fn takes_memory_only_as_bytes_arrive() {
    let limits = ChunkedLimits { body_bytes_max: u64::MAX, ..LIMITS };
    let mut body = Vec::new();
    let mut decoder = ChunkedDecoder::default();
    decoder.decode(b"ffffffffffffffff\r\nabc", &mut body, &limits).unwrap();
    assert!(body.capacity() < 64);
    let mut decoder = ChunkedDecoder::default();
    decoder.decode(b"1\r\na\r\n", &mut body, &limits).unwrap();
    let overflow = decoder.decode(b"ffffffffffffffff\r\nabc", &mut body, &limits);
    assert_eq!(overflow, Err(HttpError::BodyTooLarge { limit: u64::MAX }));
}

#[test]
fn stays_done_and_stays_failed() {
    let mut decoder = ChunkedDecoder::default();
    let mut body = Vec::new();
    assert!(decoder.decode(b"0\r\n\r\n", &mut body, &LIMITS).unwrap().is_done);
    let after = decoder.decode(b"1\r\n", &mut body, &LIMITS).unwrap();
    assert_eq!((after.consumed, after.is_done), (0, true));
    let mut decoder = ChunkedDecoder::default();
    let error = decoder.decode(b"x", &mut body, &LIMITS).unwrap_err();
    assert_eq!(decoder.decode(b"0\r\n\r\n", &mut body, &LIMITS), Err(error));
    assert_eq!(decoder.decode(b"", &mut body, &LIMITS), Err(error));
}

const PIECES: &[&str] = &[
    "0",
    "1",
    "5",
    "a",
    "F",
    "10",
    "\r\n",
    "\r",
    "\n",
    ";",
    "x",
    "=",
    "\"",
    "\\",
    "hello",
    "5\r\nhello\r\n",
    "1\r\na\r\n",
    "0\r\n",
    "X: y\r\n",
    "0\r\n\r\n",
    " ",
    ":",
    "\0",
];

proptest! {
    #[test]
    fn any_bytes_keep_the_invariants(
        input in prop::collection::vec(any::<u8>(), 0..100),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        check_chunked(&input, &cuts, &LIMITS);
    }

    #[test]
    fn any_pieces_keep_the_invariants(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..16),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
        body_bytes_max in 0u64..20,
        overhead_bytes_max in 0usize..20,
    ) {
        let input = pieces.concat().into_bytes();
        check_chunked(&input, &cuts, &LIMITS);
        check_chunked(&input, &cuts, &ChunkedLimits { body_bytes_max, overhead_bytes_max });
    }
}
