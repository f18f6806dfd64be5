//! Dynamic batching: calls that arrive together run together.
//!
//! A [`Batcher`] for each function decides when a batch starts and which calls it has. Calls that
//! arrive while batches run wait, so a slower function gets larger batches. A call that ends before
//! (by its deadline, or because its client left) is removed. `batch_inputs.rs` runs the calls of a
//! batch. One for another process may be formed before it begins, and taken back until then.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ucall_proto::RpcError;
use ucall_server::{Batcher, BySlot, Deadline, Full, Token, Waiting, overloaded};

use crate::batch_sizes::BatchCounts;
use crate::job_input::{Contents, JobInput};
use crate::lock_release::LockRelease;
use crate::procedure::{BatchRules, CallMode, Executor, SharedProcedure};
use crate::read_ahead::{BatchInput, ReadParams, WaitingInput};

/// Calls are read ahead if so many wait when a batch begins, and the results of the last batch are
/// written beside the next one if that has so many.
const OVERLAP_MIN: usize = 8;

/// The calls of a worker that wait for batches.
pub(crate) struct Batches {
    queues: Vec<Arc<BatchQueue>>,
    counts: Arc<BatchCounts>,
}

/// The calls of one function that wait for batches. The thread that has run a batch takes the next
/// one itself, because the worker may be reading what has arrived.
pub(crate) struct BatchQueue {
    pub(crate) procedure: SharedProcedure,
    pub(crate) rules: BatchRules,
    counts: Arc<BatchCounts>,
    /// Whether another thread may work for the batches that follow while one runs.
    overlaps: bool,
    state: Mutex<QueueState>,
}

struct QueueState {
    batcher: Batcher<Token>,
    /// Those of the calls that wait.
    inputs: BySlot<Token, WaitingInput>,
    /// The names of the batches that run, the oldest first.
    running: VecDeque<Token>,
    /// The groups of batches that run, beyond one of each.
    more_groups: usize,
    lock_release: LockRelease,
    /// The calls that were read, of which some may wait no longer.
    read: Vec<Token>,
}

/// Calls that run together.
pub(crate) struct Batch {
    pub(crate) queue: Arc<BatchQueue>,
    pub(crate) calls: BatchCalls,
}

/// The calls of a batch, each with its input. That of a call which ends before the batch runs is
/// taken out.
pub(crate) struct BatchCalls {
    calls: Vec<(Token, WaitingInput)>,
    /// Whether to read calls that wait while these run.
    pub(crate) reads_ahead: bool,
    /// Whether these may run before the results of the last batch are written.
    pub(crate) precedes_results: bool,
}

/// The calls of a batch, each with its input and what that had.
pub(crate) type LentCalls = Vec<(Token, Arc<JobInput>, Contents)>;

/// The calls whose deadline the next batch cannot meet, with their errors.
pub(crate) type Unmeetable = Vec<(Token, RpcError)>;

impl BatchCalls {
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The name of the batch.
    pub(crate) fn first(&self) -> Option<Token> {
        self.calls.first().map(|(token, _)| *token)
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.calls.iter().map(|(token, _)| *token).collect()
    }

    /// Takes the inputs of the calls that have not ended.
    pub(crate) fn take(self) -> impl Iterator<Item = (Token, BatchInput)> {
        let taken = |(token, waiting): (Token, WaitingInput)| Some((token, waiting.take()?));
        self.calls.into_iter().filter_map(taken)
    }

    /// The inputs of the calls that have not ended, of a batch that may be
    /// [put back](BatchQueue::put_back).
    pub(crate) fn lend(self) -> LentCalls {
        let lent = |(token, WaitingInput { input, .. }): (Token, WaitingInput)| {
            let contents = input.take()?;
            Some((token, input, contents))
        };
        self.calls.into_iter().filter_map(lent).collect()
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
        let checked = self.find(procedure).map_or(Ok(()), |it| it.state().batcher.check_full());
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
        input: Arc<JobInput>,
    ) -> Result<(), Full> {
        if let Some(queue) = self.find(procedure) {
            return queue.push(waiting, input);
        }
        let queue = BatchQueue::new(procedure.clone(), rules, self.counts.clone());
        let pushed = queue.push(waiting, input);
        self.queues.push(Arc::new(queue));
        pushed
    }

    /// Removes a call that waits no longer.
    pub(crate) fn remove(&mut self, token: Token) {
        let _ = self.queues.iter().any(|queue| queue.remove(token));
    }

    fn find(&self, procedure: &SharedProcedure) -> Option<&Arc<BatchQueue>> {
        self.queues.iter().find(|queue| Arc::ptr_eq(&queue.procedure, procedure))
    }

    /// Records the end of a batch: of the oldest one, as only a batch that runs alone teaches the
    /// time of batches.
    pub(crate) fn finished(&mut self, procedure: &SharedProcedure) {
        if let Some(queue) = self.find(procedure) {
            queue.oldest_finished();
        }
        self.forget_unused();
    }

    /// Removes the queues of functions that have been replaced, once their last batch has ended.
    pub(crate) fn forget_unused(&mut self) {
        let is_used = |queue: &Arc<BatchQueue>| {
            queue.state().has_calls() || Arc::strong_count(&queue.procedure) > 1
        };
        self.queues.retain(is_used);
    }

    /// Counts the further streams of a batch whose calls form several groups.
    pub(crate) fn started(&mut self, procedure: &SharedProcedure, more: usize) {
        if let Some(queue) = self.find(procedure) {
            queue.state().more_groups += more;
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
        self.queues.iter().filter_map(|queue| queue.state().batcher.due()).min()
    }

    /// Removes the calls whose deadline the next batch cannot meet.
    pub(crate) fn take_unmeetable(&mut self, now: Instant) -> Unmeetable {
        self.queues.iter().flat_map(|queue| queue.take_unmeetable(now)).collect()
    }

    /// Takes a batch that is due.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Batch> {
        self.queues.iter().find_map(|queue| {
            let calls = queue.next(now)?;
            Some(Batch { queue: queue.clone(), calls })
        })
    }
}

impl BatchQueue {
    fn new(procedure: SharedProcedure, rules: BatchRules, counts: Arc<BatchCounts>) -> Self {
        let mut batcher = Batcher::new(rules.limits);
        match (&procedure.in_processes, procedure.batch_times.get()) {
            (Some(function), _) => batcher.seed(&function.times()),
            (None, measured) => batcher.seed(measured.map(Vec::as_slice).unwrap_or_default()),
        }
        let state = QueueState {
            batcher,
            inputs: BySlot::default(),
            running: VecDeque::new(),
            more_groups: 0,
            lock_release: LockRelease::default(),
            read: Vec::new(),
        };
        let overlaps = rules.executor == Executor::Thread
            && !rules.yields
            && rules.limits.running_max == 1
            && procedure.in_processes.is_none();
        Self { procedure, rules, counts, overlaps, state: Mutex::new(state) }
    }

    fn push(&self, waiting: Waiting<Token>, input: Arc<JobInput>) -> Result<(), Full> {
        let (mut state, call) = (self.state(), waiting.call);
        state.batcher.push(waiting)?;
        state.inputs.insert(call, input.into());
        let is_recalled = state.batcher.take_recall();
        drop(state);
        self.recall_if(is_recalled);
        Ok(())
    }

    /// Returns whether the call has waited.
    fn remove(&self, token: Token) -> bool {
        let mut state = self.state();
        let input = state.inputs.remove(token);
        let has_waited = state.batcher.remove(token);
        let is_recalled = state.batcher.take_recall();
        // It may have objects, which are dropped with the interpreter's lock.
        drop(state);
        drop(input);
        self.recall_if(is_recalled);
        has_waited
    }

    fn next(&self, now: Instant) -> Option<BatchCalls> {
        let calls = self.state().next(now, self.overlaps)?;
        if self.procedure.in_processes.is_none() {
            self.count(calls.len(), now);
        }
        Some(calls)
    }

    /// Counts a batch that begins.
    fn count(&self, size: usize, now: Instant) {
        self.counts.record(&self.procedure, size);
        self.counts.began(&self.procedure, now);
    }

    /// Has processes take back the batches that are outdated.
    fn recall_if(&self, is_recalled: bool) {
        if is_recalled && let Some(function) = &self.procedure.in_processes {
            function.recall();
        }
    }

    /// A process begins the batch whose first call this is, of so many.
    pub(crate) fn began(&self, first: Token, size: usize) {
        let now = Instant::now();
        self.count(size, now);
        self.state().batcher.began(first, now);
    }

    /// Whether the batch whose first call this is should not begin as it is.
    pub(crate) fn is_outdated(&self, first: Token) -> bool {
        self.state().batcher.is_outdated(first)
    }

    /// Has the calls of a batch wait again, whose first call was `first`. Takes the next batch, if
    /// one is due.
    pub(crate) fn put_back(&self, first: Token, calls: LentCalls) -> Option<BatchCalls> {
        let now = Instant::now();
        let mut state = self.state();
        state.running.retain(|running| *running != first);
        let waiting = state.batcher.put_back(first, now);
        let (waiting, ended): (LentCalls, LentCalls) =
            calls.into_iter().partition(|(token, ..)| waiting.contains(token));
        for (token, input, contents) in waiting {
            input.put_back(contents);
            state.inputs.insert(token, input.into());
        }
        drop(state);
        drop(ended);
        self.next(now)
    }

    /// The batch whose first call this is has failed. If it `has_begun`, it was counted.
    pub(crate) fn failed(&self, first: Token, has_begun: bool) {
        if has_begun {
            self.counts.ended(&self.procedure);
        }
        self.state().finished(first, Instant::now());
    }

    /// A batch has ended, or one group of several.
    fn oldest_finished(&self) {
        let mut state = self.state();
        if state.more_groups > 0 {
            state.more_groups -= 1;
            return;
        }
        if let Some(&oldest) = state.running.front() {
            state.finished(oldest, Instant::now());
        }
        drop(state);
        self.counts.ended(&self.procedure);
    }

    /// The function has returned for the batch whose first call this is. Takes the next batch, if
    /// one is due.
    pub(crate) fn follow(&self, first: Token) -> (Unmeetable, Option<BatchCalls>) {
        let now = Instant::now();
        self.counts.ended(&self.procedure);
        self.state().finished(first, now);
        (self.take_unmeetable(now), self.next(now))
    }

    /// A thread has the interpreter's lock, for which it has waited so long since the batch with
    /// this first call began. Returns whether that runs.
    pub(crate) fn got_lock(&self, first: Token, waited: Duration) -> bool {
        let mut state = self.state();
        let is_running = state.running.contains(&first);
        state.lock_release.learn(waited, is_running);
        is_running
    }

    /// The first of the calls that wait and were not read, so many that one batch could have all
    /// that are read then: objects are larger than their text.
    pub(crate) fn unread(&self) -> Vec<(Token, Arc<JobInput>)> {
        let QueueState { batcher, inputs, read, .. } = &mut *self.state();
        read.retain(|call| inputs.find_mut(*call).is_some_and(|waiting| waiting.read.is_some()));
        let size_max = self.rules.limits.size_max;
        let unread = |token| {
            let waiting = inputs.find_mut(token).filter(|waiting| waiting.read.is_none())?;
            Some((token, waiting.input.clone()))
        };
        let room = size_max.saturating_sub(read.len());
        batcher.first_waiting(size_max).filter_map(unread).take(room).collect()
    }

    /// Keeps what was read for the calls that still wait. Returns the rest, which is dropped with
    /// the interpreter's lock.
    pub(crate) fn keep_read(&self, read: Vec<(Token, ReadParams)>) -> Vec<ReadParams> {
        let mut state = self.state();
        state.read.extend(read.iter().map(|(token, _)| *token));
        let left = |(token, params)| match state.inputs.find_mut(token) {
            Some(waiting) => waiting.read.replace(params),
            None => Some(params),
        };
        read.into_iter().filter_map(left).collect()
    }

    fn take_unmeetable(&self, now: Instant) -> Unmeetable {
        let mut state = self.state();
        let (unmeetable, inputs) = state.take_unmeetable(now);
        // They may have objects, which are dropped with the interpreter's lock.
        drop(state);
        drop(inputs);
        unmeetable
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn has_calls(&self) -> bool {
        !self.running.is_empty() || self.batcher.waiting() > 0
    }

    fn is_due(&self, now: Instant) -> bool {
        self.batcher.due().is_some_and(|due| due <= now)
    }

    fn finished(&mut self, first: Token, now: Instant) {
        self.running.retain(|running| *running != first);
        self.batcher.finished(first, now);
    }

    fn next(&mut self, now: Instant, overlaps: bool) -> Option<BatchCalls> {
        if !self.is_due(now) {
            return None;
        }
        let tokens = self.batcher.next(now)?;
        self.running.extend(tokens.first());
        let with_input = |token| Some((token, self.inputs.remove(token)?));
        let calls: Vec<_> = tokens.into_iter().filter_map(with_input).collect();
        let do_many_wait = overlaps && self.batcher.waiting() >= OVERLAP_MIN;
        Some(BatchCalls {
            precedes_results: overlaps
                && calls.len() >= OVERLAP_MIN
                && self.lock_release.is_released(),
            reads_ahead: do_many_wait && self.lock_release.batch_begins(),
            calls,
        })
    }

    /// Also returns what the calls leave.
    fn take_unmeetable(&mut self, now: Instant) -> (Unmeetable, Vec<WaitingInput>) {
        let is_due = self.is_due(now);
        let taken = is_due.then(|| self.batcher.take_unmeetable(now)).flatten();
        let (calls, time) = taken.unwrap_or((Vec::new(), Duration::ZERO));
        let inputs = calls.iter().filter_map(|call| self.inputs.remove(*call)).collect();
        let with_error = |call| (call, Deadline::unmeetable(time));
        (calls.into_iter().map(with_error).collect(), inputs)
    }
}
