//! The steps of a generator: which calls each one has, and what it yields for them.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ucall_server::Token;

use super::super::call::{CallKey, NewCall};
use super::super::end::EndType;
use super::super::state::{Progress, Waiter};
use super::super::stream::Stream;
use super::admission::Admitted;
use super::objects::{Slot, Slots};
use crate::arguments::{self, Failure};
use crate::batch_results;
use crate::convert::{ConversionFault, Scratch};
use crate::ffi;
use crate::job_input::{Contents, JobInput};
use crate::outcomes::DeferredOutcome;

/// What the calls of a step get.
type StepOutcomes = Vec<(Token, DeferredOutcome)>;

/// What follows the arrival of a call.
pub(crate) enum Enqueued {
    /// The generator is to be started.
    Start,
    /// It runs. It may have waited for that.
    Runs(Option<Waiter>),
}

impl Stream {
    /// Adds a call that waits for a slot.
    pub(super) fn enqueue(
        &self,
        call: NewCall,
        input: Arc<JobInput>,
        rank: Instant,
    ) -> (CallKey, Enqueued) {
        let mut state = self.state();
        let (key, is_first) = state.enqueue(call, input, rank);
        match is_first {
            true => (key, Enqueued::Start),
            false => (key, Enqueued::Runs(self.wake(&mut state))),
        }
    }

    /// Whether so many calls wait that will not get a slot in the next step.
    pub(super) fn is_queue_full(&self, max: usize) -> bool {
        self.state().slots.as_ref().is_some_and(|table| table.waiting() >= max)
    }

    /// Begins a run of the generator: makes what it is given. `None` if no call is left.
    pub(crate) fn begin_run(
        self: &Arc<Self>,
        py: Python<'_>,
    ) -> Result<Option<Py<Slots>>, Failure> {
        let of_table = self.state().slots.as_ref().map(|table| (table.id(), table.size()));
        let Some((id, size)) = of_table else { return Ok(None) };
        let view = Py::new(py, Slots::new(id, size))?;
        if let Some(table) = &mut self.state().slots {
            table.set_view(view.clone_ref(py));
        }
        Ok(self.begin_step(py)?.then_some(view))
    }

    /// Begins a step: gives free slots to calls that wait, and shows the generator its calls.
    /// `false` if none takes an item, so that there is no step now. Without slots there is nothing
    /// to do.
    #[inline]
    pub(crate) fn begin_step(self: &Arc<Self>, py: Python<'_>) -> Result<bool, Failure> {
        match self.has_slots {
            true => self.begin_step_of_slots(py),
            false => Ok(true),
        }
    }

    fn begin_step_of_slots(self: &Arc<Self>, py: Python<'_>) -> Result<bool, Failure> {
        let Some(view) = self.view(py) else { return Ok(false) };
        let left = self.state().vacate_ended();
        let (mut joined, mut scratch) = (Vec::new(), Scratch::default());
        while let Some(admitted) = self.admit() {
            joined.extend(self.join(py, view.get(), admitted, &mut scratch)?);
        }
        let active = self.state().active();
        view.get().update(py, &left, joined, &active);
        Ok(!active.is_empty())
    }

    fn view(&self, py: Python<'_>) -> Option<Py<Slots>> {
        self.state().slots.as_ref()?.view().map(|view| view.clone_ref(py))
    }

    fn admit(&self) -> Option<Admitted> {
        self.state().admit()
    }

    /// Gives slots to calls that wait: they fail with a run that could not start. Otherwise each
    /// turn would try to start one for them.
    pub(super) fn admit_to_failed_run(&self) {
        while let Some(Admitted { input, .. }) = self.admit() {
            drop(input.take());
        }
    }

    /// Reads the params of a call that has got a slot. `None` if they are wrong, or the call has
    /// been cancelled.
    fn join(
        self: &Arc<Self>,
        py: Python<'_>,
        view: &Slots,
        admitted: Admitted,
        scratch: &mut Scratch,
    ) -> PyResult<Option<Py<Slot>>> {
        let Admitted { index, key, input } = admitted;
        let Some(contents) = input.take() else {
            drop(self.close_call(key));
            self.state().vacate(index);
            return Ok(None);
        };
        let Contents { params, binary, context, waiting, _reserved: reserved, .. } = contents;
        drop(waiting);
        scratch.parts = binary.and_then(|binary| binary.parts);
        let read = arguments::call(py, &self.procedure, params.as_deref(), None, scratch);
        scratch.parts = None;
        match read {
            Ok(params) => {
                let context = context.map(|it| it.into_object(py)).transpose()?;
                let context = context.map_or_else(|| py.None(), Bound::unbind);
                let slot = view.slot(index, params.unbind(), context, reserved, key);
                Py::new(py, slot).map(Some)
            }
            Err(failure) => {
                if let Some(call) = self.close_call(key) {
                    let (token, outcome) = self.outcome_of(py, call, Err(failure));
                    self.report_outcome(py, token, outcome);
                }
                self.state().vacate(index);
                Ok(None)
            }
        }
    }

    /// Takes what a step has yielded: pairs of a slot and an item, `ucall.END` or an exception.
    pub(in crate::streams) fn put_pairs(
        &self,
        yielded: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        let py = yielded.py();
        let Some(view) = self.view(py) else { return Ok(Progress::End) };
        self.context.counts.record(&self.procedure, view.get().set_stepped());
        let mut outcomes = Vec::new();
        let put = self.put_each(view.get(), yielded, text, &mut outcomes);
        self.report_outcomes(py, outcomes);
        if let Some(index) = view.get().silent() {
            self.warn_of_silence(py, index);
        }
        put.map(|()| self.progress())
    }

    /// Logs that a call gets no item: its caller may wait for good.
    #[cold]
    fn warn_of_silence(&self, py: Python<'_>, index: usize) {
        let name = &self.procedure.name;
        let advice = "yield an item or ucall.END for each slot of Slots.active, or set timeout_ms";
        let line = format!("{name}: slot {index} has had no item for 1,000 steps: {advice}");
        // The runner is interrupted by its own function alone.
        let _ = self.context.report.warning(py, &line);
    }

    fn put_each(
        &self,
        view: &Slots,
        yielded: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
        outcomes: &mut StepOutcomes,
    ) -> Result<(), Failure> {
        let expected = || format!("{EXPECTED}, got {}", ffi::type_name(yielded));
        let pairs = yielded.try_iter().map_err(|_| mismatch(expected()))?;
        for pair in pairs {
            let (slot, entry) = parts_of(&pair?)?;
            let (slot, index) = (slot.get(), slot.get().index());
            if !view.contains(slot) {
                return Err(mismatch(format!("slot {index} belongs to another generator")));
            }
            if slot.is_ended() {
                return Err(mismatch(format!("an item for slot {index} after its ucall.END")));
            }
            self.put_entry(slot, entry, text, outcomes);
        }
        Ok(())
    }

    fn put_entry(
        &self,
        slot: &Slot,
        entry: Bound<'_, PyAny>,
        text: &mut Vec<u8>,
        outcomes: &mut StepOutcomes,
    ) {
        let py = entry.py();
        slot.end_silence();
        let result = batch_results::item_result(entry);
        let ended = match result {
            Ok(item) if !item.is_instance_of::<EndType>() => {
                match self.add_to_slot(slot, &item, text) {
                    Ok(first) => {
                        outcomes.extend(first.map(|token| (token, DeferredOutcome::Items)));
                        return;
                    }
                    // The generator learns of it in its next step.
                    Err(failure) => Err(failure),
                }
            }
            result => {
                slot.set_ended();
                result.map(|_| py.None().into_bound(py))
            }
        };
        if let Some(call) = self.close_call(slot.key) {
            outcomes.push(self.outcome_of(py, call, ended));
        }
    }

    /// Adds an item to its call, unless that has ended.
    fn add_to_slot(
        &self,
        slot: &Slot,
        item: &Bound<'_, PyAny>,
        text: &mut Vec<u8>,
    ) -> Result<Option<Token>, Failure> {
        if !slot.is_active() && self.is_open(slot.key) {
            let problem = "the generator yields an item for a slot that is not in Slots.active";
            return Err(mismatch(problem.to_owned()));
        }
        self.add_item(slot.key, item, text).map(|(first, _)| first)
    }

    /// Ends the run of a generator. Whether another is to start, because calls wait.
    pub(in crate::streams) fn end_run(&self) -> bool {
        let (view, task, is_next_due) = self.state().end_run();
        // A task that has failed keeps what its generator had.
        drop((view, task));
        is_next_due
    }

    /// Has the generator end once it has no calls. Returns what waits.
    pub(super) fn retire(&self) -> Option<Waiter> {
        let mut state = self.state();
        if let Some(table) = &mut state.slots {
            table.retire();
        }
        self.wake(&mut state)
    }

    /// Whether the generator runs.
    pub(super) fn is_running(&self) -> bool {
        self.state().slots.as_ref().is_some_and(|table| table.is_running())
    }
}

const EXPECTED: &str = "expected pairs of a slot and an item";

/// A slot, and what is yielded for it.
fn parts_of<'py>(
    pair: &Bound<'py, PyAny>,
) -> Result<(Bound<'py, Slot>, Bound<'py, PyAny>), Failure> {
    let parts = pair.cast::<PyTuple>().ok().filter(|parts| parts.len() == 2);
    let Some(parts) = parts else {
        return Err(mismatch(format!("{EXPECTED}, got {}", ffi::type_name(pair))));
    };
    let (slot, entry) = (parts.get_item(0)?, parts.get_item(1)?);
    match slot.cast_into::<Slot>() {
        Ok(slot) => Ok((slot, entry)),
        Err(error) => {
            let found = ffi::type_name(&error.into_inner()).to_string();
            Err(mismatch(format!("expected a ucall.Slot in front of each item, got {found}")))
        }
    }
}

fn mismatch(problem: String) -> Failure {
    Failure::Result(ConversionFault::value(problem))
}
