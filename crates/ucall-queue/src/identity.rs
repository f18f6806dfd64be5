//! Who speaks: the communicator, and which life of it.
#![forbid(unsafe_code)]

use std::fmt;

/// The id of a communicator: the 16 bytes of a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 16]);

impl fmt::Display for Identity {
    /// As a UUID is written.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&position) {
                formatter.write_str("-")?;
            }
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

/// A random number that one side of a session draws when the session begins, and tells to the other
/// side alone. So it is the secret of that session: whoever knows it took part, and a communicator
/// that was started again with the same id does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// That of somebody who was never met.
    pub const UNKNOWN: Self = Self(0);

    /// Whether the two are one, in a time that tells nothing of how they differ.
    pub(crate) fn constant_time_eq(self, other: Self) -> bool {
        std::hint::black_box(self.0 ^ other.0) == 0
    }
}
