//! The counters and metrics of a server.

use std::sync::PoisonError;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ucall_server::{MetricsSnapshot, Stats};

use crate::server::Server;
use crate::server_state::{self, ServerState};

/// What `/metrics` answers with, as Prometheus text; `None` without metrics.
#[pyfunction]
pub(crate) fn metrics_text(server: &Bound<'_, Server>) -> Option<String> {
    let state = server.get().state();
    state.metrics.as_ref()?;
    Some(server_state::server_metrics(&state).text())
}

/// Counts a process that has loaded a model, or has ended, if the server has metrics.
#[pyfunction]
pub(crate) fn count_loaded_model(server: &Bound<'_, Server>, model: &str, has_ended: bool) {
    let metrics = server.get().state().metrics.clone();
    match (metrics, has_ended) {
        (Some(metrics), false) => metrics.begin_loaded(model),
        (Some(metrics), true) => metrics.end_loaded(model),
        (None, _) => {}
    }
}

/// Has the batches of a function begin with the measured seconds of batches by their weights.
#[pyfunction]
pub(crate) fn seed_batches(server: &Bound<'_, Server>, name: &str, times: Vec<(u64, f64)>) {
    let time = |(weight, seconds)| Some((weight, Duration::try_from_secs_f64(seconds).ok()?));
    if let Some(procedure) = server.get().procedures.get(name) {
        let _ = procedure.function().batch_times.set(times.into_iter().filter_map(time).collect());
    }
}

impl Server {
    /// All counters; those of batches are of this process.
    pub(crate) fn stats_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.state().stats();
        let dict = PyDict::new(py);
        dict.set_item("calls", stats.calls)?;
        dict.set_item("connections", stats.connections)?;
        dict.set_item("accepted", stats.accepted)?;
        dict.set_item("bytes_received", stats.bytes_received)?;
        dict.set_item("bytes_sent", stats.bytes_sent)?;
        dict.set_item("turns", stats.turns)?;
        dict.set_item("system_calls", stats.system_calls)?;
        dict.set_item("subscriptions", stats.subscriptions)?;
        dict.set_item("dropped_messages", stats.dropped_messages)?;
        dict.set_item("dropped_log_lines", stats.dropped_log_lines)?;
        let datagrams = PyDict::new(py);
        datagrams.set_item("received", stats.datagrams.received)?;
        datagrams.set_item("sent", stats.datagrams.sent)?;
        datagrams.set_item("invalid", stats.datagrams.invalid)?;
        datagrams.set_item("repeated", stats.datagrams.repeated)?;
        datagrams.set_item("refused", stats.datagrams.refused)?;
        datagrams.set_item("dropped", stats.datagrams.dropped)?;
        dict.set_item("datagrams", datagrams)?;
        dict.set_item("batches", self.batch_stats(py)?)?;
        Ok(dict)
    }

    fn batch_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sizes = self.batch_sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let dict = PyDict::new(py);
        for (name, counts) in &*sizes {
            dict.set_item(name, counts.clone())?;
        }
        Ok(dict)
    }
}

impl ServerState {
    /// The counters of all workers.
    pub(crate) fn stats(&self) -> Stats {
        if let Some((shared, _)) = &self.shared {
            return shared.get().stats();
        }
        let Some(worker) = &self.worker else { return self.past_stats };
        let mut stats = worker.counters.stats();
        stats += self.past_stats;
        stats
    }

    /// The metrics of all workers; empty if the server has none.
    pub(crate) fn metrics(&self) -> MetricsSnapshot {
        if let Some((shared, _)) = &self.shared {
            return shared.get().metrics();
        }
        let mut snapshot = MetricsSnapshot::default();
        if let Some(metrics) = &self.metrics {
            metrics.add_to(&mut snapshot);
        }
        snapshot
    }
}
