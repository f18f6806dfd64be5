//! Dynamic batching: calls that arrive together run together.
//!
//! The calls of one turn are one batch, up to the largest size. The batches of a function that run
//! at once are limited. Calls that arrive meanwhile wait and form the next batch, so a slower
//! function gets larger batches. A call that has ended before (by its deadline, or because its
//! client left) is not in the batch. `batch_inputs.rs` runs the calls of a batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ucall_server::Token;

use crate::batch_sizes::BatchCounts;
use crate::calls::{Calls, Entry};
use crate::job_input::{Contents, JobInput};
use crate::procedure::{BatchRules, SharedProcedure};

/// The calls that wait for a batch.
pub(crate) struct Batches {
    queues: Vec<Queue>,
    counts: Arc<BatchCounts>,
}

struct Queue {
    procedure: SharedProcedure,
    rules: BatchRules,
    waiting: VecDeque<Waiting>,
    running: usize,
}

struct Waiting {
    token: Token,
    since: Instant,
}

/// Calls that run together.
pub(crate) struct Batch {
    pub(crate) procedure: SharedProcedure,
    pub(crate) rules: BatchRules,
    pub(crate) calls: BatchCalls,
}

/// The calls of a batch, each with its input. That of a call which ends before the batch runs is
/// taken out.
pub(crate) struct BatchCalls(Vec<(Token, Arc<JobInput>)>);

impl BatchCalls {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.0.iter().map(|(token, _)| *token).collect()
    }

    /// The inputs of the calls that have not ended.
    pub(crate) fn take(self) -> Vec<(Token, Contents)> {
        let taken = |(token, input): (Token, Arc<JobInput>)| Some((token, input.take()?));
        self.0.into_iter().filter_map(taken).collect()
    }
}

impl Batches {
    pub(crate) fn new(counts: Arc<BatchCounts>) -> Self {
        Self { queues: Vec::new(), counts }
    }

    pub(crate) fn push(
        &mut self,
        procedure: &SharedProcedure,
        rules: BatchRules,
        token: Token,
        since: Instant,
        calls: &Calls,
    ) {
        let waiting = Waiting { token, since };
        if let Some(queue) = self.find(procedure) {
            queue.drop_cancelled(calls);
            return queue.waiting.push_back(waiting);
        }
        let (procedure, waiting) = (procedure.clone(), VecDeque::from([waiting]));
        self.queues.push(Queue { procedure, rules, waiting, running: 0 });
    }

    fn find(&mut self, procedure: &SharedProcedure) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| Arc::ptr_eq(&queue.procedure, procedure))
    }

    /// Records the end of a batch.
    pub(crate) fn finished(&mut self, procedure: &SharedProcedure) {
        self.counts.ended(procedure);
        if let Some(queue) = self.find(procedure) {
            queue.running = queue.running.saturating_sub(1);
        }
        // The queue of a replaced function is removed with its last batch.
        let is_used = |queue: &Queue| {
            queue.running + queue.waiting.len() > 0 || Arc::strong_count(&queue.procedure) > 1
        };
        self.queues.retain(is_used);
    }

    /// Counts the further streams of a batch whose calls form several groups.
    pub(crate) fn started(&mut self, procedure: &SharedProcedure, more: usize) {
        if let Some(queue) = self.find(procedure) {
            queue.running += more;
        }
    }

    /// Whether no function has batches.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// When the next batch is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.queues.iter().filter_map(Queue::due).min()
    }

    /// Takes a batch that is due. It has no calls if all of its calls have ended.
    pub(crate) fn next(&mut self, now: Instant, calls: &mut Calls) -> Option<Batch> {
        let queue = self.queues.iter_mut().find(|it| it.due().is_some_and(|due| due <= now))?;
        let mut items = Vec::new();
        while items.len() < queue.rules.size_max {
            let Some(waiting) = queue.waiting.pop_front() else { break };
            let call = calls.find(waiting.token).and_then(Entry::call);
            if let Some(input) = call.and_then(|call| call.input()) {
                items.push((waiting.token, input));
            }
        }
        if !items.is_empty() {
            queue.running += 1;
            self.counts.record(&queue.procedure, items.len());
            self.counts.began(&queue.procedure, now);
        }
        let (procedure, rules) = (queue.procedure.clone(), queue.rules);
        Some(Batch { procedure, rules, calls: BatchCalls(items) })
    }
}

impl Queue {
    /// Drops calls that have ended while batches run, once they are most of the queue.
    fn drop_cancelled(&mut self, calls: &Calls) {
        const PRUNE_MIN: usize = 64;
        if self.waiting.len() > PRUNE_MIN + 2 * calls.count() {
            self.waiting.retain(|waiting| calls.contains(waiting.token));
        }
    }

    fn due(&self) -> Option<Instant> {
        let first = self.waiting.front().filter(|_| self.running < self.rules.running_max)?;
        let is_full = self.waiting.len() >= self.rules.size_max;
        Some(if is_full { first.since } else { first.since + self.rules.wait_max })
    }
}
