//! Begins calls that may end after their turn: in tasks, futures, threads and batches.

use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use ucall_proto::{Call, CallOutcome, Reply, RpcError};
use ucall_server::{Caller, Deadline, Reservation, RunPermit, Waiting, WaitsFor, overloaded};

use super::Deferral;
use crate::arguments::Failure;
use crate::asyncio::tasks;
use crate::background::CallState;
use crate::calls::{CallItems, RetainedParams};
use crate::context::Context;
use crate::contexts::Contexts;
use crate::ffi::DropAttached;
use crate::functions::Functions;
use crate::http_route::RouteRequest;
use crate::job_input::{CallContext, Contents, InputParams, JobInput, SHORT_PARAMS_MAX};
use crate::origin::{CallOrigin, FailedCalls};
use crate::pool::{GeneratorStart, Job, Work};
use crate::procedure::{BatchRules, CallMode, SharedProcedure};
use crate::request_body::ArrivingBody;
use crate::timing::Timing;
use crate::waiting_limit::WaitingLimit;

/// A call that is about to start.
pub(crate) struct CallStart<'a, 'call> {
    pub(crate) procedure: &'a SharedProcedure,
    pub(crate) call: &'a Call<'call>,
    pub(crate) caller: &'a Caller,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) permit: RunPermit,
    /// The request of a route.
    pub(crate) request: Option<DropAttached<Py<PyAny>>>,
    /// Its body, if that is received while it arrives.
    pub(crate) body: Option<Arc<DropAttached<ArrivingBody>>>,
    /// Who has made the call, once that is copied.
    pub(crate) origin: Option<Arc<CallOrigin>>,
}

impl CallStart<'_, '_> {
    /// Makes the context of the call, if its function takes one, and what it shares.
    pub(crate) fn take_context(
        &mut self,
        contexts: &Contexts,
    ) -> (Option<CallContext>, Option<Arc<CallState>>) {
        let &mut Self { procedure, call, caller, deadline, .. } = self;
        if let Some(request) = self.request.take() {
            return (Some(CallContext::Object(request)), None);
        }
        if !procedure.takes_context() {
            return (None, None);
        }
        let context = contexts.of_call(procedure, call, caller, deadline);
        let state = context.state().clone();
        (Some(CallContext::Call(Box::new(context))), Some(state))
    }

    /// [`CallStart::take_context`], as the object that the function gets.
    #[expect(clippy::type_complexity, reason = "named, it would explain no more")]
    pub(crate) fn take_context_object<'py>(
        &mut self,
        py: Python<'py>,
        contexts: &Contexts,
    ) -> PyResult<(Option<Bound<'py, PyAny>>, Option<Arc<CallState>>)> {
        let (context, state) = self.take_context(contexts);
        Ok((context.map(|context| context.into_object(py)).transpose()?, state))
    }

    /// Who has made the call, for the log.
    pub(crate) fn origin(&mut self, contexts: &Contexts) -> &Arc<CallOrigin> {
        let &mut Self { call, caller, .. } = self;
        let origin = || Arc::new(CallOrigin::new(call, caller, contexts.identity().cloned()));
        self.origin.get_or_insert_with(origin)
    }

    /// Copies these params of the call: with its origin, if they are short and that was not copied
    /// before. A stream keeps its origin longer than it needs params.
    fn keep_params(&mut self, contexts: &Contexts, params: Option<&[u8]>) -> Option<InputParams> {
        let params = params?;
        let is_stream =
            matches!(self.procedure.mode, CallMode::Generator(_) | CallMode::Slots { .. });
        if is_stream || self.origin.is_some() || params.len() > SHORT_PARAMS_MAX {
            return Some(InputParams::copied(params));
        }
        let (identity, params) = (contexts.identity().cloned(), Some(params));
        let origin = CallOrigin::with_params(self.call, self.caller, identity, params);
        let origin = self.origin.insert(Arc::new(origin));
        Some(InputParams::WithOrigin(origin.clone()))
    }
}

impl Deferral {
    /// Admits a call that may end after its turn, or the request of a route.
    ///
    /// # Errors
    /// The reply to a call that does not begin.
    pub(crate) fn admit<'a, 'call>(
        &mut self,
        timing: &Timing,
        procedure: &'a SharedProcedure,
        call: &'a Call<'call>,
        caller: &'a Caller,
        request: Option<RouteRequest>,
    ) -> Result<CallStart<'a, 'call>, RpcError> {
        let deadline = timing.deadline_of(procedure, call);
        if let Some(deadline) = deadline
            && deadline.has_passed(Instant::now())
        {
            return Err(deadline.error());
        }
        if procedure.stream.only && !call.takes_items() {
            return Err(RpcError::items_required());
        }
        self.check_waiting(procedure)?;
        let permit = self.calls.admit(caller.own_connection())?;
        let (request, body) = request.map_or((None, None), |it| (Some(it.object), it.body));
        let origin = None;
        Ok(CallStart { procedure, call, caller, deadline, permit, request, body, origin })
    }

    /// Checks that another call of a function may wait for a thread, a batch or a slot.
    pub(super) fn check_waiting(&self, procedure: &SharedProcedure) -> Result<(), RpcError> {
        self.batches.check_full(procedure)?;
        if let CallMode::Slots { waiting_max: Some(max), .. } = procedure.mode
            && self.streams.is_queue_full(procedure, max)
        {
            return Err(overloaded("max_waiting", max, self.calls.average_time()));
        }
        match &procedure.waiting_limit {
            Some(limit) if self.pool.is_full(limit.waiting(), limit.max) => {
                Err(overloaded("max_waiting", limit.max, self.calls.average_time()))
            }
            _ => Ok(()),
        }
    }

    /// Begins an admitted call. Attaches the thread only for functions that it calls.
    pub(crate) fn begin(
        &mut self,
        functions: &mut Functions,
        start: CallStart<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, Failure> {
        match start.procedure.mode {
            CallMode::Task => self.begin_task(functions, start, reply),
            CallMode::Future => self.begin_future(functions, start),
            CallMode::Batch(rules) => self.begin_in_batch(functions, start, rules),
            CallMode::Thread | CallMode::Inline => self.begin_in_thread(functions, start),
            CallMode::Generator(executor) => self.begin_stream(functions, start, executor),
            CallMode::Slots { count, .. } => Ok(self.begin_in_slots(functions, start, count)),
        }
    }

    /// Starts a task for a coroutine. One that never waits is done at once, and its result is
    /// written straight into the reply, unless notifications or reports have to precede it.
    fn begin_task(
        &mut self,
        functions: &mut Functions,
        mut start: CallStart<'_, '_>,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, Failure> {
        let (py, procedure) = (functions.attach(), start.procedure);
        let (context, state) = start.take_context_object(py, &functions.contexts)?;
        let started = self.start_task(py, functions, &start, context.clone());
        functions.warn_if_slow(py, procedure);
        let task = started?;
        let has_notified = context.is_some_and(|context| {
            context.cast_exact::<Context>().is_ok_and(|context| context.get().has_notified())
        });
        let has_sent = has_notified || has_reported(state.as_deref());
        if !has_sent && tasks::is_done(&task).map_err(Failure::Raised)? {
            let result = tasks::result_of(&task).map_err(Failure::Raised);
            let written = functions.write(procedure, result, reply);
            if let Some(state) = state {
                self.end_state(functions, procedure, &state, written.is_ok());
            }
            return written.map(|()| CallOutcome::Done);
        }
        let retained = self.retained_params(start.call);
        let outcome = outcome_of(state.as_deref());
        let token = self.insert_call(functions, start, state, retained);
        self.watch_future(&task, token, true)?;
        Ok(outcome)
    }

    fn start_task<'py>(
        &mut self,
        py: Python<'py>,
        functions: &mut Functions,
        start: &CallStart<'_, '_>,
        context: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let variables = functions.contexts.own_variables(py)?;
        let coroutine = functions.call_within(&variables, start.procedure, start.call, context)?;
        Ok(self.tasks(py)?.start(&coroutine, &variables)?)
    }

    /// Calls a function that returns a future.
    fn begin_future(
        &mut self,
        functions: &mut Functions,
        mut start: CallStart<'_, '_>,
    ) -> Result<CallOutcome, Failure> {
        let (py, &CallStart { procedure, call, .. }) = (functions.attach(), &start);
        let (context, state) = start.take_context_object(py, &functions.contexts)?;
        let future = functions.call(py, procedure, call, context)?;
        let retained = self.retained_params(call);
        let outcome = outcome_of(state.as_deref());
        let token = self.insert_call(functions, start, state, retained);
        self.watch_future(&future, token, false)?;
        Ok(outcome)
    }

    pub(crate) fn begin_in_thread(
        &mut self,
        functions: &mut Functions,
        mut start: CallStart<'_, '_>,
    ) -> Result<CallOutcome, Failure> {
        let procedure = start.procedure;
        let (input, state) = self.take_input(functions, &mut start, WaitsFor::Thread);
        let retained = RetainedParams::Input(input.clone());
        let outcome = outcome_of(state.as_deref());
        let token = self.insert_call(functions, start, state, retained);
        let work = match procedure.mode {
            CallMode::Generator(_) => {
                let stream = self.streams.insert(&mut self.calls, procedure, &[token]);
                Work::Stream { start: GeneratorStart::Call(input), stream }
            }
            _ => Work::Call(input),
        };
        self.submit(functions, Job { token, procedure: procedure.clone(), work })?;
        Ok(outcome)
    }

    /// Copies the input of a call that waits for what runs it.
    pub(crate) fn take_input(
        &self,
        functions: &Functions,
        start: &mut CallStart<'_, '_>,
        waits_for: WaitsFor,
    ) -> (Arc<JobInput>, Option<Arc<CallState>>) {
        let (context, state) = start.take_context(&functions.contexts);
        // The context has them for hooks.
        let params = start.call.params.filter(|_| start.procedure.hooked.is_none());
        let kept = start.keep_params(&functions.contexts, params);
        let input = JobInput::new(Contents {
            params: kept,
            binary: self.binary.clone(),
            context,
            identity: functions.contexts.identity_with_variables(),
            awaited: None,
            origin: Some(start.origin(&functions.contexts).clone()),
            waiting: functions.timing.waiting_call(waits_for, start.procedure.series),
            permit: start.procedure.waiting_limit.as_ref().map(WaitingLimit::permit),
            _reserved: self.calls.budget().reserve_large(params.map_or(0, <[u8]>::len)),
        });
        (Arc::new(input), state)
    }

    fn begin_in_batch(
        &mut self,
        functions: &mut Functions,
        mut start: CallStart<'_, '_>,
        rules: BatchRules,
    ) -> Result<CallOutcome, Failure> {
        let procedure = start.procedure;
        let parts = self.binary.as_ref().and_then(|binary| binary.parts.as_ref());
        let weight = functions.weight_of(procedure, start.call.params, parts)?;
        rules.check_weight(weight).map_err(Failure::Params)?;
        let (input, state) = self.take_input(functions, &mut start, WaitsFor::Batch);
        if procedure.in_processes.is_some() {
            let origin = start.origin(&functions.contexts).clone();
            functions.find_user(&origin);
        }
        let retained = RetainedParams::Input(input.clone());
        let outcome = match rules.yields {
            true => CallItems::of(&start).outcome(),
            false => outcome_of(state.as_deref()),
        };
        let deadline = start.deadline.map(|deadline| deadline.at);
        let priority = functions.contexts.priority_of(start.call);
        let call = self.insert_call(functions, start, state, retained);
        let since = functions.timing.turn_began();
        let waiting = Waiting { call, since, deadline, priority, weight };
        // `admit` has checked that it may wait.
        let _ = self.batches.push(procedure, rules, waiting, input);
        Ok(outcome)
    }

    /// Calls a plain function that takes its context, with variables of its own.
    #[cold]
    pub(crate) fn call_with_context(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let deadline = functions.timing.deadline_of(procedure, call);
        functions.report.set_in_function(true);
        let context = functions.contexts.of_running_call(py, procedure, call, caller, deadline);
        let written = context.map_err(Failure::Raised).and_then(|context| {
            let variables = functions.contexts.inline_variables(py)?;
            let given = context.object().clone().into_any();
            let result = functions.call_within(&variables, procedure, call, Some(given));
            functions.contexts.reuse_variables(variables);
            let Some(context) = context.end() else {
                let written = functions.write(procedure, result, reply);
                return written.map(|()| CallOutcome::Done);
            };
            let state = context.get().state();
            if has_reported(Some(state)) {
                let (permit, request, body, origin) = (self.calls.permit(), None, None, None);
                let start =
                    CallStart { procedure, call, caller, deadline, permit, request, body, origin };
                self.reply_after_reports(py, functions, start, state.clone(), result);
                return Ok(CallOutcome::Reporting);
            }
            let written = functions.write(procedure, result, reply);
            self.end_state(functions, procedure, state, written.is_ok());
            written.map(|()| CallOutcome::Done)
        });
        functions.report.set_in_function(false);
        match written {
            Ok(CallOutcome::Reporting) => {
                functions.warn_if_slow(py, procedure);
                CallOutcome::Reporting
            }
            ended => {
                functions.end_call(py, procedure, ended.map(drop), (call, caller), reply);
                CallOutcome::Done
            }
        }
    }

    /// Answers a call whose function has returned, after the reports that it has made.
    fn reply_after_reports(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        mut start: CallStart<'_, '_>,
        state: Arc<CallState>,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) {
        let (procedure, len_max) = (start.procedure, self.reply_bytes_max);
        let format = functions.results.format;
        let written = result
            .and_then(|it| procedure.written(&it, len_max, format).map_err(Failure::Result))
            .map_err(|failure| {
                let calls = FailedCalls::one(Some(start.origin(&functions.contexts)));
                functions.report.fail(py, procedure, calls, failure, len_max)
            });
        let retained = RetainedParams::Params { _reserved: Reservation::default() };
        let token = self.insert_call(functions, start, Some(state), retained);
        self.outcomes.push(py, token, written.into());
    }

    /// The call has its result, or has failed.
    pub(super) fn end_state(
        &mut self,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        state: &CallState,
        has_result: bool,
    ) {
        state.end_reports();
        if has_result {
            return self.add_background(&functions.timing, procedure, state);
        }
        let jobs = state.drop_jobs();
        if !jobs.is_empty() {
            let py = functions.attach();
            jobs.iter().for_each(|job| job.close(py));
        }
    }
}

/// What a deferred call is to its connection.
fn outcome_of(state: Option<&CallState>) -> CallOutcome {
    match state.and_then(CallState::reports) {
        Some(_) => CallOutcome::Reporting,
        None => CallOutcome::Deferred,
    }
}

/// Whether a function has made reports that no worker has taken.
fn has_reported(state: Option<&CallState>) -> bool {
    state.is_some_and(|state| state.waiting_reports().is_some())
}
