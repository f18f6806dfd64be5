//! Why a pickle is refused.

use std::fmt;

/// Why a pickle is refused, whoever builds its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// It ends within an operation, or before its STOP.
    Truncated,
    /// Bytes follow its STOP.
    Trailing,
    /// A length points behind its end.
    Length,
    /// An operation that the pickler does not write at protocol 5.
    Operation(u8),
    /// It does not begin with protocol 5.
    Protocol,
    /// An operation found too few values on the stack, or a mark among them.
    Stack,
    /// The memo has nothing in that place, or the place is not the next.
    Memo,
    /// An object is used before it is complete.
    Incomplete,
    /// An operation would change an object that does not accept it.
    Unchangeable,
    /// A global, or a tuple that holds one, is used where only a value may be.
    NotValue,
    /// A value is called.
    NotCallable,
    /// Values nest deeper than [`Limits::depth_max`](crate::Limits::depth_max).
    Depth,
    /// Its objects would take more memory than [`Limits`](crate::Limits) allow.
    Memory,
    /// It has too many values, each counted as often as it is reached.
    Values,
    /// A key or member cannot be hashed, or is incomplete and so cannot be hashed yet.
    Unhashable,
    /// Its keys and members would take too long to hash and compare.
    Hashing,
    /// More keys or members have one hash than [`Limits::alike_max`](crate::Limits::alike_max).
    Alike,
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Truncated => "a pickle that ends too early",
            Self::Trailing => "a pickle with bytes behind its end",
            Self::Length => "a pickle with a length beyond its end",
            Self::Operation(code) => {
                return write!(out, "a pickle with operation 0x{code:02x}, which is not allowed");
            }
            Self::Protocol => "a pickle of a protocol other than 5",
            Self::Stack => "a pickle with too little on its stack",
            Self::Memo => "a pickle with a place in its memo that is empty or not the next",
            Self::Incomplete => "a pickle that uses an object before it is complete",
            Self::Unchangeable => "a pickle that changes an object that it may not change",
            Self::NotValue => "a pickle that uses a name as a value",
            Self::NotCallable => "a pickle that calls what cannot be called",
            Self::Depth => "a pickle with values that nest deeper than max_depth",
            Self::Memory => "a pickle whose objects take more memory than max_expansion allows",
            Self::Values => "a pickle with too many values, each counted as often as it is reached",
            Self::Unhashable => "a pickle with a key or member that cannot be hashed",
            Self::Hashing => "a pickle whose keys or members take too long to hash",
            Self::Alike => "a pickle with more keys or members of one hash than max_alike",
        })
    }
}

impl std::error::Error for Error {}
