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
    /// Of all workers so far.
    counters: Mutex<Vec<Arc<Counters>>>,
    publishers: Mutex<Vec<Arc<Publisher>>>,
}

impl TurnControl {
    pub(crate) fn new(stop: StopSignal, log: Arc<Log>) -> Self {
        Self { stop, log, counters: Mutex::default(), publishers: Mutex::default() }
    }

    /// Logs what a new worker counts, too.
    pub(crate) fn add_counters(&self, counters: Arc<Counters>) {
        self.counters().push(counters);
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

    fn counters(&self) -> MutexGuard<'_, Vec<Arc<Counters>>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the line of the log that is due, if any.
    #[cold]
    pub(crate) fn write_line_if_due(&self) {
        self.log.write_line_if_due(Instant::now(), || self.stats());
    }

    /// The sum over all workers.
    pub(crate) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for counters in &*self.counters() {
            sum += counters.stats();
        }
        sum
    }
}
