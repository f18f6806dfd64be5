//! Runs the tasks of mounted applications, and answers their requests.
//!
//! A request has two entries: that of its call, which ends with the response, its deadline or its
//! connection, and that of its task, which may go on after each of these. The task has the permit,
//! so a drain waits for it.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::http1::Method;
use ucall_proto::{CallOutcome, Reply};
use ucall_server::RunPermit;

use super::{CallStart, Deferral};
use crate::arguments::Failure;
use crate::asgi::{AsgiExchange, Exchange, Mount, MountedTask, Sent, scope_of};
use crate::asyncio::tasks;
use crate::calls::{EntryKind, RetainedParams};
use crate::errors;
use crate::ffi::variables::run_in;
use crate::ffi::{self, DropAttached};
use crate::functions::Functions;
use crate::outcomes::DeferredOutcome;
use crate::procedure::SharedProcedure;
use crate::request_body::BODY_BYTES_MAX;
use crate::streams::{ItemTarget, StreamedCall};

impl Deferral {
    /// Begins a request of an application.
    pub(crate) fn begin_mounted(
        &mut self,
        functions: &mut Functions,
        mount: &Mount,
        mut start: CallStart<'_, '_>,
        body: Option<&[u8]>,
        reply: &mut Reply<'_>,
    ) -> Result<CallOutcome, Failure> {
        let (py, &CallStart { procedure, call, caller, .. }) = (functions.attach(), &start);
        let Some(head) = call.head else { return Ok(CallOutcome::Done) };
        let event_loop = self.tasks(py)?.event_loop(py).clone().unbind();
        let is_head = head.method() == Method::Head;
        let body = body.map(|body| PyBytes::new(py, body).unbind());
        // Of a body in parts as much waits as may, and what was received last.
        let body_len = body.as_ref().map_or(2 * BODY_BYTES_MAX, |it| it.as_bytes(py).len());
        let exchange = Exchange::new(event_loop, body, is_head);
        let exchange = Arc::new(DropAttached::new(exchange));
        let scope = scope_of(py, mount, head, call, caller)?;
        let variables = functions.contexts.own_variables(py)?;
        let object = Bound::new(py, AsgiExchange::new(exchange.clone()))?;
        let receive = object.getattr(intern!(py, "receive"))?;
        let send = object.getattr(intern!(py, "send"))?;
        let app = procedure.callable.bind(py);
        let coroutine = run_in(&variables, || ffi::call(app, [scope.as_any(), &receive, &send]))?;
        let task = self.tasks(py)?.start(&coroutine, &variables)?;
        functions.warn_if_slow(py, procedure);
        let is_done = tasks::is_done(&task)?;
        let permit = std::mem::replace(&mut start.permit, RunPermit::uncounted());
        let record = MountedTask::new(exchange.clone(), permit);
        if let Sent::All(response) = exchange.take_sent() {
            reply.response().extend_from_slice(&response);
            match is_done {
                true => Self::end_task(py, functions, procedure, &exchange, &task),
                false => self.follow_task(functions, procedure, record, &task)?,
            }
            return Ok(CallOutcome::Done);
        }
        if is_done && !exchange.is_complete() {
            return Err(Failure::Raised(failure_of(&task)));
        }
        let _reserved = self.calls.budget().reserve_large(body_len);
        let retained = RetainedParams::Params { _reserved };
        let token = self.insert_call(&functions.timing, start, None, retained);
        if let Some(call) = self.call(token) {
            call.items.target = ItemTarget::Caller;
            call.exchange = Some(exchange.clone());
        }
        let stream = self.streams.insert(&mut self.calls, procedure, &[token]);
        let key = stream.keys().first().copied();
        if let Some(key) = key {
            exchange.begin(py, StreamedCall { stream, key })?;
        }
        match is_done {
            true => Self::end_task(py, functions, procedure, &exchange, &task),
            false => self.follow_task(functions, procedure, record, &task)?,
        }
        Ok(CallOutcome::Stream)
    }

    /// Has a task that goes on report its end.
    fn follow_task(
        &mut self,
        functions: &Functions,
        procedure: &SharedProcedure,
        record: MountedTask,
        task: &Bound<'_, PyAny>,
    ) -> Result<(), Failure> {
        record.exchange.set_task(task.clone().unbind());
        let token = self.insert_entry(&functions.timing, procedure, EntryKind::Mounted(record));
        self.watch_future(task, token, true)
    }

    /// The task of a request has ended: answers the request if its response is not complete.
    pub(super) fn end_mounted(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        record: &MountedTask,
        outcome: DeferredOutcome,
    ) {
        let DeferredOutcome::Future(task) = outcome else { return };
        let task = task.bind(py);
        drop(record.exchange.take_task());
        match record.exchange.end(py) {
            Ok(Some(call)) => {
                let failure = Failure::Raised(failure_of(task));
                let error = functions.report.fail(py, procedure, failure, self.reply_bytes_max);
                self.outcomes.push(py, call, DeferredOutcome::Text(Err(error)));
            }
            Ok(None) => Self::end_task(py, functions, procedure, &record.exchange, task),
            Err(error) => error.write_unraisable(py, None),
        }
    }

    /// Logs what a task has raised after its response, unless its client has disconnected.
    fn end_task(
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        exchange: &Exchange,
        task: &Bound<'_, PyAny>,
    ) {
        if let Err(error) = tasks::result_of(task)
            && !errors::is_cancelled(py, &error)
            && !exchange.has_reported_disconnect()
        {
            let name = format!("{}, after its response,", procedure.name);
            functions.report.log(|report| report.background_failed(py, &name, &error));
        }
    }

    /// The client of a request has disconnected. With `cancels` its deadline has passed, or the
    /// server ends.
    pub(super) fn disconnect_mounted(
        &mut self,
        py: Python<'_>,
        exchange: &Exchange,
        cancels: bool,
    ) {
        for future in exchange.disconnect() {
            self.streams.push_future(future);
        }
        if cancels && let Some(task) = exchange.take_task() {
            tasks::cancel(py, &task);
        }
    }
}

/// Why a task has ended before its response.
fn failure_of(task: &Bound<'_, PyAny>) -> PyErr {
    let early = "the application returned before it had sent its whole response";
    tasks::result_of(task).err().unwrap_or_else(|| PyRuntimeError::new_err(early))
}
