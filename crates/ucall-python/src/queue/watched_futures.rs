//! Futures with callbacks, or with an asyncio future that waits for them.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::receipt::Receipt;

/// The futures that were not finished at the last check. Those of one peer finish in order, except
/// for messages that are not sent or were rejected, so a check reads only the first and these.
#[derive(Default)]
pub(super) struct WatchedFutures {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    ordered: HashMap<usize, OfPeer>,
    others: Vec<Py<Receipt>>,
}

/// The futures of one peer, by the numbers of their messages.
#[derive(Default)]
struct OfPeer {
    receipts: BTreeMap<u64, Vec<Py<Receipt>>>,
    /// [`DeliveryState::unsent_changes`] at the last check.
    ///
    /// [`DeliveryState::unsent_changes`]: ucall_queue::DeliveryState::unsent_changes
    unsent_changes: u64,
}

impl OfPeer {
    /// The first that is finished of those that finish in order.
    fn first_finished(&mut self) -> Option<OccupiedEntry<'_, u64, Vec<Py<Receipt>>>> {
        let first = self.receipts.first_entry()?;
        first.get().iter().any(|held| held.get().is_finished()).then_some(first)
    }

    /// The numbers of those that have finished out of order since the last check.
    fn unsent(&self) -> (u64, Vec<u64>) {
        let first = self.receipts.first_key_value().and_then(|(_, held)| held.first());
        let Some(delivery) = first.and_then(|held| held.get().delivery()) else {
            return (self.unsent_changes, Vec::new());
        };
        let changes = delivery.unsent_changes();
        if changes == self.unsent_changes {
            return (changes, Vec::new());
        }
        let ranges = delivery.unsent().into_iter();
        let found = ranges.flat_map(|range| self.receipts.range(range)).map(|(number, _)| *number);
        (changes, found.collect())
    }
}

impl WatchedFutures {
    pub(super) fn add(&self, receipt: &Bound<'_, Receipt>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let held = receipt.clone().unbind();
        match receipt.get().position() {
            Some((delivery, sequence)) if !receipt.get().is_finished() => {
                let of_peer = waiting.ordered.entry(delivery).or_default();
                of_peer.receipts.entry(sequence).or_default().push(held);
            }
            _ => waiting.others.push(held),
        }
    }

    /// Visits the futures, whose callbacks may refer to anything.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A thread that holds the lock uses the futures, so they are not garbage.
        let Ok(waiting) = self.waiting.try_lock() else { return Ok(()) };
        let ordered = waiting.ordered.values().flat_map(|it| it.receipts.values()).flatten();
        ordered.chain(&waiting.others).try_for_each(|held| visit.call(held))
    }

    /// Whether a future has finished. Does not need the interpreter.
    pub(super) fn has_finished(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { ordered, others } = &mut *waiting;
        let mut of_peers = ordered.values_mut();
        of_peers.any(|it| it.first_finished().is_some() || !it.unsent().1.is_empty())
            || others.iter().any(|it| it.get().is_finished())
    }

    /// Removes the finished futures.
    pub(super) fn take(&self) -> Vec<Py<Receipt>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { ordered, others } = &mut *waiting;
        let mut finished = Vec::new();
        for of_peer in ordered.values_mut() {
            while let Some(first) = of_peer.first_finished() {
                finished.extend(first.remove());
            }
            let (changes, unsent) = of_peer.unsent();
            of_peer.unsent_changes = changes;
            finished.extend(unsent.iter().filter_map(|it| of_peer.receipts.remove(it)).flatten());
        }
        ordered.retain(|_, of_peer| !of_peer.receipts.is_empty());
        finished.extend(others.extract_if(.., |held| held.get().is_finished()));
        finished
    }
}
