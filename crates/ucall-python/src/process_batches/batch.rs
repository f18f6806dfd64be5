//! A batch as the server keeps it while it waits for a process and runs there.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ucall_proto::RpcError;
use ucall_server::Token;
use ucall_server::process_batches::{CallResult, ProcessBatch, SentCall};

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
    function: usize,
    splits_arrays: bool,
    timeout: Option<Duration>,
    /// Whether it may begin once more in another process.
    is_repeatable: bool,
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
        Self {
            token,
            waiting: Some(calls),
            running: Vec::new(),
            function: function.index(),
            splits_arrays: procedure.takes_no_bytes(),
            timeout: procedure.timeout,
            is_repeatable: procedure.is_idempotent,
            outcomes,
        }
    }

    /// Whether it may begin once more; not again after that.
    pub(crate) fn take_repetition(&mut self) -> bool {
        mem::take(&mut self.is_repeatable)
    }

    /// Fails all calls. Returns how many they are.
    pub(crate) fn fail(mut self, error: &RpcError) -> usize {
        self.begin();
        let count = self.running.len();
        self.finish((0..count).map(|_| Err(error.clone())).collect());
        count
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

    fn function(&self) -> usize {
        self.function
    }

    fn calls(&self) -> Vec<SentCall<'_>> {
        self.running.iter().map(|(_, contents)| sent(contents)).collect()
    }

    fn splits_arrays(&self) -> bool {
        self.splits_arrays
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn finish(self, results: Vec<Result<CallResult, RpcError>>) {
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
