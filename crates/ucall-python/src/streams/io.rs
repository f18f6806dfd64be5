//! What a worker keeps of its streams: those that go on at the end of its turn, and the items that
//! it passes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ucall_server::{CallId, Polled, Token};

use super::polled::PolledItems;
use super::ready::{Ready, ReadyStreams};
use super::slots::SlotStreams;
use super::state::Waiter;
use super::{Generator, NewCall, Stream, StreamContext, StreamedCall};
use crate::asyncio::tasks;
use crate::awaited_call::AwaitedCall;
use crate::background::DueJob;
use crate::calls::{Calls, Entry};
use crate::procedure::SharedProcedure;

/// Streams are busy if a turn has taken items this shortly before.
const ITEMS_INTERVAL: Duration = Duration::from_millis(5);

/// The streams of one worker, between its turns and in them.
pub(crate) struct StreamIo {
    context: StreamContext,
    ready: ReadyStreams,
    /// Items that the worker polls.
    polled: PolledItems,
    slots: SlotStreams,
    /// The turn that has taken items last.
    last_items: Option<Instant>,
    /// Memory for an item.
    pub(super) text: Vec<u8>,
}

impl StreamIo {
    pub(crate) fn new(context: StreamContext) -> Self {
        let (ready, polled) = (ReadyStreams::default(), PolledItems::default());
        let slots = SlotStreams::default();
        Self { context, ready, polled, slots, last_items: None, text: Vec::new() }
    }

    pub(crate) fn context(&self) -> &StreamContext {
        &self.context
    }

    /// Whether something goes on at the end of the turn.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether [`StreamIo::next_item`] may have one.
    #[inline]
    pub(crate) fn has_items(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Appends the next item to `text`.
    pub(crate) fn next_item(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        self.polled.next(text)
    }

    /// Whether a turn shortly before this one has taken items.
    #[inline]
    pub(crate) fn sends_items(&self, turn_began: Instant) -> bool {
        let is_recent = |last| turn_began.saturating_duration_since(last) < ITEMS_INTERVAL;
        self.last_items.is_some_and(is_recent)
    }

    /// Makes the stream of a generator that answers the calls `tokens`.
    pub(crate) fn insert(
        &self,
        calls: &mut Calls,
        procedure: &SharedProcedure,
        tokens: &[Token],
    ) -> Arc<Stream> {
        let new = tokens.iter().map(|&token| {
            let call = calls.find(token).and_then(Entry::call);
            call.map_or(NewCall::ended(token), |call| NewCall::of(token, call))
        });
        let stream = Arc::new(Stream::new(procedure.clone(), self.context.clone(), new));
        for (&key, &token) in stream.keys().iter().zip(tokens) {
            if let Some(call) = calls.find(token).and_then(Entry::call) {
                call.items.stream = Some(StreamedCall { stream: stream.clone(), key });
            }
        }
        stream
    }

    /// Has a generator take its next step at the end of the turn.
    pub(crate) fn push(&mut self, stream: Arc<Stream>, generator: Generator) {
        self.ready.push(stream, generator);
    }

    /// The stream of a function with `count` slots.
    pub(super) fn slots_of(&mut self, procedure: &SharedProcedure, count: usize) -> Arc<Stream> {
        let (stream, retired) = self.slots.of(procedure, count, &self.context);
        self.push_waiters(retired);
        stream
    }

    /// Whether so many calls of a function wait for a slot.
    pub(crate) fn is_queue_full(&self, procedure: &SharedProcedure, max: usize) -> bool {
        self.slots.is_queue_full(procedure, max)
    }

    /// Has the generators of functions with slots end once they have no calls. Returns whether any
    /// runs.
    pub(crate) fn retire_slots(&mut self) -> bool {
        self.push_waiters(self.slots.retire());
        self.slots.are_running()
    }

    /// Ends them, also those that wait for something else.
    pub(crate) fn cancel_slots(&mut self, py: Python<'_>) {
        self.push_waiters(self.slots.retire());
        self.slots.take_tasks().iter().for_each(|task| tasks::cancel(py, task));
    }

    fn push_waiters(&mut self, waiters: Vec<(Arc<Stream>, Waiter)>) {
        for (stream, waiter) in waiters {
            self.push_waiter(stream, waiter);
        }
    }

    /// Has a future be done at the end of the turn.
    pub(crate) fn push_future(&mut self, future: Py<PyAny>) {
        self.ready.push_future(future);
    }

    /// Callbacks of the loop are due: the worker does not wait before they have run.
    pub(crate) fn push_callbacks(&mut self) {
        self.ready.push_callbacks();
    }

    /// Has the generator of a function with slots start at the end of the turn.
    pub(super) fn push_start(&mut self, stream: Arc<Stream>) {
        self.ready.push_start(stream);
    }

    /// Has what waited for room go on at the end of the turn.
    pub(super) fn push_waiter(&mut self, stream: Arc<Stream>, waiter: Waiter) {
        self.ready.push_waiter(stream, waiter);
    }

    /// Has a function in the background start at the end of a turn.
    pub(crate) fn push_job(&mut self, job: DueJob) {
        self.ready.push_job(job);
    }

    /// The work of this turn's end that is no step of a generator.
    pub(super) fn take_others(&mut self) -> Vec<Ready> {
        std::mem::take(&mut self.ready.others)
    }

    /// The generator whose turn it is.
    pub(super) fn next_generator(&mut self) -> Option<(Arc<Stream>, Generator)> {
        self.ready.generators.pop_front()
    }

    /// Takes the items of a call that wait, unless it has ended.
    pub(crate) fn take_items(&mut self, calls: &mut Calls, token: Token, turn_began: Instant) {
        let Some(call) = calls.find(token).and_then(Entry::call) else { return };
        let (Some(caller), Some(stream)) = (call.items.caller, call.items.stream.clone()) else {
            return;
        };
        let StreamedCall { stream, key } = stream;
        self.last_items = Some(turn_began);
        let waiter = self.polled.take(&stream, key, caller);
        if let Some(waiter) = waiter {
            self.push_waiter(stream, waiter);
        }
    }

    /// Takes the items of a call that wait for the hook that awaits it.
    pub(crate) fn take_items_for_hook(
        &mut self,
        StreamedCall { stream, key }: StreamedCall,
        awaited: &AwaitedCall,
    ) -> Vec<Py<PyAny>> {
        let (items, waiter) = stream.take_items_for_hook(key, awaited);
        if let Some(waiter) = waiter {
            self.push_waiter(stream, waiter);
        }
        items
    }

    /// Takes the reports of a call that wait, unless it has ended. Returns whether there were any.
    pub(crate) fn take_reports(&mut self, calls: &mut Calls, token: Token) -> bool {
        let Some(call) = calls.find(token).and_then(Entry::call) else { return false };
        let reports = call.state.as_ref().and_then(|state| state.waiting_reports());
        let (Some(reports), Some(caller)) = (reports, call.items.caller) else { return false };
        self.polled.take_reports(reports, caller);
        true
    }

    /// Pauses or resumes the stream of a call.
    pub(crate) fn set_paused(&mut self, calls: &mut Calls, token: Token, is_paused: bool) {
        let call = calls.find(token).and_then(Entry::call);
        let Some(StreamedCall { stream, key }) = call.and_then(|it| it.items.stream.clone()) else {
            return;
        };
        if let Some(waiter) = stream.set_paused(key, is_paused) {
            self.push_waiter(stream, waiter);
        }
    }

    /// Ends a call of a stream without a reply. Returns the task of its generator, if that is to be
    /// cancelled.
    pub(crate) fn close_call(&mut self, stream: StreamedCall) -> Option<Py<PyAny>> {
        let StreamedCall { stream, key } = stream;
        let closed = stream.abandon_call(key)?;
        if closed.task.is_none()
            && let Some(waiter) = closed.waiter
        {
            // The generator goes on for other calls, or is closed by its next step.
            self.push_waiter(stream, waiter);
        }
        closed.task
    }
}
