//! Begins calls of functions with slots, and starts their generators.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;
use ucall_proto::CallOutcome;
use ucall_server::{Token, WaitsFor};

use super::super::{NewCall, Stream, StreamedCall};
use super::step::Enqueued;
use crate::arguments::Failure;
use crate::calls::{CallItems, Entry, EntryKind, RetainedParams};
use crate::deferral::{CallStart, Deferral};
use crate::ffi;
use crate::ffi::variables::run_in;
use crate::functions::Functions;
use crate::job_input::JobInput;
use crate::pool::{GeneratorStart, Job, Work};
use crate::procedure::{Executor, Procedure, SharedProcedure};

/// A step of priority is worth a second of waiting, as in batches.
const PRIORITY_STEP: Duration = Duration::from_secs(1);
const PRIORITY_MAX: i64 = 7;

impl Deferral {
    /// Begins a call that waits for a slot.
    pub(crate) fn begin_in_slots(
        &mut self,
        functions: &Functions,
        mut start: CallStart<'_, '_>,
        count: usize,
    ) -> CallOutcome {
        let procedure = start.procedure;
        let rank = rank(functions.timing.turn_began(), functions.contexts.priority_of(start.call));
        let (input, state) = self.take_input(functions, &mut start, WaitsFor::Batch);
        let outcome = CallItems::of(&start).outcome();
        let retained = RetainedParams::Input(input.clone());
        let token = self.insert_call(functions, start, state, retained);
        self.enqueue_in_slots(procedure, count, token, input, rank);
        outcome
    }

    /// Has a call wait for a slot.
    pub(crate) fn enqueue_in_slots(
        &mut self,
        procedure: &SharedProcedure,
        count: usize,
        token: Token,
        input: Arc<JobInput>,
        rank: Instant,
    ) {
        let stream = self.streams.slots_of(procedure, count);
        let Some(call) = self.calls.find(token).and_then(Entry::call) else { return };
        let (key, enqueued) = stream.enqueue(NewCall::of(token, call), input, rank);
        call.items.stream = Some(StreamedCall { stream: stream.clone(), key });
        match enqueued {
            Enqueued::Start => self.streams.push_start(stream),
            Enqueued::Runs(Some(waiter)) => self.streams.push_waiter(stream, waiter),
            Enqueued::Runs(None) => {}
        }
    }

    /// Starts the generator of a function with slots, for the calls that wait.
    pub(in crate::streams) fn start_slots(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
    ) {
        let started = match stream.procedure.mode.executor() {
            Some(Executor::Thread) => self.start_slots_in_thread(py, functions, stream),
            _ => self.start_slots_here(py, functions, stream),
        };
        if let Err(failure) = started {
            stream.admit_to_failed_run();
            self.end_stream(py, functions, stream, Err(failure));
        }
    }

    fn start_slots_in_thread(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
    ) -> Result<(), Failure> {
        let procedure = stream.procedure.clone();
        let kind = EntryKind::Stream(stream.clone());
        let token = self.insert_entry(&functions.timing, &procedure, kind);
        let work = Work::Stream { start: GeneratorStart::Slots, stream: stream.clone() };
        self.run_alone(py, Job { token, procedure, work })
    }

    fn start_slots_here(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
    ) -> Result<(), Failure> {
        let variables = functions.contexts.new_variables(py)?;
        let begun = run_in(&variables, || {
            let Some(slots) = stream.begin_run(py)? else { return Ok(None) };
            start_generator(py, &stream.procedure, slots.bind(py)).map(Some)
        })?;
        match begun {
            Some(generator) => self.start_generator(py, functions, stream, &generator, &variables),
            None => {
                self.finish_stream(stream);
                Ok(())
            }
        }
    }
}

/// Calls get slots in the order of their ranks: of the time when they came, and of their priority.
pub(crate) fn rank(turn_began: Instant, priority: i8) -> Instant {
    let earlier = PRIORITY_MAX - i64::from(priority);
    turn_began + PRIORITY_STEP * earlier.max(0) as u32
}

/// Calls a generator function with its slots.
pub(crate) fn start_generator<'py>(
    py: Python<'py>,
    procedure: &Procedure,
    slots: &Bound<'py, super::Slots>,
) -> Result<Bound<'py, PyAny>, Failure> {
    let start = procedure.callable.bind(py).getattr(intern!(py, "start"))?;
    Ok(ffi::call(&start, [slots.as_any()])?)
}
