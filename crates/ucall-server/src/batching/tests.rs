//! Tests of a batcher on a clock that they move.

mod comparison;
mod properties;
mod rules;
mod simulator;

use std::time::Instant;

use super::HasSlot;

/// A moment to begin at.
fn origin() -> Instant {
    Instant::now()
}

impl HasSlot for u32 {
    fn slot(self) -> usize {
        self as usize
    }
}

impl HasSlot for usize {
    fn slot(self) -> usize {
        self
    }
}
