//! Futures with callbacks, or with an asyncio future that waits for them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::receipt::Receipt;

/// The futures that were not finished at the last check. Those of one peer finish in order, so a
/// check reads only the first.
#[derive(Default)]
pub(super) struct WatchedFutures {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    ordered: HashMap<usize, BTreeMap<u64, Vec<Py<Receipt>>>>,
    others: Vec<Py<Receipt>>,
}

impl WatchedFutures {
    pub(super) fn add(&self, receipt: &Bound<'_, Receipt>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let held = receipt.clone().unbind();
        match receipt.get().position() {
            Some((delivery, sequence)) => {
                let ordered = waiting.ordered.entry(delivery).or_default();
                ordered.entry(sequence).or_default().push(held);
            }
            None => waiting.others.push(held),
        }
    }

    /// Visits the futures, whose callbacks may refer to anything.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A thread that holds the lock uses the futures, so they are not garbage.
        let Ok(waiting) = self.waiting.try_lock() else { return Ok(()) };
        let ordered = waiting.ordered.values().flat_map(BTreeMap::values).flatten();
        ordered.chain(&waiting.others).try_for_each(|held| visit.call(held))
    }

    /// Whether a future has finished. Does not need the interpreter.
    pub(super) fn has_finished(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let firsts = waiting.ordered.values().filter_map(BTreeMap::first_key_value);
        firsts.flat_map(|(_, held)| held).chain(&waiting.others).any(|it| it.get().is_finished())
    }

    /// Removes the finished futures.
    pub(super) fn take(&self) -> Vec<Py<Receipt>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { ordered, others } = &mut *waiting;
        let mut finished = Vec::new();
        for receipts in ordered.values_mut() {
            while let Some(first) = receipts.first_entry() {
                if !first.get().iter().any(|held| held.get().is_finished()) {
                    break;
                }
                finished.extend(first.remove());
            }
        }
        ordered.retain(|_, receipts| !receipts.is_empty());
        finished.extend(others.extract_if(.., |held| held.get().is_finished()));
        finished
    }
}
