//! The messages of a peer that the program has not taken or acknowledged, if the peer wants that.
//!
//! They are kept as runs of consecutive numbers. So a program that acknowledges nothing, or all in
//! order, has one run however many messages it received. An acknowledgement out of order splits a
//! run, and a number without a message, which was cancelled or dropped, ends one.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;

/// With more runs than this, no further message is accepted from the peer.
const RUNS_MAX: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The first number of each run, by its last.
    runs: BTreeMap<u64, u64>,
    /// The session's thread was woken since it last read the first number.
    is_reported: bool,
    /// Why acknowledgements no longer reach the peer.
    closed: Option<Failure>,
}

impl Unacknowledged {
    /// Adds the message of this number, which follows all before.
    pub(crate) fn add(&self, number: u64) {
        let mut state = self.lock();
        let run = state.runs.last_entry().filter(|run| run.key() + 1 == number);
        let first = run.map_or(number, OccupiedEntry::remove);
        state.runs.insert(number, first);
    }

    /// Acknowledges the message of this number; again does nothing. Returns whether the session's
    /// thread has to be woken.
    ///
    /// # Errors
    /// The session is over and the message was not acknowledged before.
    pub(crate) fn acknowledge(&self, number: u64) -> Result<bool, Failure> {
        let mut state = self.lock();
        let run = state.runs.range(number..).next().map(|(&last, &first)| (first, last));
        let Some((first, last)) = run.filter(|&(first, _)| first <= number) else {
            return Ok(false);
        };
        if let Some(failure) = &state.closed {
            return Err(failure.clone());
        }
        let is_oldest = state.runs.first_key_value().is_some_and(|(&oldest, _)| oldest == last);
        state.runs.remove(&last);
        if first < number {
            state.runs.insert(number - 1, first);
        }
        if number < last {
            state.runs.insert(last, number + 1);
        }
        let is_news = is_oldest && first == number;
        Ok(is_news && !std::mem::replace(&mut state.is_reported, true))
    }

    /// The first number that is not acknowledged. Only the session's thread reads it.
    pub(crate) fn first(&self) -> Option<u64> {
        let mut state = self.lock();
        state.is_reported = false;
        state.runs.first_key_value().map(|(_, &first)| first)
    }

    /// The last number up to which all messages, `received` at most, are acknowledged.
    pub(crate) fn settled(&self, received: u64) -> u64 {
        self.first().map_or(received, |first| first - 1)
    }

    /// Whether no further message may be accepted.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().runs.len() > RUNS_MAX
    }

    /// Refuses further acknowledgements. The first reason stands.
    pub(crate) fn close(&self, failure: Failure) {
        self.lock().closed.get_or_insert(failure);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u64]) -> Unacknowledged {
        let unacknowledged = Unacknowledged::default();
        numbers.iter().for_each(|&number| unacknowledged.add(number));
        unacknowledged
    }

    #[test]
    fn the_first_number_moves_past_what_was_acknowledged_before_it() {
        let unacknowledged = of(&[1, 2, 3, 4]);
        assert_eq!(unacknowledged.acknowledge(3), Ok(false));
        assert_eq!(unacknowledged.acknowledge(2), Ok(false));
        assert_eq!(unacknowledged.first(), Some(1));
        assert_eq!(unacknowledged.acknowledge(1), Ok(true));
        assert_eq!(unacknowledged.first(), Some(4));
        assert_eq!(unacknowledged.acknowledge(4), Ok(true));
        assert_eq!(unacknowledged.first(), None);
    }

    #[test]
    fn a_second_acknowledgement_does_nothing() {
        let unacknowledged = of(&[1, 2, 3]);
        for _ in 0..2 {
            unacknowledged.acknowledge(2).unwrap();
        }
        assert_eq!(unacknowledged.first(), Some(1));
        unacknowledged.acknowledge(1).unwrap();
        assert_eq!(unacknowledged.first(), Some(3));
        unacknowledged.close(Failure::Closed);
        assert_eq!(unacknowledged.acknowledge(2), Ok(false));
        assert_eq!(unacknowledged.acknowledge(3), Err(Failure::Closed));
        assert_eq!(unacknowledged.first(), Some(3));
    }

    #[test]
    fn a_number_without_a_message_is_not_waited_for() {
        let unacknowledged = of(&[1, 4, 5]);
        unacknowledged.acknowledge(4).unwrap();
        unacknowledged.acknowledge(1).unwrap();
        assert_eq!(unacknowledged.first(), Some(5));
    }

    #[test]
    fn the_thread_is_woken_once_until_it_asks() {
        let unacknowledged = of(&[1, 2, 3]);
        assert_eq!(unacknowledged.acknowledge(1), Ok(true));
        assert_eq!(unacknowledged.acknowledge(2), Ok(false));
        assert_eq!(unacknowledged.first(), Some(3));
        assert_eq!(unacknowledged.acknowledge(3), Ok(true));
    }

    #[test]
    fn runs_are_bounded_and_messages_in_one_run_are_not() {
        let unacknowledged = Unacknowledged::default();
        let last = RUNS_MAX as u64 * 2 + 1;
        (1..=last).for_each(|number| unacknowledged.add(number));
        assert!(!unacknowledged.is_full());
        for number in (2..=last - 1).step_by(2) {
            assert!(!unacknowledged.is_full(), "at {number}");
            unacknowledged.acknowledge(number).unwrap();
        }
        assert!(unacknowledged.is_full());
        unacknowledged.acknowledge(1).unwrap();
        assert!(!unacknowledged.is_full());
    }
}
