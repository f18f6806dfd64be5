//! What one pickle may cost.

use crate::error::Error;

/// What every pickle may take, however short it is.
const BASE: u64 = 1 << 20;

/// Values that every pickle may have.
const VALUES: u64 = 1 << 24;

/// What one pickle may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Levels of nesting.
    pub depth_max: u16,
    /// Bytes of objects for each byte of the pickle, beside 1 MiB.
    pub expansion_max: u32,
    /// Keys of one dict, or members of one set, that have the same hash.
    pub alike_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth_max: 1000, expansion_max: 128, alike_max: 100 }
    }
}

impl Limits {
    /// Values in a pickle of this many bytes, each counted as often as it is reached: whoever
    /// prints it or compares it walks through all of them.
    pub(crate) fn values_max(&self, pickle_bytes: usize) -> u64 {
        let more = u64::from(self.expansion_max).saturating_mul(pickle_bytes as u64);
        VALUES.saturating_add(more)
    }
}

/// What is left of what one pickle may cost.
#[derive(Debug)]
pub struct Budget {
    bytes: u64,
    hashes: u64,
}

impl Budget {
    /// For a pickle of this many bytes: 1 MiB and `expansion_max` bytes for each of them, and as
    /// many hashes of small integers.
    pub fn new(limits: &Limits, pickle_bytes: usize) -> Self {
        let whole = u64::from(limits.expansion_max).saturating_mul(pickle_bytes as u64);
        let whole = whole.saturating_add(BASE);
        Self { bytes: whole, hashes: whole }
    }

    /// Charges for memory, before it is allocated.
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Result<(), Error> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Error::Memory)?;
        Ok(())
    }

    /// Charges for hashing, before it is done.
    #[inline]
    pub fn hash(&mut self, hashes: u64) -> Result<(), Error> {
        self.hashes = self.hashes.checked_sub(hashes).ok_or(Error::Hashing)?;
        Ok(())
    }

    /// Bytes that may still be allocated.
    pub fn bytes_left(&self) -> u64 {
        self.bytes
    }
}
