//! Calls that do not end within their turn: in tasks, threads, processes and batches.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_engine::Id;
use ucall_proto::{Call, Outcome as Replied, Reply, RpcError};
use ucall_server::{CallId, Caller, MemoryBudget, Reservation};

use crate::arguments::{self, Failure};
use crate::batch::{self, Batch};
use crate::calls::{Deferred, Done, Entry, Keeps, Kind, Outcome, Token};
use crate::context::{Context, run_in};
use crate::convert;
use crate::errors;
use crate::handler::Interpreter;
use crate::job_input::{Contents, JobInput};
use crate::pool::{Job, Pool, Work};
use crate::procedure::{BatchRules, BatchRuns, How, Procedure};
use crate::tasks::{self, Tasks};

/// What all ways to begin a call need to know of it.
struct Beginning<'a, 'call> {
    procedure: &'a Arc<Procedure>,
    call: &'a Call<'call>,
    caller: &'a Caller,
    deadline: Option<Instant>,
}

impl Beginning<'_, '_> {
    /// What a call keeps that runs already.
    fn params(&self, budget: &MemoryBudget) -> Keeps {
        Keeps::Params { _reserved: self.reserve(budget) }
    }

    fn reserve(&self, budget: &MemoryBudget) -> Reservation {
        budget.reserve_large(self.call.params.map_or(0, <[u8]>::len))
    }

    fn entry(&self, began: Instant, cancelled: Option<Arc<AtomicBool>>, keeps: Keeps) -> Entry {
        let call = Deferred {
            id: self.caller.call_id(self.call),
            is_notification: self.call.id.is_none(),
            deadline: self.deadline,
            future: None,
            cancelled,
            keeps,
        };
        Entry { procedure: self.procedure.clone(), began, kind: Kind::Call(call) }
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
    ) -> Replied {
        let deadline = self.deadline_of(procedure, call);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            reply.error(&errors::deadline_passed());
            return Replied::Done;
        }
        if self.calls.len() >= self.rules.running_max {
            reply.error(&errors::overloaded(self.rules.running_max, self.calls.usual_time()));
            return Replied::Done;
        }
        let beginning = Beginning { procedure, call, caller, deadline };
        let begun = match procedure.how {
            How::Task => self.begin_task(py, &beginning, reply),
            How::Future => self.begin_future(py, &beginning),
            How::Batch(rules) => self.begin_in_batch(py, &beginning, rules),
            How::Thread | How::Inline => self.begin_in_thread(py, &beginning),
        };
        begun.unwrap_or_else(|failure| {
            let error = self.fail(py, procedure, failure, reply.len_max());
            reply.error(&error);
            Replied::Done
        })
    }

    /// A coroutine into a task. One that never waits is through at once, and its result is written
    /// straight into the reply.
    fn begin_task(
        &mut self,
        py: Python<'_>,
        beginning: &Beginning<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Result<Replied, Failure> {
        let Beginning { procedure, .. } = *beginning;
        let (context, cancelled) = self.context(py, beginning)?;
        let started = self.start_task(py, beginning, context);
        self.note_time(py, procedure);
        let task = started?;
        if tasks::is_done(&task).map_err(Failure::Raised)? {
            let result = tasks::result_of(&task).map_err(Failure::Raised)?;
            self.write(procedure, &result, reply)?;
            return Ok(Replied::Done);
        }
        let keeps = beginning.params(&self.budget);
        let token = self.calls.insert(beginning.entry(self.turn_began, cancelled, keeps));
        self.follow(&task, token, true)?;
        Ok(Replied::Deferred)
    }

    fn start_task<'py>(
        &mut self,
        py: Python<'py>,
        beginning: &Beginning<'_, '_>,
        context: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let Beginning { procedure, call, .. } = *beginning;
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
        beginning: &Beginning<'_, '_>,
    ) -> Result<Replied, Failure> {
        let Beginning { procedure, call, .. } = *beginning;
        let future = arguments::call(py, procedure, call.params, None, &mut self.scratch)?;
        let keeps = beginning.params(&self.budget);
        let token = self.calls.insert(beginning.entry(self.turn_began, None, keeps));
        self.follow(&future, token, false)?;
        Ok(Replied::Deferred)
    }

    /// Lets a task or a future hand in its outcome when it is done.
    fn follow(
        &mut self,
        future: &Bound<'_, PyAny>,
        token: Token,
        is_here: bool,
    ) -> Result<(), Failure> {
        let done = Done::new(token, self.calls.outcomes().clone(), is_here);
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
        beginning: &Beginning<'_, '_>,
    ) -> Result<Replied, Failure> {
        let Beginning { procedure, call, .. } = *beginning;
        let (context, cancelled) = self.context(py, beginning)?;
        let parcel = Arc::new(JobInput::new(Contents {
            params: call.params.map(<[u8]>::to_vec),
            context: context.map(Bound::unbind),
            _reserved: beginning.reserve(&self.budget),
        }));
        let work = Work::Call(parcel.clone());
        let keeps = Keeps::Input(parcel);
        let token = self.calls.insert(beginning.entry(self.turn_began, cancelled, keeps));
        self.submit(py, Job { token, procedure: procedure.clone(), work })?;
        Ok(Replied::Deferred)
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
        beginning: &Beginning<'_, '_>,
        rules: BatchRules,
    ) -> Result<Replied, Failure> {
        let Beginning { procedure, call, .. } = *beginning;
        let (context, cancelled) = self.context(py, beginning)?;
        let arguments = arguments::take(py, procedure, call.params, context, &mut self.scratch)?;
        let (arguments, _reserved) = (Some(arguments), beginning.reserve(&self.budget));
        let keeps = Keeps::Arguments { arguments, _reserved };
        let token = self.calls.insert(beginning.entry(self.turn_began, cancelled, keeps));
        self.batches.push(procedure, rules, token, self.turn_began, &self.calls);
        Ok(Replied::Deferred)
    }

    /// The context of a call, if its function takes one, and what tells that it was cancelled.
    #[expect(clippy::type_complexity, reason = "named, it would explain no more")]
    fn context<'py>(
        &self,
        py: Python<'py>,
        beginning: &Beginning<'_, '_>,
    ) -> Result<(Option<Bound<'py, PyAny>>, Option<Arc<AtomicBool>>), Failure> {
        let Beginning { procedure, call, caller, deadline } = *beginning;
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
            none => {
                let event_loop = py.import("ucall._loop")?.call_method0("make")?;
                Ok(none.insert(Tasks::new(&event_loop, true)?))
            }
        }
    }

    /// Answers calls whose deadline has passed, and runs batches that are due.
    #[cold]
    pub(crate) fn do_what_is_due(&mut self, py: Python<'_>, now: Instant) {
        while let Some(token) = self.calls.overdue(now) {
            self.give_up(py, token, Some(errors::deadline_passed()));
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
            Err(error) => return self.end_batch(py, &batch.procedure, batch.items, Err(error)),
        };
        match batch.rules.runs {
            BatchRuns::Inline => {
                let result = self.own_variables(py).and_then(|variables| {
                    run_in(&variables, || batch::run(py, &batch.procedure, &columns))
                });
                self.note_time(py, &batch.procedure);
                self.end_batch(py, &batch.procedure, batch.items, result);
            }
            BatchRuns::Task => self.run_batch_in_task(py, batch, &columns),
            BatchRuns::Thread => {
                let kind = Kind::Run(batch.items.clone());
                let procedure = batch.procedure.clone();
                let entry = Entry { procedure: procedure.clone(), began: self.turn_began, kind };
                let token = self.calls.insert(entry);
                let work = Work::Batch { columns, items: batch.items.clone() };
                let job = Job { token, procedure, work };
                if let Err(Failure::Raised(error)) = self.submit(py, job) {
                    self.end_batch(py, &batch.procedure, batch.items, Err(error));
                }
            }
        }
    }

    fn run_batch_in_task(&mut self, py: Python<'_>, batch: Batch, columns: &[Py<PyList>]) {
        let started = self.start_batch(py, &batch.procedure, columns);
        let Batch { procedure, items, .. } = batch;
        let task = match started {
            Ok(task) => task,
            Err(error) => return self.end_batch(py, &procedure, items, Err(error)),
        };
        let kind = Kind::Run(items.clone());
        let entry = Entry { procedure: procedure.clone(), began: self.turn_began, kind };
        let token = self.calls.insert(entry);
        if let Err(Failure::Raised(error)) = self.follow(&task, token, true) {
            self.end_batch(py, &procedure, items, Err(error));
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
    fn end_batch(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        result: PyResult<Bound<'_, PyAny>>,
    ) {
        self.batches.ended(procedure);
        let outcomes = batch::outcomes(py, &self.report, procedure, items, result);
        self.calls.put_first(outcomes.into_iter());
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
                self.bury(py, outcome);
                continue;
            };
            match kind {
                Kind::Run(items) => self.end_run(py, &procedure, items, outcome),
                Kind::Call(call) => {
                    self.calls.note_time(began.elapsed());
                    let replied = self.reply(py, &procedure, outcome, text);
                    if !call.is_notification {
                        return Some((call.id, replied));
                    }
                    text.clear();
                }
            }
        }
    }

    fn end_run(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        outcome: Outcome,
    ) {
        match outcome {
            Outcome::Future(task) => {
                let result = tasks::result_of(task.bind(py));
                self.end_batch(py, procedure, items, result);
            }
            // A thread has answered its calls itself.
            Outcome::Text(_) | Outcome::Item(_) => self.batches.ended(procedure),
        }
    }

    fn reply(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        outcome: Outcome,
        text: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let result = match outcome {
            Outcome::Text(written) => {
                text.extend_from_slice(&written?);
                return Ok(());
            }
            Outcome::Future(future) => tasks::result_of(future.bind(py)).map_err(Failure::Raised),
            Outcome::Item(item) => batch::item_result(item.into_bound(py)),
        };
        let (len_max, encode) = (self.rules.reply_bytes_max, procedure.encode.bind(py));
        let written = result.and_then(|result| {
            convert::write_with(text, len_max, &result, encode).map_err(Failure::Result)
        });
        written.map_err(|failure| self.fail(py, procedure, failure, len_max))
    }

    /// Looks at an outcome that nobody waits for: an exception belongs in the log all the same.
    fn bury(&mut self, py: Python<'_>, outcome: Outcome) {
        let Outcome::Future(future) = outcome else { return };
        if let Err(error) = tasks::result_of(future.bind(py))
            && !errors::is_cancelled(py, &error)
        {
            let logged = self.report.lost(py, &error);
            self.note(logged);
        }
    }

    /// Answers a call before its outcome is there, if `error` says how, and cancels what runs it.
    fn give_up(&mut self, py: Python<'_>, token: Token, error: Option<RpcError>) {
        let Some(call) = self.calls.find_call(token) else { return };
        call.let_go();
        if let Some(future) = call.future.take()
            && let Err(error) = future.call_method0(py, "cancel")
        {
            error.write_unraisable(py, None);
        }
        match error {
            // The outcome that comes first counts.
            Some(error) => {
                let outcome = Outcome::Text(Err(error));
                self.calls.put_first(std::iter::once((token, outcome)));
            }
            None => drop(self.calls.remove(token)),
        }
    }

    /// A connection has closed: nobody waits for its calls.
    pub(crate) fn cancel_connection(&mut self, py: Python<'_>, connection: Id) {
        for token in self.calls.of_connection(connection) {
            self.give_up(py, token, None);
        }
    }

    /// The server ends and waits no longer.
    pub(crate) fn abandon_all(&mut self, py: Python<'_>) {
        for token in self.calls.all() {
            self.give_up(py, token, Some(errors::cancelled("the server stops")));
        }
    }
}
