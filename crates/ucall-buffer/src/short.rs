//! Comparing short bytes without a call.

/// Compares two byte strings of one length from `N` to `2 * N`: their first and last `N` bytes
/// cover all of them.
#[inline(always)]
#[must_use]
pub fn has_same_ends<const N: usize>(one: &[u8], other: &[u8]) -> bool {
    one.first_chunk::<N>() == other.first_chunk() && one.last_chunk::<N>() == other.last_chunk()
}
