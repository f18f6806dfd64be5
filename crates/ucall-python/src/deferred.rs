//! Calls that do not end within their turn: in tasks, threads, processes and batches.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_engine::Id;
use ucall_proto::{Call, CallOutcome as HandlerOutcome, Reply, RpcError};
use ucall_server::{CallId, Caller, MemoryBudget, Reservation};

use crate::arguments::{self, Failure};
use crate::asyncio::tasks::{self, Tasks};
use crate::batch::{self, Batch};
use crate::calls::{CallOutcome, Deferred, DoneCallback, Entry, EntryKind, RetainedParams, Token};
use crate::context::Context;
use crate::convert;
use crate::errors;
use crate::ffi::variables::run_in;
use crate::handler::Interpreter;
use crate::job_input::{Contents, JobInput};
use crate::pool::{Job, Pool, Work};
use crate::procedure::{BatchMode, BatchRules, CallMode, Procedure};

/// What all ways to begin a call need to know of it.
struct CallStart<'a, 'call> {
    procedure: &'a Arc<Procedure>,
    call: &'a Call<'call>,
    caller: &'a Caller,
    deadline: Option<Instant>,
}

impl CallStart<'_, '_> {
    /// What a call keeps that runs already.
    fn params(&self, budget: &MemoryBudget) -> RetainedParams {
        RetainedParams::Params { _reserved: self.reserve(budget) }
    }

    fn reserve(&self, budget: &MemoryBudget) -> Reservation {
        budget.reserve_large(self.call.params.map_or(0, <[u8]>::len))
    }

    fn entry(
        &self,
        began: Instant,
        cancelled: Option<Arc<AtomicBool>>,
        retained: RetainedParams,
    ) -> Entry {
        let call = Deferred {
            id: self.caller.call_id(self.call),
            is_notification: self.call.id.is_none(),
            deadline: self.deadline,
            future: None,
            cancelled,
            retained,
        };
        Entry { procedure: self.procedure.clone(), began, kind: EntryKind::Call(call) }
    }
}

impl Interpreter {
    /// Begins a call that may not end within this turn.
    pub(crate) fn begin(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> HandlerOutcome {
        let deadline = self.deadline_of(procedure, call);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            reply.error(&errors::deadline_passed());
            return HandlerOutcome::Done;
        }
        if self.calls.len() >= self.rules.running_max {
            reply.error(&errors::overloaded(self.rules.running_max, self.calls.average_time()));
            return HandlerOutcome::Done;
        }
        let start = CallStart { procedure, call, caller, deadline };
        let started = match procedure.mode {
            CallMode::Task => self.begin_task(py, &start, reply),
            CallMode::Future => self.begin_future(py, &start),
            CallMode::Batch(rules) => self.begin_in_batch(py, &start, rules),
            CallMode::Thread | CallMode::Inline => self.begin_in_thread(py, &start),
        };
        started.unwrap_or_else(|failure| {
            let error = self.fail(py, procedure, failure, reply.len_max());
            reply.error(&error);
            HandlerOutcome::Done
        })
    }

    /// A coroutine into a task. One that never waits is through at once, and its result is written
    /// straight into the reply.
    fn begin_task(
        &mut self,
        py: Python<'_>,
        start: &CallStart<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Result<HandlerOutcome, Failure> {
        let CallStart { procedure, .. } = *start;
        let (context, cancelled) = self.context(py, start)?;
        let started = self.start_task(py, start, context);
        self.warn_if_slow(py, procedure);
        let task = started?;
        if tasks::is_done(&task).map_err(Failure::Raised)? {
            let result = tasks::result_of(&task).map_err(Failure::Raised)?;
            self.write(procedure, &result, reply)?;
            return Ok(HandlerOutcome::Done);
        }
        let retained = start.params(&self.budget);
        let token = self.calls.insert(start.entry(self.turn_began, cancelled, retained));
        self.watch_future(&task, token, true)?;
        Ok(HandlerOutcome::Deferred)
    }

    fn start_task<'py>(
        &mut self,
        py: Python<'py>,
        start: &CallStart<'_, '_>,
        context: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let CallStart { procedure, call, .. } = *start;
        let variables = self.own_variables(py)?;
        let scratch = &mut self.scratch;
        let coroutine =
            run_in(&variables, || arguments::call(py, procedure, call.params, context, scratch))?;
        Ok(self.tasks(py)?.start(&coroutine, &variables)?)
    }

    /// A function that returns a future.
    fn begin_future(
        &mut self,
        py: Python<'_>,
        start: &CallStart<'_, '_>,
    ) -> Result<HandlerOutcome, Failure> {
        let CallStart { procedure, call, .. } = *start;
        let future = arguments::call(py, procedure, call.params, None, &mut self.scratch)?;
        let retained = start.params(&self.budget);
        let token = self.calls.insert(start.entry(self.turn_began, None, retained));
        self.watch_future(&future, token, false)?;
        Ok(HandlerOutcome::Deferred)
    }

    /// Lets a task or a future hand in its outcome when it is done.
    fn watch_future(
        &mut self,
        future: &Bound<'_, PyAny>,
        token: Token,
        is_local: bool,
    ) -> Result<(), Failure> {
        let done = DoneCallback::new(token, self.calls.outcomes().clone(), is_local);
        let followed = Bound::new(future.py(), done).and_then(|done| {
            future.call_method1(pyo3::intern!(future.py(), "add_done_callback"), (done,))
        });
        if let Err(error) = followed {
            self.calls.remove(token);
            return Err(Failure::Raised(error));
        }
        if let Some(call) = self.calls.find_call(token) {
            call.future = Some(future.clone().unbind());
        }
        Ok(())
    }

    fn begin_in_thread(
        &mut self,
        py: Python<'_>,
        start: &CallStart<'_, '_>,
    ) -> Result<HandlerOutcome, Failure> {
        let CallStart { procedure, call, .. } = *start;
        let (context, cancelled) = self.context(py, start)?;
        let input = Arc::new(JobInput::new(Contents {
            params: call.params.map(<[u8]>::to_vec),
            context: context.map(Bound::unbind),
            _reserved: start.reserve(&self.budget),
        }));
        let work = Work::Call(input.clone());
        let retained = RetainedParams::Input(input);
        let token = self.calls.insert(start.entry(self.turn_began, cancelled, retained));
        self.submit(py, Job { token, procedure: procedure.clone(), work })?;
        Ok(HandlerOutcome::Deferred)
    }

    fn submit(&mut self, py: Python<'_>, job: Job) -> Result<(), Failure> {
        let (token, rules, server) = (job.token, &self.rules, self.server);
        let pool = self.pool.get_or_insert_with(|| {
            let (outcomes, report) = (self.calls.outcomes().clone(), self.report.clone());
            Pool::new(server, rules.threads_max, outcomes, report, rules.reply_bytes_max)
        });
        pool.submit(py, job, self.calls.len()).map_err(|error| {
            self.calls.remove(token);
            Failure::Raised(error)
        })
    }

    fn begin_in_batch(
        &mut self,
        py: Python<'_>,
        start: &CallStart<'_, '_>,
        rules: BatchRules,
    ) -> Result<HandlerOutcome, Failure> {
        let CallStart { procedure, call, .. } = *start;
        let (context, cancelled) = self.context(py, start)?;
        let arguments = arguments::take(py, procedure, call.params, context, &mut self.scratch)?;
        let (arguments, _reserved) = (Some(arguments), start.reserve(&self.budget));
        let retained = RetainedParams::Arguments { arguments, _reserved };
        let token = self.calls.insert(start.entry(self.turn_began, cancelled, retained));
        self.batches.push(procedure, rules, token, self.turn_began, &self.calls);
        Ok(HandlerOutcome::Deferred)
    }

    /// The context of a call, if its function takes one, and what tells that it was cancelled.
    #[expect(clippy::type_complexity, reason = "named, it would explain no more")]
    fn context<'py>(
        &self,
        py: Python<'py>,
        start: &CallStart<'_, '_>,
    ) -> Result<(Option<Bound<'py, PyAny>>, Option<Arc<AtomicBool>>), Failure> {
        let CallStart { procedure, call, caller, deadline } = *start;
        if !procedure.takes_context() {
            return Ok((None, None));
        }
        let cancelled = Arc::<AtomicBool>::default();
        let user = self.user.as_ref();
        let context = Context::new(py, call, caller, user, deadline, cancelled.clone());
        let context = Bound::new(py, context).map_err(Failure::Raised)?;
        Ok((Some(context.into_any()), Some(cancelled)))
    }

    /// Where tasks are made. The first async function that was added to a running server has the
    /// event loop made: its worker goes on within that.
    fn tasks(&mut self, py: Python<'_>) -> PyResult<&Tasks> {
        match &mut self.tasks {
            Some(tasks) => Ok(tasks),
            none => Ok(none.insert(Tasks::on_new_loop(py)?)),
        }
    }

    /// Answers calls whose deadline has passed, and runs batches that are due.
    #[cold]
    pub(crate) fn handle_deadlines(&mut self, py: Python<'_>, now: Instant) {
        while let Some(token) = self.calls.pop_expired(now) {
            self.abandon_call(py, token, Some(errors::deadline_passed()));
        }
        while let Some(batch) = self.batches.next(now, &mut self.calls) {
            if !batch.items.is_empty() {
                self.run_batch(py, batch);
            }
        }
    }

    fn run_batch(&mut self, py: Python<'_>, batch: Batch) {
        let columns = match batch.columns(py) {
            Ok(columns) => columns,
            Err(error) => return self.finish_batch(py, &batch.procedure, batch.items, Err(error)),
        };
        match batch.rules.mode {
            BatchMode::Inline => {
                let result = self.own_variables(py).and_then(|variables| {
                    run_in(&variables, || batch::run(py, &batch.procedure, &columns))
                });
                self.warn_if_slow(py, &batch.procedure);
                self.finish_batch(py, &batch.procedure, batch.items, result);
            }
            BatchMode::Task => self.run_batch_in_task(py, batch, &columns),
            BatchMode::Thread => {
                let kind = EntryKind::Run(batch.items.clone());
                let procedure = batch.procedure.clone();
                let entry = Entry { procedure: procedure.clone(), began: self.turn_began, kind };
                let token = self.calls.insert(entry);
                let work = Work::Batch { columns, items: batch.items.clone() };
                let job = Job { token, procedure, work };
                if let Err(Failure::Raised(error)) = self.submit(py, job) {
                    self.finish_batch(py, &batch.procedure, batch.items, Err(error));
                }
            }
        }
    }

    fn run_batch_in_task(&mut self, py: Python<'_>, batch: Batch, columns: &[Py<PyList>]) {
        let started = self.start_batch(py, &batch.procedure, columns);
        let Batch { procedure, items, .. } = batch;
        let task = match started {
            Ok(task) => task,
            Err(error) => return self.finish_batch(py, &procedure, items, Err(error)),
        };
        let kind = EntryKind::Run(items.clone());
        let entry = Entry { procedure: procedure.clone(), began: self.turn_began, kind };
        let token = self.calls.insert(entry);
        if let Err(Failure::Raised(error)) = self.watch_future(&task, token, true) {
            self.finish_batch(py, &procedure, items, Err(error));
        }
    }

    fn start_batch<'py>(
        &mut self,
        py: Python<'py>,
        procedure: &Procedure,
        columns: &[Py<PyList>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let variables = self.own_variables(py)?;
        let coroutine = run_in(&variables, || batch::run(py, procedure, columns))?;
        self.tasks(py)?.start(&coroutine, &variables)
    }

    /// Hands each call of a batch its part of the result.
    fn finish_batch(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        result: PyResult<Bound<'_, PyAny>>,
    ) {
        self.batches.finished(procedure);
        let outcomes = batch::outcomes(py, &self.report, procedure, items, result);
        self.calls.push_front(outcomes.into_iter());
    }

    /// The next reply: takes outcomes until one of them is somebody's.
    pub(crate) fn next_outcome(
        &mut self,
        py: Python<'_>,
        text: &mut Vec<u8>,
    ) -> Option<(CallId, Result<(), RpcError>)> {
        loop {
            let (token, outcome) = self.calls.next_outcome()?;
            let Some(Entry { procedure, began, kind }) = self.calls.remove(token) else {
                self.log_abandoned(py, outcome);
                continue;
            };
            match kind {
                EntryKind::Run(items) => self.finish_run(py, &procedure, items, outcome),
                EntryKind::Call(call) => {
                    self.calls.record_duration(began.elapsed());
                    let replied = self.reply(py, &procedure, outcome, text);
                    if !call.is_notification {
                        return Some((call.id, replied));
                    }
                    text.clear();
                }
            }
        }
    }

    fn finish_run(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        outcome: CallOutcome,
    ) {
        match outcome {
            CallOutcome::Future(task) => {
                let result = tasks::result_of(task.bind(py));
                self.finish_batch(py, procedure, items, result);
            }
            // A thread has answered its calls itself.
            CallOutcome::Text(_) | CallOutcome::Item(_) => self.batches.finished(procedure),
        }
    }

    fn reply(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        outcome: CallOutcome,
        text: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let result = match outcome {
            CallOutcome::Text(written) => {
                text.extend_from_slice(&written?);
                return Ok(());
            }
            CallOutcome::Future(future) => {
                tasks::result_of(future.bind(py)).map_err(Failure::Raised)
            }
            CallOutcome::Item(item) => batch::item_result(item.into_bound(py)),
        };
        let (len_max, encode) = (self.rules.reply_bytes_max, procedure.encode.bind(py));
        let written = result.and_then(|result| {
            convert::write_with(text, len_max, &result, encode).map_err(Failure::Result)
        });
        written.map_err(|failure| self.fail(py, procedure, failure, len_max))
    }

    /// Looks at an outcome that nobody waits for: an exception belongs in the log all the same.
    fn log_abandoned(&mut self, py: Python<'_>, outcome: CallOutcome) {
        let CallOutcome::Future(future) = outcome else { return };
        if let Err(error) = tasks::result_of(future.bind(py))
            && !errors::is_cancelled(py, &error)
        {
            let logged = self.report.abandoned(py, &error);
            self.note_interrupt(logged);
        }
    }

    /// Answers a call before its outcome is there, if `error` says how, and cancels what runs it.
    fn abandon_call(&mut self, py: Python<'_>, token: Token, error: Option<RpcError>) {
        let Some(call) = self.calls.find_call(token) else { return };
        call.release();
        if let Some(future) = call.future.take()
            && let Err(error) = future.call_method0(py, "cancel")
        {
            error.write_unraisable(py, None);
        }
        match error {
            // The outcome that comes first counts.
            Some(error) => {
                let outcome = CallOutcome::Text(Err(error));
                self.calls.push_front(std::iter::once((token, outcome)));
            }
            None => drop(self.calls.remove(token)),
        }
    }

    /// A connection has closed: nobody waits for its calls.
    pub(crate) fn cancel_connection(&mut self, py: Python<'_>, connection: Id) {
        for token in self.calls.of_connection(connection) {
            self.abandon_call(py, token, None);
        }
    }

    /// The server ends and waits no longer.
    pub(crate) fn abandon_all(&mut self, py: Python<'_>) {
        for token in self.calls.all() {
            self.abandon_call(py, token, Some(errors::cancelled("the server stops")));
        }
    }
}
