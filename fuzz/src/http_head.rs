//! Heads of requests.

use ucall_proto::http1::invariants::check_head;
use ucall_proto::http1::{HeadLimits, HeadParser, parse_head};

use crate::random::Random;

/// A head is the same however it was cut, and whatever its parser has read before.
///
/// # Panics
/// When it is not.
pub fn run(input: &[u8]) {
    let (mut random, head) = Random::of_input(input);
    let cuts = random.cuts(head.len());
    let limits = HeadLimits::default();
    check_head(head, &cuts, &limits);
    check_head(
        head,
        &cuts,
        &HeadLimits { bytes_max: random.below(200), headers_max: 4, ..HeadLimits::default() },
    );
    check_cached(head, &mut random, &limits);
}

/// A parser that has cached a head must distinguish it from the same head with one byte changed or
/// removed.
fn check_cached(head: &[u8], random: &mut Random, limits: &HeadLimits) {
    let mut parser = HeadParser::default();
    for _ in 0..3 {
        let whole = parse_head(head, limits);
        assert_eq!(parser.parse(head, limits), whole);
        if !matches!(whole, Ok(Some(_))) {
            return;
        }
    }
    let mut other = head.to_vec();
    let at = random.below(other.len());
    match random.below(3) {
        0 => other[at] = random.below(256) as u8,
        1 => other.truncate(at),
        _ => other.insert(at, random.below(256) as u8),
    }
    assert_eq!(parser.parse(&other, limits), parse_head(&other, limits));
}
