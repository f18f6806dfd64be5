//! What must hold for any bytes at all. The property tests and the fuzz targets call these.

use super::{
    ChunkedDecoder, ChunkedLimits, Head, HeadLimits, HeadParser, HttpError, Progress, parse_head,
};

/// Parses `input` at once, and again in pieces that end at `cuts`. Both must agree, and more bytes
/// must not change a verdict.
///
/// # Panics
/// If they do not.
pub fn check_head(input: &[u8], cuts: &[usize], limits: &HeadLimits) {
    let whole = parse_head(input, limits);
    check_outcome(input, &whole, limits);
    let mut parser = HeadParser::default();
    for end in ends(input, cuts) {
        let seen = &input[..end];
        let now = parse_head(seen, limits);
        let resumed = parser.parse(seen, limits);
        match &now {
            Ok(None) => assert_eq!(resumed, Ok(None)),
            Ok(Some(head)) => {
                assert_eq!(resumed.as_ref(), Ok(&Some(*head)));
                assert_eq!(whole.as_ref(), Ok(&Some(*head)));
                return;
            }
            // A resumed parser reads a line only when it is complete, or cannot become complete.
            Err(_) => {
                assert!(whole.is_err());
                assert!(seen.len() < limits.bytes_max || resumed == now);
            }
        }
        if resumed.is_err() {
            assert!(now.is_err() && whole.is_err());
            return;
        }
    }
}

fn check_outcome(input: &[u8], whole: &Result<Option<Head<'_>>, HttpError>, limits: &HeadLimits) {
    match whole {
        Ok(Some(head)) => {
            assert!(head.len() <= input.len() && head.len() <= limits.bytes_max);
            assert!(head.headers().count() <= limits.headers_max);
            assert!(input[..head.len()].ends_with(b"\r\n\r\n"));
            assert!(head.headers().all(|(name, _)| !name.is_empty()));
        }
        Ok(None) => assert!(input.len() < limits.bytes_max),
        Err(error) => assert!((400..=505).contains(&error.status())),
    }
}

/// Decodes `input` as a chunked body whole, and again in pieces that end at `cuts`; the two must
/// agree in the body, the bytes used and the error.
///
/// # Panics
/// When they do not.
pub fn check_chunked(input: &[u8], cuts: &[usize], limits: &ChunkedLimits) {
    let mut body = Vec::new();
    let whole = ChunkedDecoder::default().decode(input, &mut body, limits);
    assert!(body.len() as u64 <= limits.body_bytes_max && body.len() <= input.len());
    let mut decoder = ChunkedDecoder::default();
    let mut pieces = Vec::new();
    let mut start = 0;
    for end in ends(input, cuts) {
        match decoder.decode(&input[start..end], &mut pieces, limits) {
            Ok(progress) if progress.is_done => {
                let consumed = start + progress.consumed;
                assert_eq!(whole, Ok(Progress { consumed, is_done: true }));
                assert_eq!(body, pieces);
                return;
            }
            Ok(progress) => assert_eq!(progress.consumed, end - start),
            Err(error) => {
                assert_eq!(whole, Err(error));
                return;
            }
        }
        start = end;
    }
    assert!(whole.is_ok_and(|whole| !whole.is_done && whole.consumed == input.len()));
    assert_eq!(body, pieces);
}

/// The cuts within `input`, in order, and its end.
fn ends(input: &[u8], cuts: &[usize]) -> Vec<usize> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
    ends.push(input.len());
    ends.sort_unstable();
    ends
}
