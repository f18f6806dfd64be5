//! Metrics as Python reads them, and the count of calls that wait.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ucall_server::{
    CallMetrics, Histogram, Measure, MetricsSnapshot, OTHER_CODE, OTHER_METHOD, UpstreamCounts,
    WaitsFor, duration_bounds, size_bounds,
};

/// Counts as a waiting call until it is dropped, on any thread.
pub(crate) struct WaitingCall {
    metrics: Arc<CallMetrics>,
    what: WaitsFor,
}

impl WaitingCall {
    pub(crate) fn new(metrics: Arc<CallMetrics>, what: WaitsFor) -> Self {
        metrics.begin_wait(what);
        Self { metrics, what }
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.metrics.end_wait(self.what);
    }
}

/// A snapshot as `python/ucall/_metrics.py` takes it.
pub(crate) fn to_dict<'py>(
    py: Python<'py>,
    snapshot: &MetricsSnapshot,
) -> PyResult<Bound<'py, PyDict>> {
    let series = snapshot.series.iter().map(|((method, measure), Histogram { sum, buckets })| {
        let (kind, code) = match *measure {
            Measure::Success => ("call", None),
            Measure::Error(OTHER_CODE) => ("call", Some("_OTHER".to_owned())),
            Measure::Error(code) => ("call", Some(code.to_string())),
            Measure::BatchSize => ("batch", None),
        };
        (kind, method.as_str(), code, *sum, buckets.to_vec())
    });
    let dict = PyDict::new(py);
    dict.set_item("series", series.collect::<Vec<_>>())?;
    dict.set_item("duration_bounds_ns", duration_bounds().to_vec())?;
    dict.set_item("size_bounds", size_bounds().to_vec())?;
    dict.set_item("running", snapshot.running)?;
    dict.set_item("waiting_for_thread", snapshot.waiting_for_thread)?;
    dict.set_item("waiting_for_batch", snapshot.waiting_for_batch)?;
    dict.set_item("lock_wait_ns", snapshot.lock_wait_ns)?;
    dict.set_item("worker_starts", snapshot.worker_starts)?;
    dict.set_item("started_ms", snapshot.started_ms)?;
    let upstreams = snapshot.upstreams.iter();
    let upstreams = upstreams
        .filter(|(name, counts)| *name != OTHER_METHOD || **counts != UpstreamCounts::default());
    let upstreams =
        upstreams.map(|(name, it)| (name, it.outstanding, it.failures, it.circuits, it.health));
    dict.set_item("upstreams", upstreams.collect::<Vec<_>>())?;
    Ok(dict)
}
