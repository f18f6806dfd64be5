//! Tests of a batcher on a clock that they move.

mod comparison;
mod properties;
mod rules;
mod simulator;

use std::time::Instant;

/// A moment to begin at.
fn origin() -> Instant {
    Instant::now()
}
