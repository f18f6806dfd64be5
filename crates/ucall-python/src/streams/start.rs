//! Starts and ends streams: those of single calls and those of batches.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use pyo3::prelude::*;
use ucall_proto::{Call, CallOutcome, McpRequest};
use ucall_server::Token;

use super::{Generator, ItemSink, ItemTarget, NewCall, Stream};
use crate::arguments::Failure;
use crate::asyncio::tasks;
use crate::batch_inputs::{Group, GroupCall};
use crate::calls::{CallItems, Deferred, Entry, EntryKind, RetainedParams};
use crate::deferral::{CallStart, Deferral};
use crate::ffi::variables::run_in;
use crate::functions::Functions;
use crate::outcomes::DeferredOutcome;
use crate::pool::{GeneratorStart, Job, Work};
use crate::procedure::{Executor, SharedProcedure};

impl ItemTarget {
    /// Where the items of a call go.
    fn of(call: &Call<'_>) -> Self {
        match call.id {
            None => Self::Nowhere,
            Some(_) if call.takes_items() => Self::Caller,
            Some(_) if call.mcp.is_some_and(McpRequest::takes_progress) && call.takes_reports() => {
                Self::Reported
            }
            Some(_) => Self::List,
        }
    }
}

impl NewCall {
    /// The call with that token.
    pub(super) fn of(token: Token, call: &Deferred) -> Self {
        let (origin, awaited) = (call.origin.clone(), call.awaited.clone());
        Self { token, target: call.items.target, origin, awaited }
    }

    /// A call that has ended.
    pub(super) fn ended(token: Token) -> Self {
        Self { token, target: ItemTarget::Nowhere, origin: None, awaited: None }
    }
}

impl CallItems {
    pub(crate) fn of(start: &CallStart<'_, '_>) -> Self {
        let CallStart { procedure, call, caller, .. } = start;
        let caller = call.id.map(|_| caller.call_id(call));
        let target = match procedure.is_stream() {
            true => ItemTarget::of(call),
            false => ItemTarget::Nowhere,
        };
        Self { caller, target, stream: None }
    }

    /// How the calls of a generator end.
    pub(crate) fn outcome(&self) -> CallOutcome {
        match self.target {
            ItemTarget::Caller => CallOutcome::Stream,
            ItemTarget::Reported => CallOutcome::Reporting,
            ItemTarget::List | ItemTarget::Nowhere | ItemTarget::Hook => CallOutcome::Deferred,
        }
    }
}

impl Deferral {
    /// Begins a call of a generator function.
    pub(crate) fn begin_stream(
        &mut self,
        functions: &mut Functions,
        mut start: CallStart<'_, '_>,
        executor: Executor,
    ) -> Result<CallOutcome, Failure> {
        let outcome = CallItems::of(&start).outcome();
        if executor == Executor::Thread {
            return self.begin_in_thread(functions, start).map(|_| outcome);
        }
        let (py, &CallStart { procedure, call, .. }) = (functions.attach(), &start);
        let (context, state) = start.take_context_object(py, &functions.contexts)?;
        let variables = functions.contexts.own_variables(py)?;
        let generator = functions.call_within(&variables, procedure, call, context)?;
        let retained = self.retained_params(call);
        let token = self.insert_call(functions, start, state, retained);
        let stream = self.streams.insert(&mut self.calls, procedure, &[token]);
        let started = self.start_generator(py, functions, &stream, &generator, &variables);
        started.inspect_err(|_| drop(self.calls.remove(token)))?;
        Ok(outcome)
    }

    /// Starts a generator on this thread, which has just been made.
    pub(super) fn start_generator(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
        generator: &Bound<'_, PyAny>,
        variables: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let started = match stream.procedure.mode.executor() {
            Some(Executor::Task) => {
                self.start_stream_task(py, functions, stream.clone(), generator, variables)
            }
            _ => Generator::new(generator, variables)
                .map(|generator| self.streams.push(stream.clone(), generator)),
        };
        functions.warn_if_slow(py, &stream.procedure);
        started
    }

    /// Starts the task of an async generator.
    fn start_stream_task(
        &mut self,
        py: Python<'_>,
        functions: &Functions,
        stream: Arc<Stream>,
        generator: &Bound<'_, PyAny>,
        variables: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        let kind = EntryKind::Stream(stream.clone());
        let token = self.insert_entry(&functions.timing, &stream.procedure, kind);
        let started = self.stream_task(py, &stream, generator, variables);
        let task = started.inspect_err(|_| drop(self.calls.remove(token)))?;
        stream.set_task(task.clone().unbind());
        self.watch_future(&task, token, true)
    }

    fn stream_task<'py>(
        &mut self,
        py: Python<'py>,
        stream: &Arc<Stream>,
        generator: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tasks = self.tasks(py)?;
        let sink = ItemSink::new(stream.clone(), tasks.event_loop(py).clone().unbind());
        let coroutine =
            tasks.stream(generator, Bound::new(py, sink)?.as_any(), stream.has_slots)?;
        tasks.start(&coroutine, variables)
    }

    /// Starts a generator for each group of a batch.
    pub(crate) fn run_batch_streams(
        &mut self,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        groups: VecDeque<Group<Token>>,
        executor: Executor,
    ) {
        let py = functions.attach();
        if groups.is_empty() {
            return self.batches.finished(procedure);
        }
        self.batches.started(procedure, groups.len() - 1);
        for mut group in groups {
            let tokens = self.retain_params(&mut group);
            let stream = self.streams.insert(&mut self.calls, procedure, &tokens);
            let started = self.start_batch_stream(py, functions, &stream, executor, group);
            if let Err(failure) = started {
                self.end_stream(py, functions, &stream, Err(failure));
            }
        }
    }

    /// Has the calls of a group keep their memory reserved. Returns the calls.
    fn retain_params(&mut self, group: &mut Group<Token>) -> Vec<Token> {
        let retain = |call: &mut GroupCall<Token>| {
            let _reserved = mem::take(&mut call.reserved);
            if let Some(found) = self.calls.find(call.id).and_then(Entry::call) {
                found.retained = RetainedParams::Params { _reserved };
            }
            call.id
        };
        group.calls.iter_mut().map(retain).collect()
    }

    fn start_batch_stream(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
        executor: Executor,
        group: Group<Token>,
    ) -> Result<(), Failure> {
        let procedure = &stream.procedure;
        if executor == Executor::Thread {
            let kind = EntryKind::Stream(stream.clone());
            let token = self.insert_entry(&functions.timing, procedure, kind);
            let start = GeneratorStart::Batch(group);
            let work = Work::Stream { start, stream: stream.clone() };
            return self.submit(functions, Job { token, procedure: procedure.clone(), work });
        }
        let variables = functions.contexts.new_variables(py)?;
        let generator = run_in(&variables, || group.call(py, procedure))?;
        self.start_generator(py, functions, stream, &generator, &variables)
    }

    /// Ends a stream whose task or thread has reported its end.
    pub(crate) fn finish_stream_entry(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
        outcome: DeferredOutcome,
    ) {
        match outcome {
            DeferredOutcome::Future(task) => {
                let result = tasks::result_of(task.bind(py)).map_err(Failure::Raised);
                self.end_stream(py, functions, stream, result);
            }
            // The thread has answered its calls.
            _ => self.finish_stream(stream),
        }
    }
}
