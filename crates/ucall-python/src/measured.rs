//! Metrics of calls: what an [`Interpreter`] records when the server has metrics.
//!
//! The duration of a plain function begins with the end of the call before it in its turn, or with
//! the turn. All others begin with the turn that received them, and include waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ucall_server::{
    CallMetrics, Histogram, Measure, MetricsSnapshot, OTHER_CODE, SeriesIndex, WaitsFor,
    duration_bounds, size_bounds,
};

use crate::handler::Interpreter;

/// Counts as a running call until it is dropped.
pub(crate) struct RunningCall {
    metrics: Arc<CallMetrics>,
    series: SeriesIndex,
    began: Instant,
}

impl RunningCall {
    fn new(metrics: Arc<CallMetrics>, series: SeriesIndex, began: Instant) -> Self {
        metrics.begin_call();
        Self { metrics, series, began }
    }

    /// Records the call's end, with the code of its error.
    pub(crate) fn record(&self, error: Option<i64>) {
        self.metrics.record(self.series, self.began.elapsed(), error);
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.metrics.end_call();
    }
}

/// Counts as a waiting call until it is dropped, on any thread.
pub(crate) struct WaitingCall {
    metrics: Arc<CallMetrics>,
    what: WaitsFor,
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.metrics.end_wait(self.what);
    }
}

impl Interpreter {
    /// Records a call that has ended.
    #[inline(never)]
    pub(crate) fn record(&self, series: SeriesIndex, duration: Duration, error: Option<i64>) {
        if let Some(metrics) = &self.metrics {
            metrics.record(series, duration, error);
        }
    }

    /// Records a call that has ended in the turn that received it.
    pub(crate) fn record_since_receipt(&self, series: SeriesIndex, error: Option<i64>) {
        self.record(series, self.turn_began.elapsed(), error);
    }

    /// What counts a call that is deferred, if calls of its function are measured.
    pub(crate) fn running_call(&self, series: Option<SeriesIndex>) -> Option<RunningCall> {
        let metrics = self.metrics.clone()?;
        Some(RunningCall::new(metrics, series?, self.turn_began))
    }

    /// What counts a call that waits.
    pub(crate) fn waiting_call(&self, what: WaitsFor) -> Option<WaitingCall> {
        let metrics = self.metrics.clone()?;
        metrics.begin_wait(what);
        Some(WaitingCall { metrics, what })
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
    Ok(dict)
}
