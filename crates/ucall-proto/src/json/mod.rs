//! Reads and writes JSON text (RFC 8259) without building a tree.
//!
//! `scan` validates a document in one pass and finds its end. `fast_path` does the same for the
//! forms that most clients send, and returns `None` for others. `stream` validates a document that
//! arrives in pieces, byte by byte. A [`Reader`] then reads the valid text in place, and the layer
//! above builds its values from that.

mod double;
pub(crate) mod fast_path;
mod members;
mod open_containers;
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
pub use write::{is_plain_ascii, write_f32, write_f64, write_i64, write_string};

/// Why a text is not a JSON document.
///
/// As wide as a position in the text, so that a `Result` of either is returned in two registers.
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
