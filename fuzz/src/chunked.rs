//! Bodies in chunks.

use ucall_proto::http1::ChunkedLimits;
use ucall_proto::http1::invariants::check_chunked;

use crate::random::Random;

/// A body is the same however it was cut, and never larger than allowed.
///
/// # Panics
/// When it is not.
pub fn run(input: &[u8]) {
    let (mut random, body) = Random::of_input(input);
    let cuts = random.cuts(body.len());
    check_chunked(body, &cuts, &ChunkedLimits::default());
    let small = ChunkedLimits {
        body_bytes_max: random.below(64) as u64,
        overhead_bytes_max: random.below(32),
    };
    check_chunked(body, &cuts, &small);
}
