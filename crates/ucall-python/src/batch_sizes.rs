//! Counts batches, and the steps of generators with slots, by their sizes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ucall_server::CallMetrics;

use crate::procedure::Procedure;

/// How many batches of each size ran, by the function's name.
pub(crate) type BatchSizes = Mutex<BTreeMap<String, BTreeMap<usize, u64>>>;

/// Where the batches of a worker are counted.
pub(crate) struct BatchCounts {
    sizes: Arc<BatchSizes>,
    metrics: Option<Arc<CallMetrics>>,
}

impl BatchCounts {
    pub(crate) fn new(sizes: Arc<BatchSizes>, metrics: Option<Arc<CallMetrics>>) -> Self {
        Self { sizes, metrics }
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
