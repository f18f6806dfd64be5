//! The validator of documents that arrive in pieces, compared with the scan of the whole.

use ucall_proto::json::{DocumentStream, JsonError, validate};

use crate::random::Random;

const NESTING_MAX: usize = 8;

/// The stream and the scan give the same verdict, at the same byte, however the text is split.
///
/// # Panics
/// If they do not.
pub fn run(input: &[u8]) {
    let (mut random, text) = Random::of_input(input);
    // Only objects and arrays have an end of their own.
    let Some(b'{' | b'[') = text.first() else { return };
    let by_byte = scan(text.chunks(1));
    let pieces = random.pieces(text);
    assert_eq!(scan(pieces), by_byte);
    assert_eq!(scan([text]), by_byte);
    // Only the scan validates UTF-8.
    let is_utf8 = |text| std::str::from_utf8(text).is_ok();
    match by_byte {
        Ok(len) => {
            let verdict = if is_utf8(&text[..len]) { Ok(()) } else { Err(JsonError::Invalid) };
            assert_eq!(validate(&text[..len], NESTING_MAX), verdict);
        }
        // What a prefix is refused for, the whole is refused for.
        Err(fault) => assert_eq!(validate(text, NESTING_MAX), Err(fault)),
    }
}

/// Where the document ends, or why it does not.
fn scan<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<usize, JsonError> {
    let mut stream = DocumentStream::new();
    let mut before = 0;
    for piece in pieces {
        if let Some(len) = stream.scan(piece, NESTING_MAX)? {
            return Ok(before + len);
        }
        before += piece.len();
    }
    Err(JsonError::Incomplete)
}
