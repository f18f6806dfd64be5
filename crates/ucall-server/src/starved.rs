//! Connections that wait for memory, until others give some back.
//!
//! There may be thousands, and memory may be short for long: so they stand in a list, and a turn
//! looks at the first of them and at no other connection. One may go on whatever is held, so that
//! all who wait for each other's memory come to their end.

use std::collections::BTreeSet;

use ucall_engine::{Engine, Id};
use ucall_proto::LoadState;

use crate::Handler;
use crate::connections::Entry;
use crate::worker::Worker;

/// Those that go on in one turn, each for a microsecond or two.
const FED_PER_TURN: usize = 64;

/// Who waits, and who goes on without.
#[derive(Debug, Default)]
pub(crate) struct Starved {
    /// With what each held when it began to wait: those that hold most set most free.
    waiting: BTreeSet<(usize, Id)>,
    favoured: Option<Id>,
}

impl Starved {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts a connection in the list that waits.
    #[cold]
    pub(crate) fn add(&mut self, entry: &mut Entry) {
        if entry.starved_with.is_none() {
            let held_bytes = entry.proto.reserved_bytes();
            entry.starved_with = Some(held_bytes);
            self.waiting.insert((held_bytes, entry.id()));
        }
    }

    /// Takes a connection that closes out of it.
    pub(crate) fn remove(&mut self, entry: &mut Entry) {
        if let Some(held_bytes) = entry.starved_with.take() {
            self.waiting.remove(&(held_bytes, entry.id()));
        }
    }
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Whether some may go on by now.
    #[inline]
    pub(crate) fn may_feed(&self) -> bool {
        !self.starved.is_empty() && self.office.load() == LoadState::Normal
    }

    /// Goes on with requests that waited for memory, as long as there is some; else with one.
    #[inline(never)]
    pub(crate) fn feed_the_starved(&mut self) {
        for _ in 0..self.starved.waiting.len().min(FED_PER_TURN) {
            let Some(&(_, id)) = self.starved.waiting.last() else { return };
            if !self.favours(id) && self.office.load() == LoadState::Overloaded {
                return;
            }
            self.starved.waiting.pop_last();
            let Some(entry) = self.connections.find(id) else { continue };
            entry.starved_with = None;
            if entry.proto.is_starved() {
                self.step(id, |connection, environment, out| connection.proceed(environment, out));
                self.settle(id);
            }
        }
    }

    /// Lets one go on whatever is held, if none may already.
    fn favours(&mut self, id: Id) -> bool {
        let favoured = self.starved.favoured.and_then(|id| self.connections.find(id));
        if favoured.is_some_and(|entry| entry.proto.may_exceed_budget()) {
            return false;
        }
        let Some(entry) = self.connections.find(id) else { return false };
        entry.proto.allow_over_budget();
        self.starved.favoured = Some(id);
        true
    }
}
