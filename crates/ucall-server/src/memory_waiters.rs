//! Connections that wait for memory until others release some, and those whose bodies are decoded
//! in several turns.
//!
//! Thousands may wait for long, so they are in an ordered set of which a turn inspects the first.
//! One of them may exceed the budget, so that connections that wait for each other's memory all
//! finish.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use ucall_engine::Id;
use ucall_proto::LoadState;

/// Connections that resume in one turn, at a microsecond or two each.
const RESUMED_PER_TURN: usize = 64;
/// Connections that decode a piece of a body in one turn, at a tenth of a millisecond each.
const DECODED_PER_TURN: usize = 8;

/// The waiting connections, ordered by the bytes they hold. The largest resumes first, because it
/// will release most.
#[derive(Debug, Default)]
pub(crate) struct MemoryWaiters {
    waiting: BTreeSet<(usize, Id)>,
    /// The bytes that each held when it began to wait.
    held: BTreeMap<Id, usize>,
    /// The connection that may exceed the budget.
    exempt: Option<Id>,
    /// The connections whose bodies are decoded.
    decoding: VecDeque<Id>,
    /// Those of them.
    is_queued: HashSet<Id>,
    /// How many there are of both.
    count: usize,
}

/// How a connection may resume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resume {
    /// Within the budget.
    WithinBudget(Id),
    /// Over the budget, as the only connection.
    OverBudget(Id),
}

impl MemoryWaiters {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a body is decoded in the next turn, whatever memory there is.
    pub(crate) fn is_decoding(&self) -> bool {
        !self.decoding.is_empty()
    }

    /// How many connections this turn may resume.
    pub(crate) fn turn_len(&self) -> usize {
        self.waiting.len().min(RESUMED_PER_TURN)
    }

    /// The connection that was last allowed to exceed the budget.
    pub(crate) fn exempt(&self) -> Option<Id> {
        self.exempt
    }

    /// Adds a connection that holds `bytes`, unless it waits already.
    #[cold]
    pub(crate) fn add(&mut self, id: Id, bytes: usize) {
        let bytes = *self.held.entry(id).or_insert(bytes);
        self.waiting.insert((bytes, id));
        self.recount();
    }

    /// Removes a connection that closes.
    pub(crate) fn remove(&mut self, id: Id) {
        if let Some(bytes) = self.held.remove(&id) {
            self.waiting.remove(&(bytes, id));
            self.recount();
        }
        if self.is_queued.remove(&id) {
            self.decoding.retain(|queued| *queued != id);
            self.recount();
        }
    }

    /// Adds a connection whose body is decoded further in the next turn.
    #[cold]
    pub(crate) fn add_decoding(&mut self, id: Id) {
        if self.is_queued.insert(id) {
            self.decoding.push_back(id);
            self.recount();
        }
    }

    /// Takes the connections that decode a piece in this turn.
    pub(crate) fn take_decoding(&mut self) -> Vec<Id> {
        let count = self.decoding.len().min(DECODED_PER_TURN);
        let taken: Vec<Id> = self.decoding.drain(..count).collect();
        for id in &taken {
            self.is_queued.remove(id);
        }
        self.recount();
        taken
    }

    fn recount(&mut self) {
        self.count = self.waiting.len() + self.decoding.len();
    }

    /// Removes the next connection that may resume. `has_exempt` is whether the exempt one still
    /// exceeds the budget.
    pub(crate) fn next(&mut self, has_exempt: bool, load: LoadState) -> Option<Resume> {
        if has_exempt && load == LoadState::Overloaded {
            return None;
        }
        let (_, id) = self.waiting.pop_last()?;
        self.held.remove(&id);
        self.recount();
        if has_exempt {
            return Some(Resume::WithinBudget(id));
        }
        self.exempt = Some(id);
        Some(Resume::OverBudget(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> Id {
        Id { index, generation: 1 }
    }

    fn waiting() -> MemoryWaiters {
        let mut waiters = MemoryWaiters::default();
        for (index, bytes) in [(1, 10), (2, 30), (3, 20)] {
            waiters.add(id(index), bytes);
        }
        waiters
    }

    #[test]
    fn those_that_hold_most_resume_first() {
        let mut waiters = waiting();
        waiters.add(id(1), 1000);
        let next = |waiters: &mut MemoryWaiters| waiters.next(true, LoadState::Normal);
        for index in [2, 3, 1] {
            assert_eq!(next(&mut waiters), Some(Resume::WithinBudget(id(index))));
        }
        assert_eq!(next(&mut waiters), None);
        assert!(waiters.is_empty() && waiters.held.is_empty());
    }

    #[test]
    fn under_overload_one_at_a_time_resumes() {
        let mut waiters = waiting();
        assert_eq!(waiters.next(false, LoadState::Overloaded), Some(Resume::OverBudget(id(2))));
        assert_eq!(waiters.exempt(), Some(id(2)));
        assert_eq!(waiters.next(true, LoadState::Overloaded), None);
        assert_eq!(waiters.next(false, LoadState::Overloaded), Some(Resume::OverBudget(id(3))));
    }

    #[test]
    fn a_closed_connection_waits_no_more() {
        let mut waiters = waiting();
        waiters.remove(id(2));
        waiters.remove(id(7));
        assert_eq!(waiters.turn_len(), 2);
        assert_eq!(waiters.next(true, LoadState::Normal), Some(Resume::WithinBudget(id(3))));
    }

    #[test]
    fn a_turn_resumes_a_few() {
        let mut waiters = MemoryWaiters::default();
        (0..200).for_each(|index| waiters.add(id(index), 1));
        assert_eq!(waiters.turn_len(), RESUMED_PER_TURN);
    }

    #[test]
    fn bodies_are_decoded_in_turn() {
        let mut waiters = MemoryWaiters::default();
        let ids: Vec<Id> = (0..10).map(id).collect();
        ids.iter().chain(&ids).for_each(|&id| waiters.add_decoding(id));
        assert!(waiters.is_decoding() && waiters.turn_len() == 0);
        assert_eq!(waiters.take_decoding(), ids[..DECODED_PER_TURN]);
        waiters.add_decoding(ids[0]);
        assert_eq!(waiters.take_decoding(), [ids[8], ids[9], ids[0]]);
        assert!(waiters.is_empty() && !waiters.is_decoding());
        ids.iter().for_each(|&id| waiters.add_decoding(id));
        ids[..9].iter().for_each(|&id| waiters.remove(id));
        assert_eq!(waiters.take_decoding(), [ids[9]]);
        assert!(waiters.is_empty());
    }
}
