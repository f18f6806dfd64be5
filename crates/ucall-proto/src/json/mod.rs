//! JSON text, read and written exactly as RFC 8259 says, and never as a tree.
//!
//! A document is scanned once, which proves it well-formed and finds its end (`scan`); one that
//! comes in pieces is followed by `stream` until it is whole. What was proven is then read in
//! place by a [`Reader`] and built straight into the values of the language that is called.

mod read;
pub(crate) mod scan;
pub(crate) mod stream;
mod text;
mod write;

pub use read::{Kind, Number, Reader};
pub use text::Text;
pub use write::{write_f64, write_i64, write_string};

/// Why text is no JSON document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It ends before the document does.
    Incomplete,
    /// It breaks the grammar, holds a lone surrogate, or is not UTF-8.
    Invalid,
    /// It nests deeper than the limit.
    TooDeep,
}
