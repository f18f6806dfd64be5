//! The parts of a server that its threads check between two turns: the stop signal and the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ucall_server::{Counters, Stats};

use crate::log::Log;
use crate::stop::StopSignal;

/// Shared by the threads of a server.
pub(crate) struct TurnControl {
    pub(crate) stop: StopSignal,
    pub(crate) log: Arc<Log>,
    /// Of all workers so far.
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl TurnControl {
    pub(crate) fn new(stop: StopSignal, log: Arc<Log>) -> Self {
        Self { stop, log, counters: Mutex::default() }
    }

    /// Logs what a new worker counts, too.
    pub(crate) fn add_counters(&self, counters: Arc<Counters>) {
        self.counters().push(counters);
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
    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for counters in &*self.counters() {
            let stats = counters.stats();
            sum.calls += stats.calls;
            sum.bytes_received += stats.bytes_received;
            sum.bytes_sent += stats.bytes_sent;
            sum.connections += stats.connections;
        }
        sum
    }
}
