//! When a sweep returns freed memory to the system.
//!
//! The allocator may keep the memory of large requests for ever. While they go on, the next ones
//! use it again, so it is returned when a whole interval between two sweeps has held much less
//! than one before it.

/// Less is kept.
const RETURNED_BYTES_MIN: usize = 64 << 20;

/// What a worker has held at most, as sweeps have found it.
#[derive(Debug, Default)]
pub(crate) struct FreedMemory {
    /// The most since memory was returned.
    peak: usize,
}

impl FreedMemory {
    /// Takes the most that was held since the last sweep; whether much less than before.
    pub(crate) fn is_much(&mut self, peak: usize) -> bool {
        self.peak = self.peak.max(peak);
        let is_much = self.peak - peak >= RETURNED_BYTES_MIN;
        if is_much {
            self.peak = peak;
        }
        is_much
    }

    /// Whether a sweep may find so, if this was held since the last one, and is held now.
    pub(crate) fn may_be_much(&self, peak: usize, bytes: usize) -> bool {
        self.peak.max(peak).saturating_sub(bytes) >= RETURNED_BYTES_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn memory_is_returned_once_an_interval_has_held_much_less() {
        let mut freed = FreedMemory::default();
        let sweeps = [
            (500, false),
            (480, false),
            (437, false),
            (436, true),
            (400, false),
            (0, true),
            (63, false),
            (0, false),
            (64, false),
            (0, true),
        ];
        for (mib, expected) in sweeps {
            assert_eq!(freed.is_much(mib * MIB), expected, "{mib}");
        }
        assert!(!freed.may_be_much(64 * MIB, MIB) && freed.may_be_much(64 * MIB, 0));
    }
}
