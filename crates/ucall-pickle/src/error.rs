//! Errors of the reader.

use std::fmt;

/// The reason why the reader refuses a pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// It ends within an operation, or before its STOP.
    Truncated,
    /// Bytes follow its STOP.
    Trailing,
    /// A length exceeds the rest of the pickle.
    Length,
    /// An operation that CPython's pickler does not write at protocol 5.
    Operation(u8),
    /// It does not begin with protocol 5.
    Protocol,
    /// An operation found too few values on the stack, or a mark among them.
    Stack,
    /// The memo has no such entry.
    Memo,
    /// An incomplete object is used where a complete one is required.
    Incomplete,
    /// An operation would change an object that does not accept it.
    Unchangeable,
    /// A global that is not a value, or a tuple with one, is used as a value.
    NotValue,
    /// A value is called.
    NotCallable,
    /// Values nest deeper than [`Limits::depth_max`](crate::Limits::depth_max).
    Depth,
    /// The objects need more memory than [`Limits`](crate::Limits) allow.
    Memory,
    /// The result has too many values; shared values count once per reference.
    Values,
    /// A key or member is not hashable, or not complete.
    Unhashable,
    /// Hashing and comparing the keys and members costs too much.
    Hashing,
    /// More keys or members of one container share a hash than
    /// [`Limits::collisions_max`](crate::Limits::collisions_max).
    Collisions,
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Truncated => "the pickle ends too early",
            Self::Trailing => "bytes follow the end of the pickle",
            Self::Length => "a length exceeds the rest of the pickle",
            Self::Operation(code) => {
                return write!(out, "operation 0x{code:02x} is not one of protocol 5");
            }
            Self::Protocol => "the pickle is not of protocol 5",
            Self::Stack => "an operation finds too few values on the stack",
            Self::Memo => "an index is not in the memo",
            Self::Incomplete => "an object is used before it is complete",
            Self::Unchangeable => "an operation changes an object that may not change",
            Self::NotValue => "a name is used as a value",
            Self::NotCallable => "a value is called that is not callable",
            Self::Depth => "values nest deeper than max_depth",
            Self::Memory => "the objects need more memory than max_expansion allows",
            Self::Values => "the pickle has too many values, counted once per reference",
            Self::Unhashable => "a key or member is not hashable",
            Self::Hashing => "the keys or members take too long to hash",
            Self::Collisions => {
                "more keys or members of one container share a hash than max_collisions"
            }
        })
    }
}

impl std::error::Error for Error {}
