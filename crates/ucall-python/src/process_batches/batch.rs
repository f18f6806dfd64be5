//! A batch as the server keeps it while it waits for a process and runs there.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ucall_proto::RpcError;
use ucall_server::process_batches::{
    BatchHead, BatchResults, CallResult, Encoded, ProcessBatch, SentCall,
};
use ucall_server::{CallSource, Token};

use super::origin;
use crate::batch::{BatchCalls, BatchQueue, LentCalls, Unmeetable};
use crate::batch_texts::BatchTexts;
use crate::job_input::Contents;
use crate::outcomes::{DeferredOutcome, Outcomes, ResultText};

/// The calls of a batch, and where their results go.
pub(crate) struct SentBatch {
    /// Gets an outcome once no batch follows.
    token: Token,
    queue: Arc<BatchQueue>,
    /// Names the batch.
    first: Token,
    /// The calls, until the batch is sent.
    waiting: Option<BatchCalls>,
    /// The calls of the batch that was sent.
    sent: LentCalls,
    has_begun: bool,
    head: BatchHead,
    outcomes: Arc<Outcomes>,
    /// What there is to report with its results.
    unmeetable: Unmeetable,
    has_follower: bool,
}

impl SentBatch {
    /// Has a process run a batch.
    pub(crate) fn submit(
        token: Token,
        queue: Arc<BatchQueue>,
        calls: BatchCalls,
        outcomes: Arc<Outcomes>,
    ) {
        let procedure = queue.procedure.clone();
        let (Some(function), Some(first)) = (&procedure.in_processes, calls.first()) else {
            return;
        };
        let head = BatchHead {
            function: function.index(),
            timeout: procedure.timeout,
            is_repeatable: procedure.is_idempotent,
        };
        let (waiting, sent, unmeetable) = (Some(calls), Vec::new(), Vec::new());
        let (has_begun, has_follower) = (false, false);
        function.submit(Self {
            token,
            queue,
            first,
            waiting,
            sent,
            has_begun,
            head,
            outcomes,
            unmeetable,
            has_follower,
        });
    }

    /// Has a process run the next batch, if there is one.
    fn submit_next(&mut self, calls: Option<BatchCalls>) {
        if let Some(calls) = calls {
            self.has_follower = true;
            Self::submit(self.token, self.queue.clone(), calls, self.outcomes.clone());
        }
    }

    /// Reports the outcomes of calls, and the end of the batch.
    fn report(self, outcomes: impl Iterator<Item = (Token, DeferredOutcome)>) {
        let unmeetable = self.unmeetable.into_iter();
        let unmeetable = unmeetable.map(|(call, error)| (call, Err(error).into()));
        let ended = (self.token, DeferredOutcome::ended());
        let ended = (!self.has_follower).then_some(ended);
        // Made before the worker's queue is locked.
        let outcomes: Vec<_> = outcomes.chain(unmeetable).chain(ended).collect();
        self.outcomes.send_all(outcomes);
    }
}

impl ProcessBatch for SentBatch {
    fn prepare(&mut self) -> usize {
        if let Some(calls) = self.waiting.take() {
            self.sent = calls.lend();
        }
        self.sent.len()
    }

    fn calls(&self) -> usize {
        self.sent.len()
    }

    fn message(&self) -> Encoded<'_> {
        let calls: Vec<_> = self.sent.iter().map(|(_, _, contents)| sent(contents)).collect();
        Encoded::batch(self.head, &calls, self.queue.procedure.takes_no_bytes())
    }

    fn timeout(&self) -> Option<Duration> {
        self.head.timeout
    }

    fn take_repetition(&mut self) -> bool {
        mem::take(&mut self.head.is_repeatable)
    }

    fn began(&mut self) {
        if !mem::replace(&mut self.has_begun, true) {
            self.sent.iter_mut().for_each(|(_, _, contents)| drop(contents.waiting.take()));
            self.queue.began(self.first, self.sent.len());
        }
    }

    fn is_outdated(&self) -> bool {
        !self.has_begun && self.queue.is_outdated(self.first)
    }

    fn put_back(mut self: Box<Self>) {
        self.prepare();
        let next = self.queue.put_back(self.first, mem::take(&mut self.sent));
        self.submit_next(next);
        self.report(std::iter::empty());
    }

    fn follow(&mut self) {
        if !self.has_begun {
            // Its calls have ended before, or it has failed in the host.
            return self.queue.failed(self.first, false);
        }
        let (unmeetable, next) = self.queue.follow(self.first);
        self.unmeetable = unmeetable;
        self.submit_next(next);
    }

    fn finish(mut self: Box<Self>, results: BatchResults) {
        let mut texts = BatchTexts::default();
        // The message is in memory that the process needs.
        let placed = results
            .into_iter()
            .map(|result| result.map(|CallResult { text, parts }| (texts.add(&text), parts)));
        let placed: Vec<_> = placed.collect();
        let text_of = texts.finish();
        let tokens = mem::take(&mut self.sent).into_iter().map(|(token, ..)| token);
        let result = |(text, parts)| ResultText { text: text_of(text), parts };
        self.report(tokens.zip(placed.into_iter().map(|placed| placed.map(result).into())));
    }

    fn sources(&self) -> Vec<CallSource> {
        let origins = self.sent.iter().filter_map(|(_, _, contents)| contents.origin.as_ref());
        origins.map(|origin| origin.source()).collect()
    }

    fn fail(mut self: Box<Self>, error: &RpcError) -> usize {
        let calls = self.prepare();
        // The worker takes the next one: this queue may be closed.
        self.queue.failed(self.first, self.has_begun);
        self.finish((0..calls).map(|_| Err(error.clone())).collect());
        calls
    }
}

fn sent(contents: &Contents) -> SentCall<'_> {
    let binary = contents.binary.as_ref();
    SentCall {
        params: contents.params.as_deref(),
        parts: binary.and_then(|binary| binary.parts.as_deref()),
        results: binary.map(|binary| binary.results).unwrap_or_default(),
        origin: origin::encode(contents),
    }
}

impl fmt::Debug for SentBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SentBatch").field("token", &self.token).finish_non_exhaustive()
    }
}
