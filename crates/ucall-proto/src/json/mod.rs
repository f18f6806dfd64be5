//! JSON text, read and written as RFC 8259 defines it, and never as a tree.
//!
//! `scan` validates a document in one pass and finds its end. `fast_path` does the same for the
//! form that most programs write, and returns nothing for any other. `stream` validates a document
//! that arrives in pieces, byte by byte. A [`Reader`] then reads the valid text in place, and the
//! language above builds its values from that.

pub(crate) mod fast_path;
mod members;
mod read;
pub(crate) mod scan;
pub(crate) mod stream;
mod text;
mod write;

pub(crate) use members::{FirstMembers, MEMBERS_MAX, Noted};
pub use members::{Member, collect_members};
pub use read::{Number, Reader, ValueKind};
pub use stream::DocumentStream;
pub use text::Text;
pub(crate) use write::extend_short;
pub use write::{write_f64, write_i64, write_string};

/// Why text is no JSON document.
///
/// As wide as a place in the text, so that a `Result` of either comes back in two registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum JsonError {
    /// It ends before the document does.
    Incomplete,
    /// It breaks the grammar, holds a lone surrogate, or is not UTF-8.
    Invalid,
    /// It nests deeper than the limit.
    TooDeep,
}

/// Proves that all of `text`, but for white space around it, is one JSON document, so that a
/// [`Reader`] may read it.
///
/// # Errors
/// What is wrong with it; text behind the document is [`JsonError::Invalid`].
pub fn validate(text: &[u8], nesting_max: usize) -> Result<(), JsonError> {
    let mut scanner = scan::Scanner::new(text, nesting_max);
    scanner.value()?;
    scanner.finish()?;
    match scanner.peek() {
        Err(JsonError::Incomplete) => Ok(()),
        _ => Err(JsonError::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whole_document_is_valid() {
        for valid in ["1", " {\"a\":[]}\n", "\"é\"", "null"] {
            assert_eq!(validate(valid.as_bytes(), 2), Ok(()), "{valid}");
        }
    }

    #[test]
    fn trailing_text_is_invalid() {
        assert_eq!(validate(b" [1, \"\xc3\xa9\"]\r\n", 1), Ok(()));
        assert_eq!(validate(b"[1] 2", 1), Err(JsonError::Invalid));
        assert_eq!(validate(b"[\"\xff\"]", 1), Err(JsonError::Invalid));
        assert_eq!(validate(b"[[1]]", 1), Err(JsonError::TooDeep));
        assert_eq!(validate(b"[1", 1), Err(JsonError::Incomplete));
        assert_eq!(validate(b"", 1), Err(JsonError::Incomplete));
    }
}
