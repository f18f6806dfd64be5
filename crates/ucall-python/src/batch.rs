//! Dynamic batching: calls that arrive together run together.
//!
//! A [`Batcher`] for each function decides when a batch starts and which calls it has. Calls that
//! arrive while batches run wait, so a slower function gets larger batches. A call that ends before
//! (by its deadline, or because its client left) is removed. `batch_inputs.rs` runs the calls of a
//! batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ucall_proto::RpcError;
use ucall_server::{Batcher, Deadline, Full, Token, Waiting, overloaded};

use crate::batch_sizes::BatchCounts;
use crate::calls::{Calls, Entry};
use crate::job_input::{Contents, JobInput};
use crate::procedure::{BatchRules, CallMode, SharedProcedure};

/// The calls that wait for a batch.
pub(crate) struct Batches {
    queues: Vec<Queue>,
    counts: Arc<BatchCounts>,
}

struct Queue {
    procedure: SharedProcedure,
    rules: BatchRules,
    batcher: Batcher<Token>,
    /// The names of the batches that run, the oldest first. Any end counts as that of the oldest:
    /// only one that runs alone teaches the time of a batch.
    running: VecDeque<Token>,
    /// The groups of batches that run, beyond one of each.
    more_groups: usize,
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

    /// Checks that another call of a function may wait.
    ///
    /// # Errors
    /// The reply to a call that may not.
    pub(crate) fn check_full(&self, procedure: &SharedProcedure) -> Result<(), RpcError> {
        let CallMode::Batch(rules) = procedure.mode else { return Ok(()) };
        let Some(max) = rules.limits.waiting_max else { return Ok(()) };
        let mut queues = self.queues.iter();
        let queue = queues.find(|queue| Arc::ptr_eq(&queue.procedure, procedure));
        let checked = queue.map_or(Ok(()), |queue| queue.batcher.check_full());
        checked.map_err(|Full { retry_after }| overloaded("max_waiting", max, retry_after))
    }

    /// Enqueues a call.
    ///
    /// # Errors
    /// [`Full`] if as many calls of the function wait as may.
    pub(crate) fn push(
        &mut self,
        procedure: &SharedProcedure,
        rules: BatchRules,
        waiting: Waiting<Token>,
    ) -> Result<(), Full> {
        if let Some(queue) = self.find(procedure) {
            return queue.batcher.push(waiting);
        }
        let mut batcher = Batcher::new(rules.limits);
        let pushed = batcher.push(waiting);
        let (procedure, running) = (procedure.clone(), VecDeque::new());
        self.queues.push(Queue { procedure, rules, batcher, running, more_groups: 0 });
        pushed
    }

    /// Removes a call that waits no longer.
    pub(crate) fn remove(&mut self, token: Token) {
        let _ = self.queues.iter_mut().any(|queue| queue.batcher.remove(token));
    }

    fn find(&mut self, procedure: &SharedProcedure) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| Arc::ptr_eq(&queue.procedure, procedure))
    }

    /// Records the end of a batch.
    pub(crate) fn finished(&mut self, procedure: &SharedProcedure) {
        self.counts.ended(procedure);
        if let Some(queue) = self.find(procedure) {
            queue.finished();
        }
        // The queue of a replaced function is removed with its last batch.
        let is_used = |queue: &Queue| {
            let calls = queue.running.len() + queue.batcher.waiting();
            calls > 0 || Arc::strong_count(&queue.procedure) > 1
        };
        self.queues.retain(is_used);
    }

    /// Counts the further streams of a batch whose calls form several groups.
    pub(crate) fn started(&mut self, procedure: &SharedProcedure, more: usize) {
        if let Some(queue) = self.find(procedure) {
            queue.more_groups += more;
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
        self.queues.iter().filter_map(|queue| queue.batcher.due()).min()
    }

    /// Removes the calls whose deadline the next batch cannot meet. Returns them with their errors.
    pub(crate) fn take_unmeetable(&mut self, now: Instant) -> Vec<(Token, RpcError)> {
        let due = self.queues.iter_mut().filter(|queue| queue.is_due(now));
        let unmeetable = due.filter_map(|queue| queue.batcher.take_unmeetable(now));
        let with_error = |(calls, time): (Vec<Token>, _)| {
            calls.into_iter().map(move |call| (call, Deadline::unmeetable(time)))
        };
        unmeetable.flat_map(with_error).collect()
    }

    /// Takes a batch that is due. It has no calls if all of its calls have ended.
    pub(crate) fn next(&mut self, now: Instant, calls: &mut Calls) -> Option<Batch> {
        let (queue, tokens) = self.queues.iter_mut().find_map(|queue| queue.next(now))?;
        let mut items = Vec::new();
        for token in tokens {
            let call = calls.find(token).and_then(Entry::call);
            if let Some(input) = call.and_then(|call| call.input()) {
                items.push((token, input));
            }
        }
        if !items.is_empty() {
            self.counts.record(&queue.procedure, items.len());
            self.counts.began(&queue.procedure, now);
        }
        if items.is_empty() {
            queue.finished();
        }
        let (procedure, rules) = (queue.procedure.clone(), queue.rules);
        Some(Batch { procedure, rules, calls: BatchCalls(items) })
    }
}

impl Queue {
    /// A batch has ended, or one group of several.
    fn finished(&mut self) {
        if self.more_groups > 0 {
            self.more_groups -= 1;
        } else if let Some(oldest) = self.running.pop_front() {
            self.batcher.finished(oldest, Instant::now());
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.batcher.due().is_some_and(|due| due <= now)
    }

    fn next(&mut self, now: Instant) -> Option<(&mut Self, Vec<Token>)> {
        let tokens = if self.is_due(now) { self.batcher.next(now) } else { None }?;
        self.running.extend(tokens.first());
        Some((self, tokens))
    }
}
