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

pub use members::Member;
pub(crate) use members::{FirstMembers, MEMBERS_MAX, Noted};
pub use read::{Number, Reader, ValueKind};
pub use scan::{collect_members, validate};
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
