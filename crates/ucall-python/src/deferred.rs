//! Deferred calls: those in tasks, threads, processes and batches.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_engine::Id;
use ucall_proto::{Call, CallOutcome, Reply, RpcError};
use ucall_server::{CallId, Caller, Deadline, Polled, Reservation, RunPermit, Token, WaitsFor};

use crate::arguments::{self, Failure};
use crate::asyncio::tasks::{self, Tasks};
use crate::background::CallState;
use crate::batch::{self, Batch};
use crate::batch_results;
use crate::calls::{BatchArguments, CallItems, Deferred, Entry, EntryKind, RetainedParams};
use crate::context::Context;
use crate::errors;
use crate::ffi::variables::run_in;
use crate::handler::Interpreter;
use crate::job_input::{Contents, JobInput};
use crate::outcomes::{DeferredOutcome, DoneCallback};
use crate::pool::{GeneratorStart, Job, Work};
use crate::procedure::{BatchMode, BatchRules, CallMode, Procedure};

/// A call that is about to start.
pub(crate) struct CallStart<'a, 'call> {
    pub(crate) procedure: &'a Arc<Procedure>,
    pub(crate) call: &'a Call<'call>,
    pub(crate) caller: &'a Caller,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) permit: RunPermit,
    /// The request of a route.
    pub(crate) request: Option<Py<PyAny>>,
}

impl Interpreter {
    /// Begins a call that may end after its turn, or the request of a route.
    ///
    /// # Errors
    /// The reply to a call that has not begun.
    pub(crate) fn begin(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        call: &Call<'_>,
        caller: &Caller,
        request: Option<Py<PyAny>>,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, RpcError> {
        let deadline = self.deadline_of(procedure, call);
        if let Some(deadline) = deadline
            && deadline.has_passed(Instant::now())
        {
            return Err(deadline.error());
        }
        if procedure.stream.only && !call.takes_items() {
            return Err(RpcError::items_required());
        }
        let permit = self.calls.admit(caller.own_connection())?;
        let start = CallStart { procedure, call, caller, deadline, permit, request };
        let started = match procedure.mode {
            CallMode::Task => self.begin_task(py, start, reply),
            CallMode::Future => self.begin_future(py, start),
            CallMode::Batch(rules) => self.begin_in_batch(py, start, rules),
            CallMode::Thread | CallMode::Inline => self.begin_in_thread(py, start),
            CallMode::Generator | CallMode::AsyncGenerator | CallMode::ThreadGenerator => {
                self.begin_stream(py, start)
            }
        };
        started.map_err(|failure| self.fail(py, procedure, failure, reply.len_max()))
    }

    fn reserve(&self, call: &Call<'_>) -> Reservation {
        self.calls.budget().reserve_large(call.params.map_or(0, <[u8]>::len))
    }

    /// The params of a call that runs.
    pub(crate) fn retained_params(&self, call: &Call<'_>) -> RetainedParams {
        RetainedParams::Params { _reserved: self.reserve(call) }
    }

    pub(crate) fn insert_call(
        &mut self,
        start: CallStart<'_, '_>,
        state: Option<Arc<CallState>>,
        retained: RetainedParams,
    ) -> Token {
        let items = CallItems::of(&start);
        let CallStart { procedure, deadline, permit, .. } = start;
        let caller = items.caller;
        let running = self.running_call(procedure.series);
        let call = Deferred {
            future: None,
            state,
            retained,
            items,
            running,
            logged: None,
            _permit: permit,
        };
        let entry = Entry { procedure: procedure.clone(), kind: EntryKind::Call(call) };
        let token = self.calls.insert(caller, deadline, self.turn_began, entry);
        self.last_call = Some(token);
        token
    }

    fn insert_run(&mut self, procedure: &Arc<Procedure>, items: Vec<Token>) -> Token {
        let entry = Entry { procedure: procedure.clone(), kind: EntryKind::Run(items) };
        self.calls.insert(None, None, self.turn_began, entry)
    }

    /// Starts a task for a coroutine. One that never waits is done at once, and its result is
    /// written straight into the reply, unless notifications have to precede it.
    fn begin_task(
        &mut self,
        py: Python<'_>,
        start: CallStart<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, Failure> {
        let procedure = start.procedure;
        let (context, state) = self.context(py, &start)?;
        let started = self.start_task(py, &start, context.clone());
        self.warn_if_slow(py, procedure);
        let task = started?;
        let has_notified = context.is_some_and(|context| {
            context.cast_exact::<Context>().is_ok_and(|context| context.get().has_notified())
        });
        if !has_notified && tasks::is_done(&task).map_err(Failure::Raised)? {
            let result = tasks::result_of(&task).map_err(Failure::Raised);
            let written = result.and_then(|result| self.write(procedure, &result, reply));
            if let Some(state) = state {
                self.end_state(procedure, &state, written.is_ok());
            }
            return written.map(|()| CallOutcome::Done);
        }
        let retained = self.retained_params(start.call);
        let token = self.insert_call(start, state, retained);
        self.watch_future(&task, token, true)?;
        Ok(CallOutcome::Deferred)
    }

    fn start_task<'py>(
        &mut self,
        py: Python<'py>,
        start: &CallStart<'_, '_>,
        context: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let CallStart { procedure, call, .. } = start;
        let variables = self.own_variables(py)?;
        let scratch = &mut self.scratch;
        let coroutine =
            run_in(&variables, || arguments::call(py, procedure, call.params, context, scratch))?;
        Ok(self.tasks(py)?.start(&coroutine, &variables)?)
    }

    /// Calls a function that returns a future.
    fn begin_future(
        &mut self,
        py: Python<'_>,
        start: CallStart<'_, '_>,
    ) -> Result<CallOutcome, Failure> {
        let CallStart { procedure, call, .. } = start;
        let (context, state) = self.context(py, &start)?;
        let future = arguments::call(py, procedure, call.params, context, &mut self.scratch)?;
        let retained = self.retained_params(call);
        let token = self.insert_call(start, state, retained);
        self.watch_future(&future, token, false)?;
        Ok(CallOutcome::Deferred)
    }

    /// Has a task or a future report its outcome when it is done.
    pub(crate) fn watch_future(
        &mut self,
        future: &Bound<'_, PyAny>,
        token: Token,
        is_local: bool,
    ) -> Result<(), Failure> {
        let done = DoneCallback::new(token, self.outcomes.clone(), is_local);
        let followed = Bound::new(future.py(), done).and_then(|done| {
            future.call_method1(pyo3::intern!(future.py(), "add_done_callback"), (done,))
        });
        if let Err(error) = followed {
            self.calls.remove(token);
            return Err(Failure::Raised(error));
        }
        if let Some(call) = self.calls.find(token).and_then(Entry::call) {
            call.future = Some(future.clone().unbind());
        }
        Ok(())
    }

    pub(crate) fn begin_in_thread(
        &mut self,
        py: Python<'_>,
        start: CallStart<'_, '_>,
    ) -> Result<CallOutcome, Failure> {
        let CallStart { procedure, call, .. } = start;
        let (context, state) = self.context(py, &start)?;
        let input = Arc::new(JobInput::new(Contents {
            params: call.params.map(<[u8]>::to_vec),
            context: context.map(Bound::unbind),
            waiting: self.waiting_call(WaitsFor::Thread),
            _reserved: self.reserve(call),
        }));
        let token = self.insert_call(start, state, RetainedParams::Input(input.clone()));
        let work = match procedure.mode {
            CallMode::ThreadGenerator => {
                let run = self.streams.insert(&mut self.calls, procedure, &[token], false, false);
                Work::Stream { start: GeneratorStart::Call(input), run }
            }
            _ => Work::Call(input),
        };
        self.submit(py, Job { token, procedure: procedure.clone(), work })?;
        Ok(CallOutcome::Deferred)
    }

    pub(crate) fn submit(&mut self, py: Python<'_>, job: Job) -> Result<(), Failure> {
        let token = job.token;
        self.pool.submit(py, job, self.calls.count()).map_err(|error| {
            self.calls.remove(token);
            Failure::Raised(error)
        })
    }

    fn begin_in_batch(
        &mut self,
        py: Python<'_>,
        start: CallStart<'_, '_>,
        rules: BatchRules,
    ) -> Result<CallOutcome, Failure> {
        let CallStart { procedure, call, .. } = start;
        let (context, state) = self.context(py, &start)?;
        let arguments = arguments::take(py, procedure, call.params, context, &mut self.scratch)?;
        let waiting = self.waiting_call(WaitsFor::Batch);
        let arguments = Some(BatchArguments { arguments, _waiting: waiting });
        let retained = RetainedParams::Arguments { arguments, _reserved: self.reserve(call) };
        let outcome = match rules.yields {
            true => CallItems::of(&start).outcome(),
            false => CallOutcome::Deferred,
        };
        let token = self.insert_call(start, state, retained);
        self.batches.push(procedure, rules, token, self.turn_began, &self.calls);
        Ok(outcome)
    }

    /// The context of a call, if its function takes one, and what it shares.
    #[expect(clippy::type_complexity, reason = "named, it would explain no more")]
    pub(crate) fn context<'py>(
        &self,
        py: Python<'py>,
        start: &CallStart<'_, '_>,
    ) -> Result<(Option<Bound<'py, PyAny>>, Option<Arc<CallState>>), Failure> {
        let &CallStart { procedure, call, caller, deadline, .. } = start;
        if let Some(request) = &start.request {
            return Ok((Some(request.bind(py).clone()), None));
        }
        if !procedure.takes_context() {
            return Ok((None, None));
        }
        let state = Arc::new(CallState::new());
        let user = self.user();
        let channel =
            self.channel(py, caller.connection, call.head.is_some(), Some(&procedure.encode));
        let context = Context::new(py, call, caller, user, deadline, state.clone(), channel);
        let context = Bound::new(py, context).map_err(Failure::Raised)?;
        Ok((Some(context.into_any()), Some(state)))
    }

    /// The call has its result, or has failed.
    pub(crate) fn end_state(
        &mut self,
        procedure: &Arc<Procedure>,
        state: &CallState,
        has_result: bool,
    ) {
        match has_result {
            true => self.add_background(procedure, state),
            false => state.drop_jobs(),
        }
    }

    /// Creates tasks. The first async function of a running server creates the event loop, in which
    /// its worker continues.
    pub(crate) fn tasks(&mut self, py: Python<'_>) -> PyResult<&Tasks> {
        match &mut self.tasks {
            Some(tasks) => Ok(tasks),
            none => Ok(none.insert(Tasks::on_new_loop(py)?)),
        }
    }

    /// Answers calls whose deadline has passed, and runs batches that are due.
    #[cold]
    pub(crate) fn handle_deadlines(&mut self, py: Python<'_>, now: Instant) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            self.abandon_call(py, token, Some(deadline.error()));
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
        if batch.rules.yields {
            return self.run_batch_stream(py, batch, columns);
        }
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
                let procedure = batch.procedure.clone();
                let token = self.insert_run(&procedure, batch.items.clone());
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
        let token = self.insert_run(&procedure, items.clone());
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

    /// Reports the outcome of each call of a batch.
    fn finish_batch(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        result: PyResult<Bound<'_, PyAny>>,
    ) {
        self.batches.finished(procedure);
        let outcomes = batch_results::outcomes(py, &self.report, procedure, items, result);
        self.calls.push_front(outcomes.into_iter());
    }

    /// The next reply to a call that waits for one. The outcomes of other calls are dropped, and
    /// their exceptions logged.
    pub(crate) fn next_outcome(
        &mut self,
        py: Python<'_>,
        text: &mut Vec<u8>,
    ) -> Option<(CallId, Polled)> {
        loop {
            let (token, outcome) = self.calls.next_outcome()?;
            if let DeferredOutcome::Items = outcome {
                self.streams.take_items(&mut self.calls, token, self.turn_began);
                match self.streams.next_item(text) {
                    Some(item) => return Some(item),
                    None => continue,
                }
            }
            let now = Instant::now();
            let finished = self.calls.finish(token, now);
            let Some((caller, Entry { procedure, kind })) = finished else {
                self.log_abandoned(py, outcome);
                continue;
            };
            let replied = match kind {
                EntryKind::Call(call) => {
                    let replied = self.reply(py, &procedure, outcome, text);
                    if let Some(state) = &call.state {
                        self.end_state(&procedure, state, replied.is_ok());
                    }
                    let error = replied.as_ref().err().map(|error| error.code);
                    if let Some(running) = call.running {
                        running.record(error, now);
                    }
                    if let Some(logged) = call.logged {
                        logged.end(error, if caller.is_some() { text.len() } else { 0 });
                    }
                    replied
                }
                EntryKind::Run(items) => {
                    self.finish_run(py, &procedure, items, outcome);
                    continue;
                }
                EntryKind::Stream(run) => {
                    self.finish_stream_entry(py, &run, outcome);
                    continue;
                }
                EntryKind::Background(record) => {
                    self.end_job(py, &record, outcome);
                    continue;
                }
            };
            match caller {
                Some(id) => return Some((id, replied.into())),
                None => text.clear(),
            }
        }
    }

    fn finish_run(
        &mut self,
        py: Python<'_>,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        outcome: DeferredOutcome,
    ) {
        match outcome {
            DeferredOutcome::Future(task) => {
                let result = tasks::result_of(task.bind(py));
                self.finish_batch(py, procedure, items, result);
            }
            // The thread has reported the outcomes of its calls.
            _ => self.batches.finished(procedure),
        }
    }

    fn reply(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        outcome: DeferredOutcome,
        text: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let result = match outcome {
            DeferredOutcome::Text(written) => {
                *text = written?;
                return Ok(());
            }
            DeferredOutcome::Future(future) => {
                tasks::result_of(future.bind(py)).map_err(Failure::Raised)
            }
            DeferredOutcome::BatchResult(item) => batch_results::item_result(item.into_bound(py)),
            // `next_outcome` takes items before.
            DeferredOutcome::Items => return Ok(()),
        };
        let len_max = self.call_limits.reply_bytes_max;
        let written =
            result.and_then(|it| procedure.write_item(text, len_max, &it).map_err(Failure::Result));
        written.map_err(|failure| self.fail(py, procedure, failure, len_max))
    }

    /// Logs the exception of a task whose call has ended before it.
    fn log_abandoned(&mut self, py: Python<'_>, outcome: DeferredOutcome) {
        let DeferredOutcome::Future(future) = outcome else { return };
        if let Err(error) = tasks::result_of(future.bind(py))
            && !errors::is_cancelled(py, &error)
        {
            let logged = self.report.abandoned(py, &error);
            self.note_interrupt(logged);
        }
    }

    /// Cancels a call and its task or future. Its caller gets `error`, if there is one.
    pub(crate) fn abandon_call(&mut self, py: Python<'_>, token: Token, error: Option<RpcError>) {
        let Some(call) = self.calls.find(token).and_then(Entry::call) else { return };
        call.cancel();
        let stream = call.items.stream.take();
        if let Some(future) = call.future.take() {
            cancel_future(py, &future);
        }
        if let Some(stream) = stream {
            self.streams.close_call(py, stream);
        }
        match error {
            // In front of an outcome that may have come after the deadline.
            Some(error) => {
                let outcome = DeferredOutcome::Text(Err(error));
                self.calls.push_front(std::iter::once((token, outcome)));
            }
            None => self.remove_cancelled(token),
        }
    }

    fn remove_cancelled(&mut self, token: Token) {
        let Some(mut entry) = self.calls.remove(token) else { return };
        if let Some(running) = entry.call().and_then(|call| call.running.take()) {
            running.record(Some(RpcError::REQUEST_CANCELLED), Instant::now());
        }
    }

    /// Cancels the calls of a connection that has closed.
    pub(crate) fn cancel_connection(&mut self, py: Python<'_>, connection: Id) {
        for token in self.calls.of_connection(connection) {
            self.abandon_call(py, token, None);
        }
    }

    /// Answers all calls with an error, and cancels them.
    pub(crate) fn abandon_all(&mut self, py: Python<'_>) {
        for token in self.calls.all() {
            if let Some(Entry { kind: EntryKind::Background(record), .. }) = self.calls.find(token)
                && let Some(task) = &record.task
            {
                cancel_future(py, task);
            }
            self.abandon_call(py, token, Some(errors::aborted("the server stops")));
        }
    }
}

/// Cancels a task or a future.
pub(crate) fn cancel_future(py: Python<'_>, future: &Py<PyAny>) {
    if let Err(error) = future.call_method0(py, pyo3::intern!(py, "cancel")) {
        error.write_unraisable(py, None);
    }
}
