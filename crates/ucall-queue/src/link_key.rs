//! The name of a link.
#![forbid(unsafe_code)]

/// Names a link of a session manager. A number is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkKey(pub(crate) u64);
