//! What the worker and the runner of a generator share, under one lock.

use pyo3::prelude::*;

use super::call::{CallKey, StreamCall};
use super::generator::Generator;
use super::slots::SlotTable;
use crate::clock::{Clock, Moment};
use crate::procedure::Executor;

/// A task that goes on this long without a wait lets others run.
const TASK_SLICE_NANOS: u64 = 5_000_000;

pub(super) struct StreamState {
    pub(super) calls: Vec<StreamCall>,
    /// Calls that the generator has, and that have not ended.
    pub(super) open: usize,
    /// Calls that are paused, or whose items wait and are many.
    pub(super) full: usize,
    /// Waits for room.
    pub(super) waiter: Option<Waiter>,
    /// The task that runs the generator.
    pub(super) task: Option<Py<PyAny>>,
    /// When the generator went on after its last wait; `None` if its next item begins a slice.
    pub(super) slice_began: Option<Moment>,
    /// Those of a function with slots.
    pub(super) slots: Option<SlotTable>,
}

/// Waits until a generator may go on.
pub(crate) enum Waiter {
    Generator(Generator),
    /// A future of asyncio.
    Future(Py<PyAny>),
}

/// What a generator does after an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Continue,
    /// Wait until the worker has taken the items, or the reader of one goes on.
    Wait,
    /// End, because no call is open.
    End,
}

impl StreamState {
    #[inline]
    pub(super) fn progress(&mut self, executor: Executor) -> Progress {
        match self.readiness() {
            Progress::Continue if executor == Executor::Task && self.has_used_slice() => {
                Progress::Wait
            }
            progress => progress,
        }
    }

    /// Whether there is room, or another reason to go on.
    #[inline]
    pub(super) fn readiness(&self) -> Progress {
        match (&self.slots, self.open, self.full) {
            (None, 0, _) => Progress::End,
            (None, _, 0) => Progress::Continue,
            (None, _, _) => Progress::Wait,
            (Some(slots), open, full) if slots.can_step(open, full) => Progress::Continue,
            (Some(slots), open, _) if slots.is_over(open) => Progress::End,
            (Some(_), _, _) => Progress::Wait,
        }
    }

    /// Whether a task has gone on for long since its wait ended.
    fn has_used_slice(&mut self) -> bool {
        let now = Clock::COARSE.now();
        now.nanos_since(*self.slice_began.get_or_insert(now)) >= TASK_SLICE_NANOS
    }

    /// Changes a call, unless it has ended.
    #[inline]
    pub(super) fn change_open<T>(
        &mut self,
        key: CallKey,
        work: impl FnOnce(&mut StreamCall) -> T,
    ) -> Option<T> {
        self.find(key).filter(|call| !call.has_ended)?;
        self.change(key, work)
    }

    pub(super) fn find(&self, key: CallKey) -> Option<&StreamCall> {
        self.calls.get(key.position).filter(|call| call.token == key.token)
    }

    /// Changes a call. All changes go through here, which counts those that are full: a scan of all
    /// calls for each item would take quadratic time.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        key: CallKey,
        work: impl FnOnce(&mut StreamCall) -> T,
    ) -> Option<T> {
        let call = self.calls.get_mut(key.position).filter(|call| call.token == key.token)?;
        let was_full = call.is_full();
        let outcome = work(call);
        self.full = self.full + usize::from(call.is_full()) - usize::from(was_full);
        Some(outcome)
    }
}
