//! Calls that a server gets through NATS brokers, and what it counts of them.
//!
//! Python connects, authenticates and subscribes; a worker serves what follows on the socket. Each
//! worker process counts on a page that all of them read, if a supervisor has given it one.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use ucall_proto::RpcError;
use ucall_server::{
    BrokerSocket, CallMetrics, Histogram, Measure, Message, MetricsSnapshot, NatsObserver,
    NatsOptions, SeriesIndex,
};

use crate::server::Server;

/// Errors of all codes are one series, so that they leave room for methods.
const ERROR: i64 = 0;

/// The calls of one server through brokers.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct BrokerCalls {
    server: Py<Server>,
    methods: Vec<String>,
    calls_max: usize,
    calls_bytes_max: usize,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    metrics: CallMetrics,
    /// By the indices of methods.
    series: Vec<SeriesIndex>,
    last_errors: Mutex<Vec<String>>,
}

impl NatsObserver for Counts {
    fn call_ended(&self, method: usize, began: Instant, error: Option<&RpcError>) {
        if let Some(series) = self.series.get(method) {
            self.metrics.record(*series, began.elapsed(), error.map(|_| ERROR));
        }
        if let Some(error) = error {
            let mut last_errors = self.last_errors.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(last) = last_errors.get_mut(method) {
                *last = error.message.clone().into_owned();
            }
        }
    }
}

#[pymethods]
impl BrokerCalls {
    /// The subscription to the method at an index has that number and 1; that to the ids of calls
    /// to cancel follows the last.
    #[new]
    fn new(
        server: Py<Server>,
        methods: Vec<String>,
        calls_max: usize,
        calls_bytes_max: usize,
    ) -> Self {
        let metrics = match server.get().state().broker_page {
            Some(page) => CallMetrics::shared(page, &CallMetrics::default()),
            None => CallMetrics::default(),
        };
        let series = methods.iter().map(|method| metrics.register(method)).collect();
        let last_errors = Mutex::new(vec![String::new(); methods.len()]);
        let counts = Arc::new(Counts { metrics, series, last_errors });
        Self { server, methods, calls_max, calls_bytes_max, counts }
    }

    /// Takes over a subscribed socket, what it has received since, and another descriptor, which
    /// is closed when the connection has ended. Returns `false`, and closes both, if no worker
    /// runs.
    fn attach(&self, socket: RawFd, received: &[u8], max_payload: usize, guard: RawFd) -> bool {
        // SAFETY: the caller gives the descriptors away.
        let (socket, guard) =
            unsafe { (OwnedFd::from_raw_fd(socket), OwnedFd::from_raw_fd(guard)) };
        let options = NatsOptions {
            methods: self.methods.clone(),
            payload_bytes_max: max_payload,
            calls_max: self.calls_max,
            calls_bytes_max: self.calls_bytes_max,
            observer: self.counts.clone(),
        };
        let broker = BrokerSocket { socket, received: received.to_vec(), options, guard };
        let state = self.server.get().state();
        let Some(worker) = &state.worker else { return false };
        worker.mailbox.send(Message::AttachBroker(Box::new(broker)));
        true
    }

    /// For each method: its calls, those of them that had errors, the nanoseconds of all, and the
    /// last error of this process.
    fn counts(&self) -> Vec<(u64, u64, u64, String)> {
        let snapshot = self.snapshot();
        let last_errors = self.counts.last_errors.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.methods.iter().zip(last_errors.iter()).map(|(method, last_error)| {
            let of = |measure| {
                let found = snapshot.series.get(&(method.clone(), measure));
                found.copied().unwrap_or_default()
            };
            let (succeeded, failed) = (of(Measure::Success), of(Measure::Error(ERROR)));
            let calls = |histogram: &Histogram| histogram.buckets.iter().sum::<u64>();
            let errors = calls(&failed);
            let nanoseconds = succeeded.sum + failed.sum;
            (calls(&succeeded) + errors, errors, nanoseconds, last_error.clone())
        });
        counts.collect()
    }
}

impl BrokerCalls {
    /// Of all workers.
    fn snapshot(&self) -> MetricsSnapshot {
        let state = self.server.get().state();
        if let Some((shared, _)) = &state.shared {
            return shared.get().broker_calls();
        }
        let mut snapshot = MetricsSnapshot::default();
        self.counts.metrics.add_to(&mut snapshot);
        snapshot
    }
}
