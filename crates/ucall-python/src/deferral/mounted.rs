//! Runs the tasks of mounted applications, and answers their requests.
//!
//! A request has two entries: that of its call, which ends with the response, its deadline or its
//! connection, and that of its task, which may go on after each of these. The task has the permit,
//! so a drain waits for it.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ucall_proto::http1::{Head, Method};
use ucall_proto::websocket::{Handshake, MessageKind};
use ucall_proto::{CallOutcome, Reply};
use ucall_server::{CallId, LoggedCall, RunPermit, RunningCall};

use super::{CallStart, Deferral};
use crate::arguments::Failure;
use crate::asgi::{AsgiExchange, Exchange, Message, Mount, MountedTask, ScopeKind, Sent, scope_of};
use crate::asyncio::tasks;
use crate::calls::{EntryKind, RetainedParams};
use crate::errors;
use crate::ffi::variables::run_in;
use crate::ffi::{self, DropAttached};
use crate::functions::Functions;
use crate::origin::FailedCalls;
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
        // Of a body in parts as much waits as may, and what was received last.
        let body_len = body.map_or(2 * BODY_BYTES_MAX, <[u8]>::len);
        let kind = kind_of(head, body);
        let exchange = match kind {
            ScopeKind::WebSocket => Exchange::of_websocket(event_loop),
            ScopeKind::Http => {
                let body = body.map(|body| PyBytes::new(py, body).unbind());
                Exchange::of_http(event_loop, body, head.method() == Method::Head)
            }
        };
        let exchange = Arc::new(DropAttached::new(exchange));
        let scope = scope_of(py, kind, mount, head, call, caller)?;
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
        let origin = start.origin(&functions.contexts).clone();
        let record = MountedTask::new(exchange.clone(), origin, permit);
        if let Sent::All(response) = exchange.take_sent() {
            reply.response().extend_from_slice(&response);
            match is_done {
                true => Self::end_task(py, functions, procedure, &record, &task),
                false => self.follow_task(functions, procedure, record, &task)?,
            }
            return Ok(CallOutcome::Done);
        }
        if is_done && exchange.may_fail() {
            // For tasks that it has started.
            for future in exchange.disconnect() {
                self.streams.push_future(future);
            }
            return Err(Failure::Raised(failure_of(&task)));
        }
        let _reserved = self.calls.budget().reserve_large(body_len);
        let retained = RetainedParams::Params { _reserved };
        let token = self.insert_call(functions, start, None, retained);
        if let Some(call) = self.call(token) {
            call.items.target = ItemTarget::Caller;
            call.exchange = Some(exchange.clone());
        }
        let stream = self.streams.insert(&mut self.calls, procedure, &[token]);
        let key = stream.keys().first().copied();
        if let Some(key) = key {
            exchange.begin(py, StreamedCall { stream, key })?;
        }
        match is_done && exchange.is_over() {
            true => Self::end_task(py, functions, procedure, &record, &task),
            false => self.follow_task(functions, procedure, record, &task)?,
        }
        Ok(CallOutcome::Stream)
    }

    /// Takes a message of a WebSocket.
    pub(crate) fn take_message(
        &mut self,
        py: Python<'_>,
        call: CallId,
        kind: MessageKind,
        payload: &[u8],
    ) {
        let Some(exchange) = self.exchange_of(call) else { return };
        let message = match kind {
            MessageKind::Text => {
                Message::Text(PyString::new(py, &String::from_utf8_lossy(payload)).unbind())
            }
            MessageKind::Binary => Message::Bytes(PyBytes::new(py, payload).unbind()),
        };
        for future in exchange.take_message(message, payload.len(), self.calls.budget()) {
            self.streams.push_future(future);
        }
    }

    /// A WebSocket has ended, with this code.
    pub(crate) fn end_messages(&mut self, call: CallId, code: u16, reason: &str) {
        let Some(exchange) = self.exchange_of(call) else { return };
        for future in exchange.disconnect_with(code, reason) {
            self.streams.push_future(future);
        }
    }

    fn exchange_of(&mut self, call: CallId) -> Option<Arc<DropAttached<Exchange>>> {
        let token = self.calls.token_of(call)?;
        self.call(token)?.exchange.clone()
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
        let has_raised = tasks::result_of(task).is_err();
        match record.exchange.end(py, has_raised) {
            Ok(Some(call)) => {
                let failure = Failure::Raised(failure_of(task));
                let calls = FailedCalls::one(Some(&record.origin));
                let error =
                    functions.report.fail(py, procedure, calls, failure, self.reply_bytes_max);
                self.outcomes.push(py, call, DeferredOutcome::Text(Err(error)));
            }
            Ok(None) => Self::end_task(py, functions, procedure, record, task),
            Err(error) => error.write_unraisable(py, None),
        }
    }

    /// Logs what a task has raised after its response, unless its client has disconnected.
    fn end_task(
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        record: &MountedTask,
        task: &Bound<'_, PyAny>,
    ) {
        if let Err(error) = tasks::result_of(task)
            && !errors::is_cancelled(py, &error)
            && !record.exchange.has_reported_disconnect()
        {
            let origin = &record.origin;
            functions.report.log(|report| report.mounted_failed(py, procedure, origin, &error));
        }
    }

    /// Records the end of a request: the status of its response, or the code of the error that the
    /// server has answered with.
    pub(super) fn record_mounted(
        exchange: &Exchange,
        error: Option<i64>,
        running: Option<RunningCall>,
        logged: Option<LoggedCall>,
        now: Instant,
    ) {
        let (status, body_bytes) = exchange.summary();
        let code = error.unwrap_or(i64::from(status));
        if let Some(running) = running {
            running.record(Some(code).filter(|code| !(0..400).contains(code)), now);
        }
        if let Some(logged) = logged {
            logged.end(Some(code), body_bytes);
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

/// What a request asks of its application. One whose body is in parts has a body, so it asks for no
/// WebSocket.
fn kind_of(head: &Head<'_>, body: Option<&[u8]>) -> ScopeKind {
    match body.is_none() && matches!(Handshake::parse(head), Ok(Some(_))) {
        true => ScopeKind::WebSocket,
        false => ScopeKind::Http,
    }
}

/// Why a task has ended before its response.
fn failure_of(task: &Bound<'_, PyAny>) -> PyErr {
    let early = "the application returned before it had sent its whole response";
    tasks::result_of(task).err().unwrap_or_else(|| PyRuntimeError::new_err(early))
}
