//! Deferred calls: those in tasks, threads, processes, batches and generators.
//!
//! `start.rs` begins calls, `batches.rs` batches of them, `mounted.rs` tasks of applications, and
//! `background.rs` functions that run after a reply. `request_bodies.rs` passes on the bodies of
//! requests, `natives.rs` calls native procedures for hooks, and `outcomes.rs` answers the callers.
//! `streams/` has generators.

mod awaited;
mod background;
mod batches;
mod mounted;
mod natives;
mod outcomes;
mod request_bodies;
mod start;

pub(crate) use start::CallStart;

use natives::NativeCalls;

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use ucall_engine::Id;
use ucall_proto::websocket::CloseCode;
use ucall_proto::{Binary, Call, RpcError};
use ucall_server::{CallId, LoggedCall, Reservation, Token};

use crate::arguments::Failure;
use crate::asgi::{Exchange, close_payload};
use crate::asyncio::tasks::{self, Tasks};
use crate::background::{BackgroundJob, CallState};
use crate::batch::Batches;
use crate::batch_sizes::BatchCounts;
use crate::calls::{CallItems, Calls, Deferred, Entry, EntryKind, RetainedParams};
use crate::errors;
use crate::ffi::DropAttached;
use crate::functions::Functions;
use crate::options::CallLimits;
use crate::outcomes::{DeferredOutcome, DoneCallback, Outcomes};
use crate::pool::{Job, Pool};
use crate::procedure::{Executor, SharedProcedure};
use crate::report::Report;
use crate::streams::{StreamContext, StreamIo, StreamedCall};
use crate::timing::Timing;

/// The deferred calls of one worker, and what runs them.
pub(crate) struct Deferral {
    pub(crate) calls: Calls,
    /// The call that was deferred last.
    last_call: Option<Token>,
    outcomes: Arc<Outcomes>,
    pub(crate) batches: Batches,
    natives: NativeCalls,
    pub(crate) streams: StreamIo,
    /// Starts async functions, once there is an event loop.
    tasks: Option<Tasks>,
    /// Threads for blocking functions.
    pool: Pool,
    pub(crate) reply_bytes_max: usize,
    /// What the calls of the document that runs have beside their text.
    binary: Option<Binary>,
}

impl Deferral {
    /// Of a worker of the server with that number.
    pub(crate) fn new(
        server: u64,
        limits: &CallLimits,
        report: &Arc<Report>,
        counts: BatchCounts,
    ) -> Self {
        let calls = Calls::new(limits.running_max, "max_running_calls");
        let outcomes = Arc::new(Outcomes::new(calls.outcomes().clone()));
        let reply_bytes_max = limits.reply_bytes_max;
        let pool = Pool::new(
            server,
            limits.threads_max,
            outcomes.clone(),
            report.clone(),
            reply_bytes_max,
        );
        let counts = Arc::new(counts);
        let streams = StreamContext {
            outcomes: outcomes.clone(),
            report: report.clone(),
            budget: calls.budget().clone(),
            reply_bytes_max,
            counts: counts.clone(),
        };
        Self {
            calls,
            last_call: None,
            outcomes,
            batches: Batches::new(counts),
            natives: NativeCalls::default(),
            streams: StreamIo::new(streams),
            tasks: None,
            pool,
            reply_bytes_max,
            binary: None,
        }
    }

    /// Has the calls that follow keep this.
    #[cold]
    pub(crate) fn set_binary(&mut self, binary: Option<&Binary>) {
        self.binary = binary.cloned();
    }

    /// Creates tasks. The first async function of a running server creates the event loop, in which
    /// its worker continues.
    pub(crate) fn tasks(&mut self, py: Python<'_>) -> PyResult<&Tasks> {
        match &mut self.tasks {
            Some(tasks) => Ok(tasks),
            none => Ok(none.insert(Tasks::on_new_loop(py)?)),
        }
    }

    /// What starts tasks, once there is an event loop.
    pub(crate) fn known_tasks(&self) -> Option<&Tasks> {
        self.tasks.as_ref()
    }

    /// Runs async functions on a loop of the server's own, unless they have one.
    pub(crate) fn use_own_loop(&mut self, event_loop: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.tasks.is_none() {
            self.tasks = Some(Tasks::on_own_loop(event_loop)?);
        }
        Ok(())
    }

    /// Runs async functions on a program's loop, which `wake` makes take a turn of the worker.
    pub(crate) fn use_program_loop(
        &mut self,
        event_loop: &Bound<'_, PyAny>,
        wake: Py<PyAny>,
    ) -> PyResult<()> {
        self.tasks = Some(Tasks::on_program_loop(event_loop)?);
        self.outcomes.set_waker(Some(wake));
        Ok(())
    }

    /// Has no event loop from now on.
    pub(crate) fn leave_loop(&mut self) {
        self.tasks = None;
        self.outcomes.set_waker(None);
    }

    /// Whether [`Deferral::deadline`] may have one: a test without a call, twice a turn.
    #[inline]
    pub(crate) fn may_have_deadline(&self) -> bool {
        self.streams.is_due() || self.calls.next_deadline().is_some() || !self.batches.is_empty()
    }

    /// When deadlines, batches or generators are due.
    pub(crate) fn deadline(&self, turn_began: Instant) -> Option<Instant> {
        if self.streams.is_due() {
            return Some(turn_began);
        }
        [self.calls.next_deadline(), self.batches.deadline()].into_iter().flatten().min()
    }

    /// Answers calls whose deadline has passed, and runs batches that are due.
    #[cold]
    pub(crate) fn handle_deadlines(&mut self, functions: &mut Functions, now: Instant) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            let exchange = self.call(token).and_then(|call| call.exchange.as_ref());
            if exchange.is_some_and(|exchange| exchange.is_open_websocket()) {
                continue;
            }
            self.abandon(functions, token, Some(deadline.error()));
        }
        self.begin_batches(functions, now);
    }

    /// Drops what functions have left that were replaced.
    pub(crate) fn forget_unused_batches(&mut self) {
        self.batches.forget_unused();
    }

    /// Runs batches that are due.
    fn begin_batches(&mut self, functions: &mut Functions, now: Instant) {
        for (token, error) in self.batches.take_unmeetable(now) {
            self.abandon(functions, token, Some(error));
        }
        while let Some(batch) = self.batches.next(now) {
            self.run_batch(functions, batch);
        }
    }

    /// Keeps the line of the access log of the call that was deferred last.
    pub(crate) fn set_logged(&mut self, logged: LoggedCall) {
        if let Some(call) = self.last_call.and_then(|token| self.call(token)) {
            call.logged = Some(logged);
        }
    }

    /// The call of `token`, unless it has ended.
    fn call(&mut self, token: Token) -> Option<&mut Deferred> {
        self.calls.find(token).and_then(Entry::call)
    }

    pub(crate) fn insert_call(
        &mut self,
        functions: &Functions,
        mut start: CallStart<'_, '_>,
        state: Option<Arc<CallState>>,
        retained: RetainedParams,
    ) -> Token {
        let (timing, items) = (&functions.timing, CallItems::of(&start));
        let origin = Some(start.origin(&functions.contexts).clone());
        let CallStart { procedure, deadline, permit, body, .. } = start;
        let caller = items.caller;
        let running = timing.running_call(procedure.series);
        let call = Deferred {
            future: None,
            state: state.clone(),
            retained,
            items,
            exchange: None,
            body: body.clone(),
            results: self.binary.as_ref().map(|binary| binary.results).unwrap_or_default(),
            running,
            logged: None,
            awaited: None,
            origin,
            _permit: permit,
        };
        let entry = Entry { procedure: procedure.clone(), kind: EntryKind::Call(call) };
        let token = self.calls.insert(caller, deadline, timing.turn_began(), entry);
        self.last_call = Some(token);
        if let Some(body) = body {
            let is_local = procedure.mode.executor() == Some(Executor::Task);
            body.begin(token, self.outcomes.clone(), is_local);
        }
        if let Some(reports) = state.as_deref().and_then(CallState::reports) {
            reports.begin(token);
        }
        token
    }

    /// Inserts what runs for other calls, or for none.
    pub(crate) fn insert_entry(
        &mut self,
        timing: &Timing,
        procedure: &SharedProcedure,
        kind: EntryKind,
    ) -> Token {
        let entry = Entry { procedure: procedure.clone(), kind };
        self.calls.insert(None, None, timing.turn_began(), entry)
    }

    fn reserve(&self, call: &Call<'_>) -> Reservation {
        self.calls.budget().reserve_large(call.params.map_or(0, <[u8]>::len))
    }

    /// The params of a call that runs.
    pub(crate) fn retained_params(&self, call: &Call<'_>) -> RetainedParams {
        RetainedParams::Params { _reserved: self.reserve(call) }
    }

    /// Has a task or a future report its outcome when it is done.
    pub(crate) fn watch_future(
        &mut self,
        future: &Bound<'_, PyAny>,
        token: Token,
        is_local: bool,
    ) -> Result<(), Failure> {
        self.follow_future(future, token, is_local).map_err(|error| {
            self.calls.remove(token);
            Failure::Raised(error)
        })
    }

    /// [`Deferral::watch_future`], which keeps the entry if it fails.
    fn follow_future(
        &mut self,
        future: &Bound<'_, PyAny>,
        token: Token,
        is_local: bool,
    ) -> PyResult<()> {
        let done = DoneCallback::new(token, self.outcomes.clone(), is_local);
        let done = Bound::new(future.py(), done)?;
        future.call_method1(pyo3::intern!(future.py(), "add_done_callback"), (done,))?;
        if let Some(call) = self.call(token) {
            call.future = Some(future.clone().unbind());
        }
        Ok(())
    }

    /// Has a thread run a job. Attaches this thread only to start another one.
    pub(crate) fn submit(&mut self, functions: &mut Functions, job: Job) -> Result<(), Failure> {
        let token = job.token;
        if !self.pool.submit(job, self.calls.count()) {
            return Ok(());
        }
        functions.attachment.set_lock_request(self.pool.lock_request());
        let py = functions.attach();
        self.pool.start_thread(py).map_err(|error| {
            self.calls.remove(token);
            Failure::Raised(error)
        })
    }

    /// Has a thread of its own run a job.
    pub(crate) fn run_alone(&mut self, py: Python<'_>, job: Job) -> Result<(), Failure> {
        let token = job.token;
        self.pool.run_alone(py, job).map_err(|error| {
            self.calls.remove(token);
            Failure::Raised(error)
        })
    }

    /// Cancels a call and its task or future. Its caller gets `error`, if there is one.
    pub(crate) fn abandon(
        &mut self,
        functions: &mut Functions,
        token: Token,
        error: Option<RpcError>,
    ) {
        self.batches.remove(token);
        let Some(call) = self.call(token) else { return };
        let jobs = call.cancel();
        let has_objects = call.has_objects() || !jobs.is_empty();
        let (future, stream) = (call.future.take(), call.items.stream.take());
        let (exchange, body) = (call.exchange.take(), call.body.take());
        let is_open = exchange.as_ref().is_some_and(|exchange| exchange.is_open_websocket());
        if has_objects {
            self.close_objects(functions.attach(), future, stream, jobs);
        } else if let Some(stream) = stream {
            self.streams.close_call(stream);
        }
        if let Some(exchange) = &exchange {
            self.disconnect_mounted(functions.attach(), exchange, error.is_some());
        }
        if let Some(body) = body {
            functions.attach();
            drop(body.cancel());
        }
        match error {
            // In front of an outcome that may have come after the deadline.
            Some(error) => {
                let going_away = || close_payload(CloseCode::GOING_AWAY, "the server stops");
                let outcome = if is_open { Ok(going_away().into()) } else { Err(error) };
                let outcome = DeferredOutcome::Text(outcome);
                self.calls.push_front(std::iter::once((token, outcome)));
            }
            None => self.remove_cancelled(token, exchange.as_ref(), is_open),
        }
    }

    /// Cancels and drops the objects of a call.
    fn close_objects(
        &mut self,
        py: Python<'_>,
        future: Option<Py<PyAny>>,
        stream: Option<StreamedCall>,
        jobs: Vec<BackgroundJob>,
    ) {
        jobs.iter().for_each(|job| job.close(py));
        if let Some(future) = future {
            tasks::cancel(py, &future);
        }
        if let Some(task) = stream.and_then(|stream| self.streams.close_call(stream)) {
            tasks::cancel(py, &task);
        }
    }

    /// Pauses or resumes the stream of a call.
    pub(crate) fn set_paused(&mut self, functions: &mut Functions, call: CallId, is_paused: bool) {
        let Some(token) = self.calls.token_of(call) else { return };
        if self.call(token).is_some_and(|call| call.has_stream_objects()) {
            functions.attach();
        }
        self.streams.set_paused(&mut self.calls, token, is_paused);
    }

    /// Removes a call whose caller has left, which is no fault if it had an open WebSocket.
    fn remove_cancelled(
        &mut self,
        token: Token,
        exchange: Option<&Arc<DropAttached<Exchange>>>,
        is_open: bool,
    ) {
        let Some(mut entry) = self.calls.remove(token) else { return };
        let Some(call) = entry.call() else { return };
        let (running, now) = (call.running.take(), Instant::now());
        if let Some(exchange) = exchange {
            let error = (!is_open).then_some(RpcError::REQUEST_CANCELLED);
            Self::record_mounted(exchange, error, running, call.logged.take(), now);
        } else if let Some(running) = running {
            running.record(Some(RpcError::REQUEST_CANCELLED), now);
        }
        self.end_failed(entry.procedure);
    }

    /// Cancels the calls of a connection that has closed.
    pub(crate) fn cancel_connection(&mut self, functions: &mut Functions, connection: Id) {
        for token in self.calls.of_connection(connection) {
            self.abandon(functions, token, None);
        }
        self.drop_natives(functions, connection);
    }

    /// Answers all calls with an error, and cancels them.
    pub(crate) fn abandon_all(&mut self, functions: &mut Functions) {
        let py = functions.attach();
        self.streams.cancel_slots(py);
        for token in self.calls.all() {
            let task = match self.calls.find(token).map(|entry| &mut entry.kind) {
                Some(EntryKind::Background(record)) => record.task.take(),
                Some(EntryKind::Mounted(record)) => record.exchange.take_task(),
                _ => None,
            };
            if let Some(task) = task {
                tasks::cancel(py, &task);
            }
            self.abandon(functions, token, Some(errors::aborted("the server stops")));
        }
    }
}
