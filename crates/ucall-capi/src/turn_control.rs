//! The parts of a server that its threads share: the stop signal and the log, which they check
//! between two turns, and what they publish through.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ucall_server::{Counters, Publisher, ServerMessage, Stats};

use crate::log::Log;
use crate::stop::StopSignal;

/// Shared by the threads of a server.
pub(crate) struct TurnControl {
    pub(crate) stop: StopSignal,
    pub(crate) log: Arc<Log>,
    pub(crate) counters: Arc<AllCounters>,
    publishers: Mutex<Vec<Arc<Publisher>>>,
}

impl TurnControl {
    pub(crate) fn new(stop: StopSignal, log: Arc<Log>) -> Self {
        Self { stop, log, counters: Arc::default(), publishers: Mutex::default() }
    }

    /// Publishes to the clients of a new worker, too.
    pub(crate) fn add_publisher(&self, publisher: Arc<Publisher>) {
        self.publishers().push(publisher);
    }

    /// Publishes to the clients of all workers.
    pub(crate) fn publish(&self, message: &ServerMessage) {
        for publisher in &*self.publishers() {
            publisher.publish(message.clone());
        }
    }

    fn publishers(&self) -> MutexGuard<'_, Vec<Arc<Publisher>>> {
        self.publishers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a line of the log is due.
    #[inline]
    pub(crate) fn next_line_at(&self) -> Option<Instant> {
        self.log.has_figures().then(|| self.log.next_line_at())
    }

    /// Writes the line of the log that is due, if any.
    #[inline]
    pub(crate) fn write_line_if_due(&self) {
        if self.log.has_figures() {
            self.log.write_line_if_due(Instant::now(), || self.counters.stats());
        }
    }
}

/// The counters of all workers so far.
#[derive(Default)]
pub(crate) struct AllCounters(Mutex<Vec<Arc<Counters>>>);

impl AllCounters {
    /// Counts a new worker, too.
    pub(crate) fn add(&self, counters: Arc<Counters>) {
        self.lock().push(counters);
    }

    /// The sum over all workers.
    pub(crate) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for counters in &*self.lock() {
            sum += counters.stats();
        }
        sum
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Counters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
