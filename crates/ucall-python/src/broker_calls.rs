//! Calls that a server gets through NATS brokers, and what it counts of them.
//!
//! Python receives and answers the messages; a worker runs their calls. Each worker process counts
//! on a page that all of them read, if a supervisor has given it one.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_server::{
    BrokeredCall, BrokeredReplies, CallMetrics, Histogram, Measure, Message, MetricsSnapshot,
    Reservation, SeriesIndex, Transport,
};

use crate::server::Server;

/// Errors of all codes are one series, so that they leave room for methods.
const ERROR: i64 = 0;

/// Python takes no more texts at a time once they have this many bytes: it takes others when it has
/// sent these.
const TAKEN_BYTES_MIN: usize = 1 << 20;

/// Numbers the calls of this process: a worker may outlive the registration of a server.
static CALLS: AtomicU64 = AtomicU64::new(1);

/// The calls of one server through brokers.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct BrokerCalls {
    server: Py<Server>,
    methods: Vec<Arc<str>>,
    replies: Arc<Replies>,
    /// Is readable while there are replies.
    woken: UnixStream,
    metrics: CallMetrics,
    /// By the indices of methods.
    series: Vec<SeriesIndex>,
    last_errors: Mutex<Vec<String>>,
}

/// The replies that Python has not taken. A worker adds them without the interpreter's lock.
#[derive(Debug)]
struct Replies {
    waiting: Mutex<VecDeque<(u64, Vec<u8>, Reservation)>>,
    wake: UnixStream,
}

impl BrokeredReplies for Replies {
    fn reply(&self, number: u64, text: &[u8], reserved: Reservation) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((number, text.to_vec(), reserved));
        if waiting.len() == 1 {
            // The first byte cannot find the socket full.
            let _ = (&self.wake).write(b"\0");
        }
    }
}

#[pymethods]
impl BrokerCalls {
    #[new]
    fn new(server: Py<Server>, methods: Vec<String>) -> PyResult<Self> {
        let metrics = match server.get().state().broker_page {
            Some(page) => CallMetrics::shared(page, &CallMetrics::default()),
            None => CallMetrics::default(),
        };
        let series = methods.iter().map(|method| metrics.register(method)).collect();
        let last_errors = Mutex::new(vec![String::new(); methods.len()]);
        let methods = methods.into_iter().map(Arc::from).collect();
        let (woken, wake) = UnixStream::pair()?;
        for socket in [&woken, &wake] {
            socket.set_nonblocking(true)?;
        }
        let replies = Arc::new(Replies { waiting: Mutex::default(), wake });
        Ok(Self { server, methods, replies, woken, metrics, series, last_errors })
    }

    /// Has a worker run a call of the method at this index. `head` is that of an HTTP request.
    /// Returns the number of the call; `None` if no worker runs.
    fn call(&self, method: usize, params: &[u8], head: &[u8], has_reply: bool) -> Option<u64> {
        let method = self.methods.get(method)?.clone();
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let call = BrokeredCall {
            number,
            method,
            params: params.to_vec(),
            head: head.to_vec(),
            transport: Transport::Nats,
            has_reply,
            replies: self.replies.clone(),
        };
        self.send(Message::Call(Box::new(call))).then_some(number)
    }

    /// Cancels the call of this number, which gets no reply.
    fn cancel(&self, number: u64) {
        self.send(Message::CancelCall(number));
    }

    /// The descriptor that is readable while there are replies.
    fn fileno(&self) -> RawFd {
        self.woken.as_raw_fd()
    }

    /// The numbers of some calls that have ended since the last time, and the JSON texts of their
    /// replies, which notifications lack.
    fn take_replies<'py>(&self, py: Python<'py>) -> io::Result<Vec<(u64, Bound<'py, PyBytes>)>> {
        let mut waiting = self.replies.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < TAKEN_BYTES_MIN
            && let Some(reply) = waiting.pop_front()
        {
            bytes += reply.1.len();
            taken.push(reply);
        }
        if !taken.is_empty() && waiting.is_empty() {
            (&self.woken).read_exact(&mut [0])?;
        }
        drop(waiting);
        Ok(taken.into_iter().map(|(number, text, _)| (number, PyBytes::new(py, &text))).collect())
    }

    /// Counts a call of the method at this index, and the message of its error.
    fn count(&self, method: usize, nanoseconds: u64, error: Option<String>) {
        if let Some(series) = self.series.get(method) {
            let outcome = error.as_ref().map(|_| ERROR);
            self.metrics.record(*series, Duration::from_nanos(nanoseconds), outcome);
        }
        if let Some(error) = error {
            let mut last_errors = self.last_errors.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(last) = last_errors.get_mut(method) {
                *last = error;
            }
        }
    }

    /// For each method: its calls, those of them that had errors, the nanoseconds of all, and the
    /// last error of this process.
    fn counts(&self) -> Vec<(u64, u64, u64, String)> {
        let snapshot = self.snapshot();
        let last_errors = self.last_errors.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.methods.iter().zip(last_errors.iter()).map(|(method, last_error)| {
            let of = |measure| {
                let found = snapshot.series.get(&(method.to_string(), measure));
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
    /// Returns `false` if no worker runs.
    fn send(&self, message: Message) -> bool {
        let state = self.server.get().state();
        let worker = state.worker.as_ref();
        worker.map(|worker| worker.mailbox.send(message)).is_some()
    }

    /// Of all workers.
    fn snapshot(&self) -> MetricsSnapshot {
        let state = self.server.get().state();
        if let Some((shared, _)) = &state.shared {
            return shared.get().broker_calls();
        }
        let mut snapshot = MetricsSnapshot::default();
        self.metrics.add_to(&mut snapshot);
        snapshot
    }
}
