//! Lets the streams of all upstreams take turns, so that other calls do not wait for many of them.
//!
//! What a turn of the worker reads of streams is limited. What arrives beyond that waits at its
//! connection, which is not read meanwhile, and is handled in the next turns: one piece of a
//! connection after another, in the order in which they began to wait.

use std::collections::VecDeque;

use crate::places::Place;

/// Bytes of streams in one turn, besides one piece. They take about as long as a hundred calls.
pub(crate) const TURN_BYTES: usize = 128 * 1024;

/// The streams that wait for a turn.
#[derive(Debug, Default)]
pub(crate) struct StreamTurns {
    /// Bytes of this turn.
    bytes: usize,
    waiting: VecDeque<Place>,
}

impl StreamTurns {
    /// Whether so many bytes may be handled in this turn. If not, the connection gets in line.
    pub(crate) fn take(&mut self, place: Place, bytes: usize) -> bool {
        let has_turn = self.waiting.is_empty() && self.bytes < TURN_BYTES;
        match has_turn {
            true => self.bytes += bytes,
            false => self.waiting.push_back(place),
        }
        has_turn
    }

    /// A connection gets in line.
    pub(crate) fn enqueue(&mut self, place: Place) {
        self.waiting.push_back(place);
    }

    /// The next connection in line, if this turn may read more.
    pub(crate) fn next(&mut self) -> Option<Place> {
        (self.bytes < TURN_BYTES).then(|| self.waiting.pop_front()).flatten()
    }

    /// Counts what was handled of the last one.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Whether another turn is due.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn end_turn(&mut self) {
        self.bytes = 0;
    }
}
