//! Counts batches, and the steps of generators with slots, by their sizes, and measures batches.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ucall_server::{CallMetrics, SeriesIndex};

use crate::procedure::Procedure;

/// How many batches of each size ran, by the function's name.
pub(crate) type BatchSizes = Mutex<BTreeMap<String, BTreeMap<usize, u64>>>;

/// Where the batches of a worker are counted.
pub(crate) struct BatchCounts {
    sizes: Arc<BatchSizes>,
    metrics: Option<Arc<CallMetrics>>,
    /// When the batches that run began, the oldest first. Any end counts as that of the oldest, so
    /// the sum of all durations is exact.
    running: Mutex<HashMap<SeriesIndex, VecDeque<Instant>>>,
}

impl BatchCounts {
    pub(crate) fn new(sizes: Arc<BatchSizes>, metrics: Option<Arc<CallMetrics>>) -> Self {
        Self { sizes, metrics, running: Mutex::default() }
    }

    /// A batch begins, which [`BatchCounts::ended`] is called for, too.
    pub(crate) fn began(&self, procedure: &Procedure, now: Instant) {
        if let (Some(_), Some(series)) = (&self.metrics, procedure.series) {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.entry(series).or_default().push_back(now);
        }
    }

    /// A batch has ended.
    pub(crate) fn ended(&self, procedure: &Procedure) {
        let (Some(metrics), Some(series)) = (&self.metrics, procedure.series) else { return };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(began) = running.get_mut(&series).and_then(VecDeque::pop_front) {
            metrics.record_batch_duration(series, began.elapsed());
        }
    }

    /// Counts a batch of `size` calls.
    pub(crate) fn record(&self, procedure: &Procedure, size: usize) {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let of_procedure = match sizes.get_mut(&procedure.name) {
            Some(of_procedure) => of_procedure,
            None => sizes.entry(procedure.name.clone()).or_default(),
        };
        *of_procedure.entry(size).or_default() += 1;
        if let (Some(metrics), Some(series)) = (&self.metrics, procedure.series) {
            metrics.record_batch(series, size);
        }
    }
}
