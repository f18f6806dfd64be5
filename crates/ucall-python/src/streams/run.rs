//! What a generator that runs shares with its worker: its calls, and how many of their items wait.
//!
//! The lock is never held while Python code runs or an object is dropped, because a thread that
//! waits for the interpreter's lock would hold up the worker.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use ucall_server::Token;

use super::call::{ItemList, ItemTarget, Items, StreamCall};
use super::context::StreamContext;
use super::end::EndType;
use super::generator::Generator;
use crate::arguments::Failure;
use crate::batch_results;
use crate::clock::{Clock, Moment};
use crate::errors;
use crate::log::Interrupted;
use crate::outcomes::DeferredOutcome;
use crate::procedure::Procedure;

/// A task that goes on this long without a wait lets others run.
const TASK_SLICE_NANOS: u64 = 5_000_000;

/// A generator that runs, for one call or for the calls of a batch.
pub(crate) struct StreamRun {
    pub(crate) procedure: Arc<Procedure>,
    context: StreamContext,
    /// Whether what it yields are lists with an entry for each call.
    is_batch: bool,
    state: Mutex<RunState>,
    /// Notified when there may be room, or no call is open.
    changed: Condvar,
}

struct RunState {
    calls: Vec<StreamCall>,
    /// Calls that have not ended.
    open: usize,
    /// Calls whose items wait.
    full: usize,
    /// Waits for room.
    waiter: Option<Waiter>,
    /// The task that runs the generator.
    task: Option<Py<PyAny>>,
    /// When the generator has last waited.
    waited_at: Moment,
}

/// Waits until a generator may go on.
pub(crate) enum Waiter {
    Generator(Generator),
    /// A future of asyncio.
    Future(Py<PyAny>),
}

/// The run of a call, and its position there.
#[derive(Clone)]
pub(crate) struct StreamPosition {
    pub(crate) run: Arc<StreamRun>,
    pub(crate) position: usize,
}

/// What a generator does after an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Continue,
    /// Wait until the worker has taken the items.
    Wait,
    /// End, because no call is open.
    End,
}

/// What is left of a run whose calls have all ended.
#[derive(Default)]
pub(crate) struct Leftover {
    pub(crate) waiter: Option<Waiter>,
    pub(crate) task: Option<Py<PyAny>>,
}

impl StreamRun {
    pub(crate) fn new(
        procedure: Arc<Procedure>,
        context: StreamContext,
        is_batch: bool,
        calls: impl Iterator<Item = (Token, ItemTarget)>,
    ) -> Self {
        let calls: Vec<_> = calls.map(|(token, target)| StreamCall::new(token, target)).collect();
        let (open, waited_at) = (calls.len(), Clock::COARSE.now());
        let state = RunState { calls, open, full: 0, waiter: None, task: None, waited_at };
        Self { procedure, context, is_batch, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn is_batch(&self) -> bool {
        self.is_batch
    }

    /// Takes what the generator has yielded: an item, or a list with an entry for each call.
    #[inline]
    pub(crate) fn put(&self, py: Python<'_>, yielded: &Bound<'_, PyAny>) -> Result<(), Failure> {
        match self.is_batch {
            true => self.put_entries(py, yielded),
            false => self.put_item(py, 0, yielded),
        }
    }

    fn put_entries(&self, py: Python<'_>, yielded: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let count = self.state().calls.len();
        for (position, entry) in batch_results::as_list(yielded, count)?.iter().enumerate() {
            let ended = if entry.is_instance_of::<EndType>() {
                Ok(py.None().into_bound(py))
            } else if entry.is_instance_of::<PyBaseException>() {
                Err(Failure::Raised(PyErr::from_value(entry)))
            } else {
                match self.put_item(py, position, &entry) {
                    Ok(()) => continue,
                    Err(failure) => Err(failure),
                }
            };
            // An entry is no interrupt of this thread.
            let _ = self.end_call(py, position, ended);
        }
        Ok(())
    }

    /// Writes an item as JSON, unless its call has ended.
    #[inline]
    fn put_item(
        &self,
        py: Python<'_>,
        position: usize,
        item: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let target = self.with_call(position, |call| call.target);
        match target {
            Some(ItemTarget::Caller) => self.send_item(py, position, item),
            Some(ItemTarget::List) => {
                let list = self.with_call(position, |call| mem::take(&mut call.list));
                let mut list = list.unwrap_or_default();
                list.push(&self.procedure, &self.context, item).map_err(Failure::Result)?;
                self.with_call(position, |call| call.list = list);
                Ok(())
            }
            Some(ItemTarget::Nowhere) | None => Ok(()),
        }
    }

    /// Hands an item to the worker, which takes all that wait at once.
    #[inline]
    fn send_item(
        &self,
        py: Python<'_>,
        position: usize,
        item: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let text = self.with_call(position, |call| mem::take(&mut call.cached_text));
        let (mut text, len_max) = (text.unwrap_or_default(), self.context.reply_bytes_max);
        self.procedure.write_item(&mut text, len_max, item).map_err(Failure::Item)?;
        let first = self.with_call(position, |call| {
            let is_first = call.waiting.push(&mut text);
            call.cached_text = text;
            is_first.then_some(call.token)
        });
        if let Some(token) = first.flatten() {
            self.report_outcome(py, token, DeferredOutcome::Items);
        }
        Ok(())
    }

    /// What the generator does next.
    #[inline]
    pub(crate) fn progress(&self) -> Progress {
        let state = self.state();
        if state.open == 0 {
            return Progress::End;
        }
        match state.is_full() {
            true => Progress::Wait,
            false => Progress::Continue,
        }
    }

    /// The same for a task, which lets others run now and then.
    #[inline]
    pub(super) fn task_progress(&self) -> Progress {
        let progress = self.progress();
        let (now, mut state) = (Clock::COARSE.now(), self.state());
        if progress == Progress::Continue && now.nanos_since(state.waited_at) < TASK_SLICE_NANOS {
            return progress;
        }
        state.waited_at = now;
        if progress == Progress::End { progress } else { Progress::Wait }
    }

    /// Keeps what waits for room. Gives it back if there is room, or no call is open.
    pub(crate) fn park(&self, waiter: Waiter) -> Option<Waiter> {
        let mut state = self.state();
        match state.open > 0 && state.is_full() {
            true => state.waiter.replace(waiter),
            false => Some(waiter),
        }
    }

    /// Waits for room, or until no call is open. The thread must be detached.
    pub(super) fn wait_for_room(&self) {
        let mut state = self.state();
        while state.open > 0 && state.is_full() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sets the task that runs the generator.
    pub(super) fn set_task(&self, task: Py<PyAny>) {
        self.state().task = Some(task);
    }

    /// Moves the items that wait to `taken`, which is empty. Returns what waited for that.
    pub(crate) fn take_items(&self, position: usize, taken: &mut Items) -> Option<Waiter> {
        let mut state = self.state();
        state.change(position, |call| mem::swap(&mut call.waiting, taken))?;
        state.waited_at = Clock::COARSE.now();
        self.wake(&mut state)
    }

    /// Pauses or resumes a call whose caller reads slowly. Returns what waited for that.
    pub(crate) fn set_paused(&self, position: usize, is_paused: bool) -> Option<Waiter> {
        let mut state = self.state();
        state.change(position, |call| call.is_paused = is_paused)?;
        self.wake(&mut state)
    }

    fn wake(&self, state: &mut RunState) -> Option<Waiter> {
        if state.is_full() {
            return None;
        }
        if !self.context.is_local {
            self.changed.notify_all();
        }
        state.waiter.take()
    }

    /// Ends a call without a reply. Returns what goes on or has to end because of that.
    pub(crate) fn close_call(&self, position: usize) -> Leftover {
        let mut state = self.state();
        if state.calls.get(position).is_none_or(|call| call.has_ended) {
            return Leftover::default();
        }
        let list = state.change(position, |call| {
            call.has_ended = true;
            mem::take(&mut call.list)
        });
        state.open -= 1;
        let task = if state.open == 0 { state.task.take() } else { None };
        let waiter = self.wake(&mut state);
        drop((state, list));
        Leftover { waiter, task }
    }

    /// Ends the run: answers the calls that are open.
    pub(crate) fn end(
        &self,
        py: Python<'_>,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) -> Result<(), Interrupted> {
        let open: Vec<usize> = {
            let state = self.state();
            let calls = state.calls.iter().enumerate();
            calls.filter(|(_, call)| !call.has_ended).map(|(position, _)| position).collect()
        };
        match (result, &open[..]) {
            (result, [position]) => self.end_call(py, *position, result),
            (Ok(value), _) => {
                open.into_iter().try_for_each(|it| self.end_call(py, it, Ok(value.clone())))
            }
            (Err(Failure::Raised(error)), []) if errors::is_cancelled(py, &error) => Ok(()),
            (Err(Failure::Raised(error)), []) => self.context.report.abandoned(py, &error),
            (Err(_), []) => Ok(()),
            (Err(failure), _) => self.fail_calls(py, open, failure),
        }
    }

    /// Answers calls with one error, which is logged once.
    fn fail_calls(
        &self,
        py: Python<'_>,
        positions: Vec<usize>,
        failure: Failure,
    ) -> Result<(), Interrupted> {
        let (report, len_max) = (&self.context.report, self.context.reply_bytes_max);
        let (error, logged) = report.fail(py, &self.procedure, failure, len_max);
        for position in positions {
            if let Some(token) = self.with_call(position, |call| call.token) {
                drop(self.close_call(position));
                self.report_outcome(py, token, DeferredOutcome::Text(Err(error.clone())));
            }
        }
        logged
    }

    fn end_call(
        &self,
        py: Python<'_>,
        position: usize,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) -> Result<(), Interrupted> {
        let open =
            self.with_call(position, |call| (call.token, call.target, mem::take(&mut call.list)));
        let Some((token, target, list)) = open else { return Ok(()) };
        let text = result.and_then(|value| self.reply_text(target, list, &value));
        match text {
            Ok(text) => {
                drop(self.close_call(position));
                self.report_outcome(py, token, DeferredOutcome::Text(Ok(text)));
                Ok(())
            }
            Err(failure) => self.fail_calls(py, vec![position], failure),
        }
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
            ItemTarget::List => text = list.finish(),
            ItemTarget::Nowhere => {}
        }
        Ok(text)
    }

    /// Calls `work` with a call, unless it has ended.
    #[inline]
    fn with_call<T>(&self, position: usize, work: impl FnOnce(&mut StreamCall) -> T) -> Option<T> {
        let mut state = self.state();
        state.calls.get(position).filter(|call| !call.has_ended)?;
        state.change(position, work)
    }

    #[inline]
    fn report_outcome(&self, py: Python<'_>, token: Token, outcome: DeferredOutcome) {
        match self.context.is_local {
            true => self.context.outcomes.push(py, token, outcome),
            false => self.context.outcomes.send(token, outcome),
        }
    }

    #[inline]
    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunState {
    /// Whether any caller's items wait.
    #[inline]
    fn is_full(&self) -> bool {
        self.full > 0
    }

    /// Changes a call. All changes go through here, which counts those that are full: a scan of all
    /// calls for each item would take quadratic time.
    #[inline]
    fn change<T>(&mut self, position: usize, work: impl FnOnce(&mut StreamCall) -> T) -> Option<T> {
        let call = self.calls.get_mut(position)?;
        let was_full = call.is_full();
        let outcome = work(call);
        self.full = self.full + usize::from(call.is_full()) - usize::from(was_full);
        Some(outcome)
    }
}
