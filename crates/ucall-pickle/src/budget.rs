//! Limits on memory, hashing and nesting, and the budget of one pickle.

use crate::error::Error;

/// Bytes and hashes that a pickle of any length may use.
const BASE: u64 = 1 << 20;

/// Values that a pickle of any length may have.
const VALUES: u64 = 1 << 24;

/// The limits of one pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Levels of nested values.
    pub depth_max: u16,
    /// Bytes of objects per byte of the pickle, in addition to 1 MiB.
    pub expansion_max: u32,
    /// Keys of one dict, or members of one set, that have the same hash.
    pub collisions_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth_max: 128, expansion_max: 128, collisions_max: 100 }
    }
}

impl Limits {
    /// The values that a pickle of this length may have. A shared value counts once per reference,
    /// because printing or comparing the result visits it that often.
    pub(crate) fn values_max(&self, pickle_bytes: usize) -> u64 {
        let more = u64::from(self.expansion_max).saturating_mul(pickle_bytes as u64);
        VALUES.saturating_add(more)
    }
}

/// The bytes and hashes that one pickle may still use.
#[derive(Debug)]
pub struct Budget {
    bytes: u64,
    hashes: u64,
}

impl Budget {
    /// The budget of a pickle of this length: 1 MiB plus `expansion_max` times the length, in bytes
    /// of memory and in hashes of small integers.
    pub fn new(limits: &Limits, pickle_bytes: usize) -> Self {
        let whole = u64::from(limits.expansion_max).saturating_mul(pickle_bytes as u64);
        let whole = whole.saturating_add(BASE);
        Self { bytes: whole, hashes: whole }
    }

    /// Charges memory before it is allocated.
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Result<(), Error> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Error::Memory)?;
        Ok(())
    }

    /// Charges hashes before they are computed.
    #[inline]
    pub fn hash(&mut self, hashes: u64) -> Result<(), Error> {
        self.hashes = self.hashes.checked_sub(hashes).ok_or(Error::Hashing)?;
        Ok(())
    }
}
