//! Which calls have slots: they come from the queue, and leave between two steps.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;

use super::super::call::{CallKey, CallPlace, NewCall, StreamCall};
use super::super::state::StreamState;
use super::objects::Slots;
use super::table::QueuedCall;
use crate::job_input::JobInput;

/// Calls that have ended in the queue, before they are removed together.
const ENDED_CALLS_MAX: usize = 64;

/// A call that has got a slot.
pub(super) struct Admitted {
    pub(super) index: usize,
    pub(super) key: CallKey,
    pub(super) input: Arc<JobInput>,
}

impl StreamState {
    /// Adds a call to the queue, behind those of its rank. `true` if the generator is to start.
    pub(super) fn enqueue(
        &mut self,
        NewCall { token, target, origin, awaited }: NewCall,
        input: Arc<JobInput>,
        rank: Instant,
    ) -> (CallKey, bool) {
        let call = StreamCall { awaited, ..StreamCall::new(token, CallPlace::Queue, origin) };
        let free = self.slots.as_mut().and_then(|table| table.free.pop());
        let position = match free {
            Some(position) => position,
            None => self.calls.len(),
        };
        match self.calls.get_mut(position) {
            Some(free) => *free = call,
            None => self.calls.push(call),
        }
        let key = CallKey { position, token, target };
        let Some(table) = &mut self.slots else { return (key, false) };
        if table.queue.len() > ENDED_CALLS_MAX + 2 * table.queued {
            table.queue.retain(|call| !call.input.is_empty());
        }
        let place = table.queue.partition_point(|call| call.rank <= rank);
        table.queue.insert(place, QueuedCall { key, input, rank });
        table.queued += 1;
        (key, !mem::replace(&mut table.is_running, true))
    }

    /// Gives the first free slot to the first call that waits.
    pub(super) fn admit(&mut self) -> Option<Admitted> {
        let table = self.slots.as_mut()?;
        let index = table.taken.iter().position(Option::is_none)?;
        loop {
            let QueuedCall { key, input, .. } = self.slots.as_mut()?.queue.pop_front()?;
            if self.find(key).is_none_or(|call| call.place != CallPlace::Queue) {
                continue;
            }
            self.change(key, |call| call.place = CallPlace::Generator);
            self.open += 1;
            let table = self.slots.as_mut()?;
            table.queued -= 1;
            table.in_use += 1;
            if let Some(slot) = table.taken.get_mut(index) {
                *slot = Some(key);
            }
            return Some(Admitted { index, key, input });
        }
    }

    /// Takes the slot of a call that has ended.
    pub(super) fn vacate(&mut self, index: usize) {
        let Some(table) = &mut self.slots else { return };
        if let Some(key) = table.taken.get_mut(index).and_then(Option::take) {
            table.in_use -= 1;
            self.change(key, |call| call.place = CallPlace::Left);
            self.release(key);
        }
    }

    /// Takes the slots of the calls that have ended, and returns their numbers.
    pub(super) fn vacate_ended(&mut self) -> Vec<usize> {
        let ended = self.slots_where(|call| call.is_none_or(|call| call.has_ended));
        ended.iter().for_each(|&index| self.vacate(index));
        ended
    }

    /// The slots of the calls that take an item in the next step.
    pub(super) fn active(&self) -> Vec<usize> {
        self.slots_where(|call| call.is_some_and(|call| !call.has_ended && !call.is_full()))
    }

    fn slots_where(&self, is_wanted: impl Fn(Option<&StreamCall>) -> bool) -> Vec<usize> {
        let taken = self.slots.iter().flat_map(|table| table.taken.iter().enumerate());
        let is_wanted = |key: CallKey| is_wanted(self.find(key));
        taken.filter_map(|(index, key)| key.filter(|&key| is_wanted(key)).map(|_| index)).collect()
    }

    /// Counts a call that has just ended.
    pub(in crate::streams) fn count_ended(&mut self, key: CallKey) {
        let is_queued = self.find(key).is_some_and(|call| call.place == CallPlace::Queue);
        match &mut self.slots {
            Some(table) if is_queued => {
                table.queued -= 1;
                self.change(key, |call| call.place = CallPlace::Left);
                self.release(key);
            }
            _ => self.open -= 1,
        }
    }

    /// Has another call take the record of one that is over.
    pub(in crate::streams) fn release(&mut self, key: CallKey) {
        let Some(table) = &mut self.slots else { return };
        let call = self.calls.get_mut(key.position).filter(|call| call.token == key.token);
        if let Some(call) = call
            && call.place == CallPlace::Left
            && call.waiting.is_empty()
        {
            *call = StreamCall::new(key.token, CallPlace::Free, None);
            call.has_ended = true;
            table.free.push(key.position);
        }
    }

    /// Ends the run of a generator. Returns what it had been given, its task, and whether another
    /// run is to start, because calls wait.
    pub(super) fn end_run(&mut self) -> (Option<Py<Slots>>, Option<Py<PyAny>>, bool) {
        self.vacate_ended();
        let Some(table) = &mut self.slots else { return (None, None, false) };
        table.is_running = table.queued > 0;
        (table.view.take(), self.task.take(), table.is_running)
    }
}
