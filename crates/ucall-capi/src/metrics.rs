//! The metrics of a server's calls: those of each thread, because only one thread may record.

use std::sync::Arc;

use ucall_engine::EngineClock;
use ucall_server::{CallMetrics, MetricsReader, Procedures, SeriesIndex, ServerMetrics};

use crate::callback::Callback;
use crate::turn_control::AllCounters;

/// The metrics of each serving thread.
pub(crate) struct ThreadMetrics(Arc<[Arc<CallMetrics>]>);

impl ThreadMetrics {
    /// Of that many threads, whose sums the procedures serve at `/metrics`.
    pub(crate) fn new(
        threads: u16,
        procedures: &Procedures<Callback>,
        counters: Arc<AllCounters>,
        is_tls: bool,
    ) -> Self {
        let all: Arc<[Arc<CallMetrics>]> = (0..threads).map(|_| Arc::default()).collect();
        if let Some(first) = all.first() {
            first.set_started(EngineClock::SYSTEM.unix_time());
        }
        procedures.insert_metrics(reader(all.clone(), counters, is_tls));
        Self(all)
    }

    /// The series of a procedure's calls, by thread.
    pub(crate) fn register(&self, name: &str) -> Box<[SeriesIndex]> {
        self.0.iter().map(|metrics| metrics.register(name)).collect()
    }

    /// The metrics of a thread, which begins to serve.
    pub(crate) fn of_thread(&self, number: u16) -> Option<Arc<CallMetrics>> {
        let metrics = self.0.get(usize::from(number))?;
        metrics.count_worker(EngineClock::SYSTEM.unix_time());
        Some(metrics.clone())
    }
}

/// Reads the sums over all threads.
fn reader(all: Arc<[Arc<CallMetrics>]>, counters: Arc<AllCounters>, is_tls: bool) -> MetricsReader {
    MetricsReader::new(move || {
        let mut metrics = ServerMetrics::default();
        all.iter().for_each(|it| it.add_to(&mut metrics.calls));
        metrics.stats = counters.stats();
        metrics.is_tls = is_tls;
        metrics
    })
}
