//! What a generator that runs shares with its worker: its calls, and how many of their items wait.
//!
//! An item takes the lock once, after it is written: that adds it and says what the generator does
//! next. The lock is never held while Python code runs or an object is dropped, because a thread
//! that waits for the interpreter's lock would hold up the worker.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ucall_server::Token;

use super::call::{
    CallKey, CallPlace, ItemList, ItemTarget, Items, NewCall, StreamCall, WAITING_BYTES_MAX,
};
use super::context::StreamContext;
use super::end::EndType;
use super::slots::SlotTable;
use super::state::{Progress, StreamState, Waiter};
use crate::arguments::Failure;
use crate::awaited_call::AwaitedCall;
use crate::batch_results;
use crate::batch_texts::OutcomeText;
use crate::clock::Clock;
use crate::convert::ConversionFault;
use crate::errors;
use crate::log::Interrupted;
use crate::origin::{CallOrigin, FailedCalls};
use crate::outcomes::DeferredOutcome;
use crate::procedure::{CallMode, Executor, SharedProcedure};

/// A generator that runs, for one call or for the calls of a batch.
pub(crate) struct Stream {
    pub(crate) procedure: SharedProcedure,
    pub(super) context: StreamContext,
    executor: Executor,
    /// The calls that the generator began with.
    keys: Vec<CallKey>,
    /// Whether others take their places.
    pub(super) has_slots: bool,
    state: Mutex<StreamState>,
    /// Notified when there may be room, or no call is open.
    changed: Condvar,
}

/// A call, and the stream that answers it.
#[derive(Clone)]
pub(crate) struct StreamedCall {
    pub(crate) stream: Arc<Stream>,
    pub(crate) key: CallKey,
}

/// A call that has just ended.
pub(crate) struct ClosedCall {
    key: CallKey,
    list: ItemList,
    origin: Option<Arc<CallOrigin>>,
    awaited: Option<Arc<AwaitedCall>>,
    /// Goes on, for other calls or to its end.
    pub(crate) waiter: Option<Waiter>,
    /// Is to be cancelled, as no call is open.
    pub(crate) task: Option<Py<PyAny>>,
}

impl Stream {
    pub(crate) fn new(
        procedure: SharedProcedure,
        context: StreamContext,
        calls: impl Iterator<Item = NewCall>,
    ) -> Self {
        let call = |(position, NewCall { token, target, origin, awaited })| {
            let call = StreamCall::new(token, CallPlace::Generator, origin);
            (CallKey { position, token, target }, StreamCall { awaited, ..call })
        };
        let (keys, calls) = calls.enumerate().map(call).unzip();
        Self::of(procedure, context, keys, calls, None)
    }

    /// The stream of a function with `count` slots, which has no calls yet.
    pub(super) fn with_slots(
        procedure: SharedProcedure,
        context: StreamContext,
        count: usize,
    ) -> Self {
        let slots = Some(SlotTable::new(count));
        Self::of(procedure, context, Vec::new(), Vec::new(), slots)
    }

    fn of(
        procedure: SharedProcedure,
        context: StreamContext,
        keys: Vec<CallKey>,
        calls: Vec<StreamCall>,
        slots: Option<SlotTable>,
    ) -> Self {
        let executor = procedure.mode.executor().unwrap_or(Executor::Inline);
        let (open, slice_began) = (calls.len(), Some(Clock::COARSE.now()));
        let has_slots = slots.is_some();
        let state =
            StreamState { calls, open, full: 0, waiter: None, task: None, slice_began, slots };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { procedure, context, executor, keys, has_slots, state, changed }
    }

    /// The calls that the generator began with.
    pub(crate) fn keys(&self) -> &[CallKey] {
        &self.keys
    }

    /// Whether what the generator yields are lists with an entry for each call.
    pub(crate) fn is_batch(&self) -> bool {
        matches!(self.procedure.mode, CallMode::Batch(_))
    }

    /// Whether the worker may get objects of the generator: not of one in a thread.
    #[inline]
    pub(crate) fn has_objects(&self) -> bool {
        self.executor != Executor::Thread
    }

    /// Whether the generator answers many calls, so that it has an entry of its own.
    pub(crate) fn has_entry(&self) -> bool {
        self.has_slots || self.is_batch()
    }

    /// Takes what the generator has yielded: an item, a list with an entry for each call, or items
    /// for calls in slots.
    /// Returns what the generator does next. `text` is memory for an item.
    #[inline]
    pub(crate) fn put(
        &self,
        yielded: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        let progress = match self.keys.first() {
            Some(&call) if !self.is_batch() => self.put_item(call, yielded, text),
            Some(_) => self.put_entries(yielded, text),
            None => self.put_pairs(yielded, text),
        };
        text.clear();
        text.shrink_to(WAITING_BYTES_MAX);
        progress
    }

    fn put_entries(
        &self,
        yielded: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        let py = yielded.py();
        let entries = batch_results::as_list(yielded, self.keys.len())?;
        let mut progress = None;
        for key in self.open_calls() {
            let entry = entries.get_item(key.position).map_err(Failure::Raised)?;
            let ended = if entry.is_instance_of::<EndType>() {
                Ok(py.None().into_bound(py))
            } else {
                let item = batch_results::item_result(entry);
                match item.and_then(|item| self.put_item(key, &item, text)) {
                    Ok(next) => {
                        progress = Some(next);
                        continue;
                    }
                    Err(failure) => Err(failure),
                }
            };
            progress = None;
            if let Some(call) = self.close_call(key) {
                // An entry is no interrupt of this thread.
                let _ = self.answer(py, call, ended);
            }
        }
        Ok(progress.unwrap_or_else(|| self.progress()))
    }

    /// Writes an item as JSON, and adds it to those that wait for the worker, which takes all of
    /// them at once, or to the list of all.
    #[inline]
    fn put_item(
        &self,
        key: CallKey,
        item: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        let (first, progress) = self.add_item(key, item, text)?;
        if let Some(first) = first {
            self.report_outcome(item.py(), first, DeferredOutcome::Items);
        }
        Ok(progress)
    }

    /// [`Stream::put_item`] without a report to the worker. Returns the call's token if this is the
    /// first item that waits.
    #[inline]
    pub(super) fn add_item(
        &self,
        key: CallKey,
        item: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<(Option<Token>, Progress), Failure> {
        if key.target == ItemTarget::Hook {
            return Ok(self.add_item_for_hook(key, item));
        }
        text.clear();
        self.write_item(key, item, text)?;
        let (added, progress) = {
            let mut state = self.state();
            let added = state.change_open(key, |call| call.add(key.target, text, &self.context));
            (added, state.progress(self.executor))
        };
        let first = added.unwrap_or(Ok(None)).map_err(Failure::Result)?;
        Ok((first, progress))
    }

    /// [`Stream::add_item`] for the hook that awaits the call.
    #[cold]
    fn add_item_for_hook(
        &self,
        key: CallKey,
        item: &Bound<'_, PyAny>,
    ) -> (Option<Token>, Progress) {
        // `item` has a reference of its own, so none is the last one under the lock.
        let object = item.clone().unbind();
        let mut state = self.state();
        let first = state.change_open(key, |call| call.add_for_hook(object));
        (first.flatten(), state.progress(self.executor))
    }

    #[inline]
    fn write_item(
        &self,
        key: CallKey,
        item: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let len_max = self.context.reply_bytes_max;
        match key.target {
            ItemTarget::Caller => {
                self.procedure.write_item(text, len_max, item).map_err(Failure::Item)
            }
            ItemTarget::List | ItemTarget::Reported => {
                self.procedure.write(text, len_max, item).map_err(|fault| {
                    let index = self.state().change_open(key, |call| call.list.len());
                    Failure::Result(fault.at_index(index.unwrap_or(0)))
                })
            }
            ItemTarget::Nowhere | ItemTarget::Hook => Ok(()),
        }
    }

    /// What the generator does next.
    #[inline]
    pub(crate) fn progress(&self) -> Progress {
        self.state().progress(self.executor)
    }

    /// Keeps what waits for room. Gives it back if there is room, or no call is open: it waits only
    /// until others have run.
    pub(crate) fn set_waiter(&self, waiter: Waiter) -> Option<Waiter> {
        let mut state = self.state();
        state.slice_began = None;
        match state.readiness() {
            Progress::Wait => state.waiter.replace(waiter),
            Progress::Continue | Progress::End => Some(waiter),
        }
    }

    /// The task goes on after it has waited.
    pub(super) fn begin_slice(&self) {
        self.state().slice_began = Some(Clock::COARSE.now());
    }

    /// Waits for room, or until no call is open. Returns what the generator does then. The thread
    /// must be detached.
    pub(super) fn wait_for_room(&self) -> Progress {
        let waits = |state: &mut StreamState| state.progress(self.executor) == Progress::Wait;
        let state = self.changed.wait_while(self.state(), waits);
        state.unwrap_or_else(PoisonError::into_inner).progress(self.executor)
    }

    /// Sets the task that runs the generator.
    pub(super) fn set_task(&self, task: Py<PyAny>) {
        // Dropped without the lock: that may run code.
        let before = self.state().task.replace(task);
        drop(before);
    }

    /// Moves the items that wait to `items`, which is empty. Returns what waited for that.
    pub(crate) fn take_items(&self, key: CallKey, items: &mut Items) -> Option<Waiter> {
        let mut state = self.state();
        state.change(key, |call| mem::swap(&mut call.waiting, items))?;
        state.slice_began = None;
        state.release(key);
        self.wake(&mut state)
    }

    /// Takes the items of a call that wait for the hook. Returns what waited for that, too.
    pub(crate) fn take_items_for_hook(
        &self,
        key: CallKey,
        awaited: &AwaitedCall,
    ) -> (Vec<Py<PyAny>>, Option<Waiter>) {
        let mut state = self.state();
        let items = state.change(key, |_| awaited.take_items());
        state.slice_began = None;
        // Another call may have the record of one that has ended.
        (items.unwrap_or_else(|| awaited.take_items()), self.wake(&mut state))
    }

    /// Pauses or resumes a call whose caller reads slowly. Returns what waited for that.
    pub(crate) fn set_paused(&self, key: CallKey, is_paused: bool) -> Option<Waiter> {
        let mut state = self.state();
        state.change_open(key, |call| call.is_paused = is_paused)?;
        self.wake(&mut state)
    }

    pub(super) fn wake(&self, state: &mut StreamState) -> Option<Waiter> {
        if state.readiness() == Progress::Wait {
            return None;
        }
        if self.executor == Executor::Thread {
            self.changed.notify_all();
        }
        state.waiter.take()
    }

    /// Ends a call, without a reply; `None` if it has ended.
    pub(crate) fn close_call(&self, key: CallKey) -> Option<ClosedCall> {
        let mut state = self.state();
        let (list, origin, awaited) = state.change_open(key, |call| {
            call.has_ended = true;
            (mem::take(&mut call.list), call.origin.take(), call.awaited.take())
        })?;
        state.count_ended(key);
        let is_last = state.open == 0 && !self.has_slots;
        let task = if is_last { state.task.take() } else { None };
        let waiter = self.wake(&mut state);
        Some(ClosedCall { key, list, origin, awaited, waiter, task })
    }

    /// [`Stream::close_call`], and drops the items that wait.
    pub(super) fn abandon_call(&self, key: CallKey) -> Option<ClosedCall> {
        let closed = self.close_call(key);
        let mut state = self.state();
        let items = state.change(key, |call| mem::take(&mut call.waiting));
        state.release(key);
        drop(state);
        drop(items);
        closed
    }

    /// Whether a call has not ended.
    pub(super) fn is_open(&self, key: CallKey) -> bool {
        self.state().find(key).is_some_and(|call| !call.has_ended)
    }

    /// The task that runs the generator, which is not to be cancelled by others.
    pub(super) fn take_task(&self) -> Option<Py<PyAny>> {
        self.state().task.take()
    }

    /// Ends the stream: answers the calls that are open.
    pub(crate) fn end(
        &self,
        py: Python<'_>,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) -> Result<(), Interrupted> {
        let open = self.open_calls().into_iter().filter_map(|key| self.close_call(key));
        let open: Vec<_> = open.collect();
        match result {
            Ok(_) if self.has_slots && !open.is_empty() => {
                let problem = "the generator returned before ucall.END of a call";
                let failure = Failure::Result(ConversionFault::value(problem.to_owned()));
                self.fail(py, &open, failure)
            }
            Ok(value) => {
                let answer = |call| self.answer(py, call, Ok(value.clone()));
                open.into_iter().map(answer).fold(Ok(()), Result::and)
            }
            Err(Failure::Raised(error)) if open.is_empty() => {
                match errors::is_cancelled(py, &error) {
                    true => Ok(()),
                    false => self.context.report.abandoned(py, &error),
                }
            }
            Err(_) if open.is_empty() => Ok(()),
            Err(failure) => self.fail(py, &open, failure),
        }
    }

    /// Answers calls with one error, which is logged once.
    fn fail(
        &self,
        py: Python<'_>,
        calls: &[ClosedCall],
        failure: Failure,
    ) -> Result<(), Interrupted> {
        let (report, len_max) = (&self.context.report, self.context.reply_bytes_max);
        let first = calls.first().and_then(|call| call.origin.as_ref());
        let failed = FailedCalls::of(first, calls.len());
        let (error, logged) = report.fail(py, &self.procedure, failed, failure, len_max);
        for call in calls {
            self.report_outcome(py, call.key.token, DeferredOutcome::Text(Err(error.clone())));
        }
        logged
    }

    /// Answers a call with what its generator has returned.
    fn answer(
        &self,
        py: Python<'_>,
        mut call: ClosedCall,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) -> Result<(), Interrupted> {
        let token = call.key.token;
        match self.ended_text(py, &mut call, result) {
            Ok(text) => {
                self.report_outcome(py, token, DeferredOutcome::Text(Ok(text.into())));
                Ok(())
            }
            Err(failure) => self.fail(py, &[call], failure),
        }
    }

    /// What a call gets that ends beside others.
    pub(super) fn outcome_of(
        &self,
        py: Python<'_>,
        mut call: ClosedCall,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) -> (Token, DeferredOutcome) {
        let (token, len_max) = (call.key.token, self.context.reply_bytes_max);
        let text = self.ended_text(py, &mut call, result);
        // An entry is no interrupt of this thread.
        let calls = FailedCalls::one(call.origin.as_deref());
        let failed =
            |failure| self.context.report.fail(py, &self.procedure, calls, failure, len_max).0;
        (token, DeferredOutcome::Text(text.map(OutcomeText::Own).map_err(failed)))
    }

    /// The text of a call's result. A hook that awaits the call gets what has ended it instead.
    fn ended_text(
        &self,
        py: Python<'_>,
        call: &mut ClosedCall,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) -> Result<Vec<u8>, Failure> {
        if let Some(awaited) = call.awaited.take() {
            let ended = result.map(|_| py.None());
            awaited.keep(ended.map_err(|failure| failure.into_exception(py)));
            return Ok(Vec::new());
        }
        self.reply_text(call.key.target, mem::take(&mut call.list), &result?)
    }

    /// The text of a call's result, after its generator has returned `value`.
    fn reply_text(
        &self,
        target: ItemTarget,
        list: ItemList,
        value: &Bound<'_, PyAny>,
    ) -> Result<Vec<u8>, Failure> {
        let mut text = Vec::new();
        match target {
            ItemTarget::Caller => {
                let len_max = self.context.reply_bytes_max;
                self.procedure.write_item(&mut text, len_max, value).map_err(Failure::Result)?;
            }
            ItemTarget::List | ItemTarget::Reported => text = list.finish(),
            ItemTarget::Nowhere | ItemTarget::Hook => {}
        }
        Ok(text)
    }

    /// The calls that have not ended.
    fn open_calls(&self) -> Vec<CallKey> {
        let state = self.state();
        let is_open = |key: &CallKey| state.find(*key).is_some_and(|call| !call.has_ended);
        let in_slots = state.slots.iter().flat_map(SlotTable::taken);
        self.keys.iter().copied().chain(in_slots).filter(is_open).collect()
    }

    #[inline]
    pub(super) fn report_outcome(&self, py: Python<'_>, token: Token, outcome: DeferredOutcome) {
        match self.executor {
            Executor::Thread => self.context.outcomes.send(token, outcome),
            Executor::Inline | Executor::Task => self.context.outcomes.push(py, token, outcome),
        }
    }

    /// Reports the outcomes of a step together.
    pub(super) fn report_outcomes(&self, py: Python<'_>, outcomes: Vec<(Token, DeferredOutcome)>) {
        match self.executor {
            Executor::Thread if !outcomes.is_empty() => self.context.outcomes.send_all(outcomes),
            _ => outcomes.into_iter().for_each(|(token, it)| self.report_outcome(py, token, it)),
        }
    }

    #[inline]
    pub(super) fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
