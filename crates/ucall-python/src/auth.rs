//! Authentication: the program's function that identifies a caller (`Server(auth=…)`).

use std::sync::Arc;

use pyo3::exceptions::{PyPermissionError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::{AuthenticationError, CallerIdentity};
use ucall_server::Caller;

use crate::attachment::DropAttached;
use crate::context::Context;
use crate::ffi;
use crate::ffi::variables::run_in;
use crate::handler::Interpreter;
use crate::keys::is_unauthorized;

impl Interpreter {
    /// Calls the program's function. `None`, `False`, `NotImplemented` and `PermissionError` reject
    /// the request. Any other exception, and an awaitable or iterator, reject it too and go to the
    /// log.
    #[cold]
    pub(crate) fn authenticate(
        &mut self,
        py: Python<'_>,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let Some(auth) = &self.auth else { return Err(AuthenticationError::Failed) };
        let channel = self.channel(py, caller.connection, head.is_some(), None);
        let request_context = Context::of_request(py, head, session, caller, channel);
        let request_context = Bound::new(py, request_context)
            .and_then(|context| {
                run_in(&self.own_variables(py)?, || ffi::call(auth.bind(py), [context.as_any()]))
            })
            .map(Bound::unbind)
            .and_then(|user| reject_awaitable(py, user));
        match request_context {
            Ok(user) if is_unauthorized(py, &user) => Err(AuthenticationError::Unauthorized),
            Ok(user) => {
                self.warn_of_falsy_user(py, &user);
                Ok(Arc::new(DropAttached::new(user)))
            }
            Err(error) if error.is_instance_of::<PyPermissionError>(py) => {
                Err(AuthenticationError::Unauthorized)
            }
            Err(error) => {
                let logged = self.report.auth_failed(py, &error);
                self.note_interrupt(logged);
                Err(AuthenticationError::Failed)
            }
        }
    }

    /// Logs, once, that the function has accepted a caller by a falsy value, such as 0 or "": it
    /// may have meant to reject the request.
    fn warn_of_falsy_user(&mut self, py: Python<'_>, user: &Py<PyAny>) {
        if self.has_warned_of_falsy_user || user.is_truthy(py).unwrap_or(true) {
            return;
        }
        self.has_warned_of_falsy_user = true;
        let class = user.bind(py).get_type();
        let name = class.name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        let line = format!(
            "auth has accepted a caller by a falsy value of type {name}: \
             only None and False reject a request"
        );
        let logged = self.report.warning(py, &line);
        self.note_interrupt(logged);
    }

    /// What the program's function returned for the current request.
    pub(crate) fn user(&self) -> Option<&Py<PyAny>> {
        let user = self.identity.as_ref()?.downcast_ref::<DropAttached<Py<PyAny>>>()?;
        Some(user)
    }
}

/// Rejects an awaitable or an iterator: the function's code has not run, so it has verified
/// nothing.
fn reject_awaitable(py: Python<'_>, user: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let awaitable = user.bind(py);
    let class = awaitable.get_type();
    let is_awaitable = class.hasattr(intern!(py, "__await__"))?
        || class.hasattr(intern!(py, "__next__"))?
        || class.hasattr(intern!(py, "__anext__"))?;
    if !is_awaitable {
        return Ok(user);
    }
    if class.hasattr(intern!(py, "cr_frame"))? {
        // Python would warn that the coroutine was never awaited.
        awaitable.call_method0(intern!(py, "close"))?;
    }
    let problem = format!("auth: expected a user at once, got {}", class.name()?);
    Err(PyTypeError::new_err(problem))
}
