//! How a worker calls functions on its thread: their arguments, variables, time and errors.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ucall_proto::{Binary, Call, CallOutcome, Parts, Reply, RpcError};
use ucall_server::{CallMetrics, Caller, Deadline, MissingScopes};

use crate::arguments::{self, Failure};
use crate::attachment::Attachment;
use crate::contexts::Contexts;
use crate::convert::{Results, Scratch};
use crate::ffi::variables::run_in;
use crate::identity::missing_scopes_of;
use crate::origin::{CallOrigin, FailedCalls};
use crate::procedure::{Executor, Procedure};
use crate::report::Report;
use crate::streams::StreamContext;
use crate::timing::Timing;
use crate::worker_report::WorkerReport;

/// What the calls of functions on a worker's thread share.
pub(crate) struct Functions {
    pub(crate) attachment: Attachment,
    pub(crate) timing: Timing,
    pub(crate) report: WorkerReport,
    pub(crate) contexts: Contexts,
    /// What reading params needs beside their text.
    scratch: Scratch,
    /// How the results of the document's calls are written, and the parts of the last one.
    pub(crate) results: Results,
    /// A function that holds up all other calls this long is logged.
    slow_nanos: u64,
}

impl Functions {
    pub(crate) fn new(
        py: Python<'_>,
        report: Arc<Report>,
        metrics: Option<Arc<CallMetrics>>,
        slow: Duration,
        streams: StreamContext,
    ) -> PyResult<Self> {
        let timing = Timing::new(metrics);
        Ok(Self {
            attachment: Attachment::new(py, &timing),
            timing,
            report: WorkerReport::new(report),
            scratch: Scratch::new(&streams.budget),
            contexts: Contexts::new(py, streams)?,
            results: Results::default(),
            slow_nanos: u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX),
        })
    }

    /// Attaches the thread, if this turn has not attached it yet.
    #[inline(always)]
    pub(crate) fn attach(&mut self) -> Python<'static> {
        self.attachment.attach(&mut self.timing)
    }

    /// Has the calls that follow read these parts, and write results in this format.
    #[cold]
    pub(crate) fn set_binary(&mut self, binary: Option<&Binary>) {
        self.scratch.parts = binary.and_then(|binary| binary.parts.clone());
        self.results.format = binary.map(|binary| binary.results).unwrap_or_default();
        self.results.parts.clear();
    }

    /// Calls a function in the variables of this thread.
    #[inline(always)]
    pub(crate) fn call<'py>(
        &mut self,
        py: Python<'py>,
        procedure: &Procedure,
        call: &Call<'_>,
        context: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        arguments::call(py, procedure, call.params, context, &mut self.scratch)
    }

    /// Calls a function, or the hooks around it, in `variables`.
    #[inline]
    pub(crate) fn call_within<'py>(
        &mut self,
        variables: &Bound<'py, PyAny>,
        procedure: &Procedure,
        call: &Call<'_>,
        context: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        run_in(variables, || self.call(variables.py(), procedure, call, context))
    }

    /// Attaches the thread, logs a failure, and returns the error to reply with.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        procedure: &Procedure,
        calls: FailedCalls<'_>,
        failure: Failure,
        len_max: usize,
    ) -> RpcError {
        let py = self.attach();
        self.report.fail(py, procedure, calls, failure, len_max)
    }

    /// [`Functions::fail`] for the call that this thread runs.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_call(
        &mut self,
        procedure: &Procedure,
        call: &Call<'_>,
        caller: &Caller,
        failure: Failure,
        reply: &Reply<'_>,
    ) -> RpcError {
        let origin = CallOrigin::new(call, caller, self.contexts.identity().cloned());
        self.fail(procedure, FailedCalls::one(Some(&origin)), failure, reply.len_max())
    }

    /// Reads the name of the caller's user, for a process that runs the call.
    pub(crate) fn find_user(&mut self, origin: &CallOrigin) {
        if origin.has_unknown_user() {
            origin.find_user(self.attach());
        }
    }

    /// What a call weighs in a batch: 1, unless its function says more.
    pub(crate) fn weight_of(
        &mut self,
        procedure: &Procedure,
        params: Option<&[u8]>,
        parts: Option<&Arc<Parts>>,
    ) -> Result<u64, Failure> {
        let Some(weigh) = &procedure.weigh else { return Ok(1) };
        let py = self.attach();
        let context = procedure.takes_context().then(|| py.None().into_bound(py));
        // The batch reads the params again.
        let untaken = parts.map(|parts| Arc::new(parts.untaken()));
        let parts = std::mem::replace(&mut self.scratch.parts, untaken);
        let taken: Result<Vec<_>, _> =
            arguments::take(py, procedure, params, context, &mut self.scratch);
        self.scratch.parts = parts;
        let mut arguments = taken?;
        if let Some(index) = procedure.signature.as_ref().and_then(|it| it.context) {
            arguments.remove(index);
        }
        let weight: u64 = weigh.bind(py).call1(PyTuple::new(py, arguments)?)?.extract()?;
        Ok(weight.max(1))
    }

    /// Writes the result of a function into the reply, if it has one.
    #[inline]
    pub(crate) fn write(
        &mut self,
        procedure: &Procedure,
        result: Result<Bound<'_, PyAny>, Failure>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        procedure.write_reply(&result?, reply, &mut self.results).map_err(Failure::Result)
    }

    /// Calls a plain function and writes its result into the reply.
    #[inline(always)]
    pub(crate) fn run(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Failure> {
        let result = self.call(py, procedure, call, None)?;
        procedure.write_reply(&result, reply, &mut self.results).map_err(Failure::Result)
    }

    /// Calls a plain function without a context, in the variables of its caller.
    #[cold]
    pub(crate) fn call_in_variables(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        self.report.set_in_function(true);
        let variables = self.contexts.own_variables(py).map_err(Failure::Raised);
        let ran = variables
            .and_then(|variables| run_in(&variables, || self.run(py, procedure, call, reply)));
        self.report.set_in_function(false);
        self.end_call(py, procedure, ran, (call, caller), reply);
        CallOutcome::Done
    }

    /// Ends a call of a plain function: writes its error, if it has one, and records the call.
    /// Inlined, because it costs half as much so.
    #[inline(always)]
    pub(crate) fn end_call(
        &mut self,
        py: Python<'_>,
        procedure: &Procedure,
        ran: Result<(), Failure>,
        (call, caller): (&Call<'_>, &Caller),
        reply: &mut Reply<'_>,
    ) {
        let mut code = None;
        if let Err(failure) = ran {
            let error = self.fail_call(procedure, call, caller, failure, reply);
            reply.error(&error);
            code = Some(error.code);
        }
        let nanos = self.warn_if_slow(py, procedure);
        if let Some(series) = procedure.series {
            self.timing.record(series, Duration::from_nanos(nanos), code);
        }
    }

    /// The scopes of a function that the current caller does not have.
    #[cold]
    pub(crate) fn missing_scopes(&mut self, procedure: &Procedure) -> Option<MissingScopes> {
        if procedure.scopes.is_empty() {
            return None;
        }
        let py = self.attach();
        missing_scopes_of(&procedure.scopes, self.contexts.user().map(|user| user.bind(py)))
    }

    /// Replies to a call whose deadline passed before it began.
    #[cold]
    pub(crate) fn expire(
        &self,
        procedure: &Procedure,
        deadline: Deadline,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let error = deadline.error();
        if let Some(series) = procedure.series {
            self.timing.record_since_receipt(series, Some(error.code));
        }
        reply.error(&error);
        CallOutcome::Done
    }

    /// Logs a function that held up all other calls, once. Called after Python code has run.
    /// Returns how many nanoseconds it ran.
    #[inline]
    pub(crate) fn warn_if_slow(&mut self, py: Python<'_>, procedure: &Procedure) -> u64 {
        let nanos = self.timing.function_returned();
        if nanos >= self.slow_nanos {
            self.warn_slow(py, procedure, Duration::from_nanos(nanos));
        }
        nanos
    }

    #[cold]
    fn warn_slow(&mut self, py: Python<'_>, procedure: &Procedure, elapsed: Duration) {
        if procedure.is_logged_as_slow() {
            return;
        }
        let name = procedure.described_name();
        let advice = match procedure.mode.executor() {
            Some(Executor::Task) => "await what it waits for, or run it by asyncio.to_thread",
            _ => "serve it by @server(threads=True), or processes=N if it computes",
        };
        let elapsed = elapsed.as_millis();
        let line = format!("{name} held up all other calls for {elapsed} ms: {advice}");
        self.report.warning(py, &line);
    }
}
