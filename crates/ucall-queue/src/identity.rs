//! The id of a communicator, and the secret of each of its sessions.
#![forbid(unsafe_code)]

use std::fmt;

/// The id of a communicator: the 16 bytes of a UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 16]);

impl fmt::Display for Identity {
    /// Formats it as a UUID.
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

/// A random number that each side of a session draws when the session begins and sends to the other
/// side alone. It is the secret of that session: a restarted communicator with the same id does not
/// know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// That of a peer without an earlier session.
    pub const UNKNOWN: Self = Self(0);

    /// Compares in a time that does not depend on the values.
    pub(crate) fn constant_time_eq(self, other: Self) -> bool {
        std::hint::black_box(self.0 ^ other.0) == 0
    }
}
