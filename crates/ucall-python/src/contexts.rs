//! What the contexts of calls are made of: variables, the caller's identity and its session.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_engine::Id;
use ucall_proto::{Call, CallerIdentity, McpRequest, Meta};
use ucall_server::{Caller, Deadline};

use crate::context::{Context, ContextParts};
use crate::ffi::DropAttached;
use crate::ffi::variables::{self, run_in};
use crate::identity::{Identity, user_of};
use crate::procedure::SharedProcedure;
use crate::running_context::RunningContext;
use crate::session::{Channel, Sessions};
use crate::streams::{ProgressTarget, Reports, StreamContext};
use crate::worker_report::WorkerReport;

/// Makes the contexts of a worker's calls.
pub(crate) struct Contexts {
    /// The `contextvars.Context` that each call copies. Plain functions without a context run in
    /// the thread's own variables.
    variables: Py<PyAny>,
    /// A copy of them for the next call, if they are none.
    unset: Option<Py<PyAny>>,
    streams: StreamContext,
    /// Set when the worker is made.
    sessions: Option<Arc<DropAttached<Sessions>>>,
    /// The user that `auth` returned for the current request.
    identity: Option<CallerIdentity>,
}

impl Contexts {
    pub(crate) fn new(py: Python<'_>, streams: StreamContext) -> PyResult<Self> {
        let variables = variables::copy_current(py)?.unbind();
        Ok(Self { variables, unset: None, streams, sessions: None, identity: None })
    }

    /// Makes the current variables of this thread the ones that calls start with.
    pub(crate) fn take_variables(&mut self, py: Python<'_>) -> PyResult<()> {
        (self.variables, self.unset) = (variables::copy_current(py)?.unbind(), None);
        Ok(())
    }

    /// Variables for a call of the current request that ends in its turn. They are given back by
    /// [`Contexts::reuse_variables`].
    #[inline]
    pub(crate) fn inline_variables<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if !self.has_own_variables()
            && let Some(unset) = self.unset.take()
        {
            return Ok(unset.into_bound(py));
        }
        self.own_variables(py)
    }

    /// Keeps the variables of a call for the next one, if none are set: then the call has set
    /// none, since a copy loses no variable.
    #[inline]
    pub(crate) fn reuse_variables(&mut self, variables: Bound<'_, PyAny>) {
        if variables::are_unset(&variables) {
            self.unset = Some(variables.unbind());
        }
    }

    /// Copies the variables for one call of the current request.
    pub(crate) fn own_variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let of_caller = self.caller().and_then(Identity::variables);
        variables::copy(of_caller.unwrap_or(&self.variables).bind(py))
    }

    /// Copies the variables for code of no caller, or of several, as a batch is.
    pub(crate) fn new_variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        variables::copy(self.variables.bind(py))
    }

    /// A copy of the variables if code has changed it.
    pub(crate) fn changed_variables(&self, copy: Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
        let base = self.variables.bind(copy.py());
        let mut is_same = copy.len()? == base.len()?;
        for variable in copy.try_iter()? {
            let variable = variable?;
            is_same = is_same
                && base.contains(&variable)?
                && copy.get_item(&variable)?.is(&base.get_item(&variable)?);
        }
        Ok((!is_same).then(|| copy.unbind()))
    }

    /// Whether the caller of the current request has variables of its own.
    pub(crate) fn has_own_variables(&self) -> bool {
        self.caller().is_some_and(|caller| caller.variables().is_some())
    }

    /// The identity of the caller, if its calls run in variables of its own.
    pub(crate) fn identity_with_variables(&self) -> Option<CallerIdentity> {
        self.identity.clone().filter(|_| self.has_own_variables())
    }

    pub(crate) fn caller(&self) -> Option<&Identity> {
        self.identity.as_ref()?.downcast_ref()
    }

    pub(crate) fn set_sessions(&mut self, sessions: Sessions) {
        self.sessions = Some(Arc::new(DropAttached::new(sessions)));
    }

    pub(crate) fn set_identity(&mut self, identity: &CallerIdentity) {
        self.identity = Some(identity.clone());
    }

    /// A request is not authenticated: the caller was that of an earlier one.
    pub(crate) fn clear_identity(&mut self) {
        self.identity = None;
    }

    /// What the program's function returned for the current request.
    pub(crate) fn user(&self) -> Option<&Py<PyAny>> {
        user_of(self.identity.as_ref()?)
    }

    /// The identity of the caller of the current request.
    pub(crate) fn identity(&self) -> Option<&CallerIdentity> {
        self.identity.as_ref()
    }

    /// The priority of a call.
    pub(crate) fn priority_of(&self, call: &Call<'_>) -> i8 {
        let asked = call.meta.and_then(Meta::priority).unwrap_or(0);
        self.caller().map_or(asked, |caller| caller.priority(asked))
    }

    /// The context of a call.
    pub(crate) fn of_call(
        &self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        deadline: Option<Deadline>,
    ) -> Context {
        Context::new(call, caller, self.parts_of(procedure, call, caller, deadline))
    }

    /// The context of a call that runs on this thread and ends in its turn.
    #[inline(always)]
    pub(crate) fn of_running_call<'py, 'call>(
        &self,
        py: Python<'py>,
        procedure: &SharedProcedure,
        call: &Call<'call>,
        caller: &Caller,
        deadline: Option<Deadline>,
    ) -> PyResult<RunningContext<'py, 'call>> {
        RunningContext::new(py, call, caller, self.parts_of(procedure, call, caller, deadline))
    }

    #[inline(always)]
    fn parts_of(
        &self,
        procedure: &SharedProcedure,
        call: &Call<'_>,
        caller: &Caller,
        deadline: Option<Deadline>,
    ) -> ContextParts {
        let progress = match call.takes_reports() {
            _ if procedure.is_stream() => ProgressTarget::Items,
            true => {
                let reports = Box::new(Reports::new(self.streams.clone()));
                match call.mcp.is_none_or(McpRequest::takes_progress) {
                    true => ProgressTarget::Caller(reports),
                    false => ProgressTarget::Notifications(reports),
                }
            }
            false => ProgressTarget::Nobody,
        };
        let hooked = procedure.hooked.as_ref();
        let is_awaited = hooked.is_some_and(|hooked| hooked.later.is_some());
        let outcomes = is_awaited.then(|| self.streams.outcomes.clone());
        let params_bytes = call.params.map_or(0, <[u8]>::len);
        ContextParts {
            identity: self.identity.clone(),
            deadline,
            progress,
            outcomes,
            channel: self.channel(caller.connection, call.head.is_some(), Some(procedure)),
            params: hooked.map(|_| self.streams.budget.reserve_large(params_bytes)),
        }
    }

    /// The connection of a call; without `procedure` of a request before its call.
    pub(crate) fn channel(
        &self,
        connection: Id,
        is_http: bool,
        procedure: Option<&SharedProcedure>,
    ) -> Option<Channel> {
        let sessions = self.sessions.clone()?;
        Some(Channel::new(sessions, connection, is_http, procedure.cloned()))
    }

    /// Calls what the session of a closed connection has registered.
    #[cold]
    pub(crate) fn end_session(&self, py: Python<'_>, connection: Id, report: &mut WorkerReport) {
        let Some(sessions) = &self.sessions else { return };
        for callback in sessions.remove(connection) {
            let called = self
                .new_variables(py)
                .and_then(|variables| run_in(&variables, || callback.call0(py)));
            if let Err(error) = called {
                report.log(|report| report.on_close_failed(py, &error));
            }
        }
    }
}
