//! Comparing short bytes without a call.

/// Whether two runs of bytes, both of one length from `N` to `2 * N`, are the same: their first and
/// their last `N` are all of them.
#[inline(always)]
#[must_use]
pub fn has_same_ends<const N: usize>(one: &[u8], other: &[u8]) -> bool {
    one.first_chunk::<N>() == other.first_chunk() && one.last_chunk::<N>() == other.last_chunk()
}
