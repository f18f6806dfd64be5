//! A batch as the server keeps it while it waits for a process and runs there.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ucall_server::Token;
use ucall_server::process_batches::{
    BatchHead, BatchResults, CallResult, Encoded, ProcessBatch, SentCall,
};

use crate::batch::BatchCalls;
use crate::job_input::Contents;
use crate::outcomes::{DeferredOutcome, Outcomes, ResultText};
use crate::procedure::Procedure;
use crate::process_batches::ProcessFunction;

/// The calls of a batch, and where their results go.
pub(crate) struct SentBatch {
    token: Token,
    /// The calls, until the batch begins.
    waiting: Option<BatchCalls>,
    /// The calls of the batch that runs.
    running: Vec<(Token, Contents)>,
    head: BatchHead,
    splits_arrays: bool,
    outcomes: Arc<Outcomes>,
}

impl SentBatch {
    /// A batch that gets its own outcome, and that of each call, under their tokens.
    pub(crate) fn new(
        token: Token,
        calls: BatchCalls,
        procedure: &Procedure,
        function: &ProcessFunction,
        outcomes: Arc<Outcomes>,
    ) -> Self {
        let head = BatchHead {
            function: function.index(),
            timeout: procedure.timeout,
            is_repeatable: procedure.is_idempotent,
        };
        let splits_arrays = procedure.takes_no_bytes();
        let (waiting, running) = (Some(calls), Vec::new());
        Self { token, waiting, running, head, splits_arrays, outcomes }
    }
}

impl ProcessBatch for SentBatch {
    fn begin(&mut self) -> usize {
        if let Some(calls) = self.waiting.take() {
            self.running = calls.take();
            self.running.iter_mut().for_each(|(_, contents)| drop(contents.waiting.take()));
        }
        self.running.len()
    }

    fn calls(&self) -> usize {
        self.running.len()
    }

    fn message(&self) -> Encoded<'_> {
        let calls: Vec<_> = self.running.iter().map(|(_, contents)| sent(contents)).collect();
        Encoded::batch(self.head, &calls, self.splits_arrays)
    }

    fn timeout(&self) -> Option<Duration> {
        self.head.timeout
    }

    fn take_repetition(&mut self) -> bool {
        mem::take(&mut self.head.is_repeatable)
    }

    fn finish(self: Box<Self>, results: BatchResults) {
        let text = |CallResult { text, parts }| ResultText { text: text.to_vec(), parts };
        let tokens = self.running.into_iter().map(|(token, _)| token);
        let outcomes = tokens.zip(results.into_iter().map(|result| result.map(text).into()));
        let ended = (self.token, DeferredOutcome::Text(Ok(Vec::new())));
        // Made before the worker's queue is locked.
        let outcomes: Vec<_> = outcomes.chain([ended]).collect();
        self.outcomes.send_all(outcomes);
    }
}

fn sent(contents: &Contents) -> SentCall<'_> {
    let binary = contents.binary.as_ref();
    SentCall {
        params: contents.params.as_deref(),
        parts: binary.and_then(|binary| binary.parts.as_deref()),
        results: binary.map(|binary| binary.results).unwrap_or_default(),
    }
}

impl fmt::Debug for SentBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SentBatch").field("token", &self.token).finish_non_exhaustive()
    }
}
