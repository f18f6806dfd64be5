//! Authentication: the program's functions that identify a caller (`Server(auth=…)`, and
//! `@server(auth=…)` in its place).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyPermissionError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::{AuthenticationError, CallerIdentity};
use ucall_server::Caller;

use crate::access::{FunctionAccess, OwnAuthentication};
use crate::context::Context;
use crate::ffi;
use crate::ffi::variables::run_in;
use crate::functions::Functions;
use crate::identity::Identity;
use crate::keys::{KeyTable, Keys, is_unauthorized};
use crate::worker_report::WorkerReport;

/// How a worker identifies the callers of its functions.
pub(crate) enum Authentication {
    /// Nothing is asked.
    None,
    /// By keys, without Python.
    Keys(Arc<KeyTable>),
    /// By the program's function.
    Function {
        function: Py<PyAny>,
        /// Whether the log says that it has returned a falsy value for a user.
        has_warned: AtomicBool,
    },
}

/// The `auth` functions of a server that are in place of its own.
#[derive(Default)]
pub(crate) struct OwnAuthentications(Mutex<Vec<(Py<PyAny>, Arc<OwnAuthentication>)>>);

impl OwnAuthentications {
    /// Who may call a function that is public, or has an `auth` with this challenge.
    pub(crate) fn access(
        &self,
        py: Python<'_>,
        is_public: bool,
        auth: Option<(Py<PyAny>, String)>,
    ) -> FunctionAccess {
        match auth {
            _ if is_public => FunctionAccess::Public,
            None => FunctionAccess::Authenticated,
            Some((auth, challenge)) => FunctionAccess::Own(self.find_or_add(py, auth, challenge)),
        }
    }

    fn find_or_add(
        &self,
        py: Python<'_>,
        auth: Py<PyAny>,
        challenge: String,
    ) -> Arc<OwnAuthentication> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(known, _)| known.is(&auth)) {
            return known.clone();
        }
        let authentication = Authentication::new(py, Some(auth.clone_ref(py)));
        let own = Arc::new(OwnAuthentication::new(all.len(), authentication, challenge));
        all.push((auth, own.clone()));
        own
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Authentication {
    pub(crate) fn new(py: Python<'_>, auth: Option<Py<PyAny>>) -> Self {
        let Some(function) = auth else { return Self::None };
        match Keys::table_of(function.bind(py)) {
            Some(keys) => Self::Keys(keys),
            None => Self::Function { function, has_warned: AtomicBool::new(false) },
        }
    }

    /// The header that identifies a caller, of those that are known to.
    pub(crate) fn header(&self) -> &str {
        match self {
            Self::Keys(keys) => keys.header(),
            Self::None | Self::Function { .. } => "Authorization",
        }
    }

    /// Identifies the caller of a request; keys without Python.
    pub(crate) fn authenticate(
        &self,
        functions: &mut Functions,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        if let Self::Keys(keys) = self {
            return keys.authenticate(head);
        }
        let py = functions.attach();
        self.call_function(py, functions, head, session, caller)
    }

    /// Calls the program's function. `None`, `False`, `NotImplemented` and `PermissionError` reject
    /// the request. Any other exception, and an awaitable or iterator, reject it too and go to the
    /// log.
    #[cold]
    fn call_function(
        &self,
        py: Python<'_>,
        functions: &mut Functions,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let Self::Function { function, has_warned } = self else {
            return Err(AuthenticationError::Failed);
        };
        let Functions { contexts, report, .. } = functions;
        let channel = contexts.channel(caller.connection, head.is_some(), None);
        let request_context = Context::of_request(head, session, caller, channel);
        let user = request_context.into_object(py).and_then(|context| {
            let variables = contexts.new_variables(py)?;
            let user = run_in(&variables, || ffi::call(function.bind(py), [context.as_any()]))?;
            let user = reject_awaitable(py, user.unbind())?;
            Ok((user, contexts.changed_variables(variables)?))
        });
        match user {
            Ok((user, _)) if is_unauthorized(py, &user) => Err(AuthenticationError::Unauthorized),
            Ok((user, variables)) => {
                if !user.is_truthy(py).unwrap_or(true) && !has_warned.swap(true, Ordering::Relaxed)
                {
                    warn_of_falsy_user(py, report, &user);
                }
                let identity = Identity::new(py, user);
                Ok(Arc::new(match variables {
                    Some(variables) => identity.with_variables(variables),
                    None => identity,
                }))
            }
            Err(error) if error.is_instance_of::<PyPermissionError>(py) => {
                Err(refusal_of(error.value(py)))
            }
            Err(error) => {
                report.log(|report| report.auth_failed(py, &error));
                Err(AuthenticationError::Failed)
            }
        }
    }
}

/// What a `PermissionError` means: `ucall.auth` has some that are no 401.
fn refusal_of(error: &Bound<'_, PyAny>) -> AuthenticationError {
    let refusal = error.getattr_opt(intern!(error.py(), "ucall_refusal"));
    let refusal = refusal.ok().flatten().and_then(|it| it.extract::<String>().ok());
    match refusal.as_deref() {
        Some("insufficient_scope") => AuthenticationError::InsufficientScope,
        Some("unavailable") => AuthenticationError::Unavailable,
        _ => AuthenticationError::Unauthorized,
    }
}

/// Logs that the function has accepted a caller by a falsy value, such as 0 or "": it may have
/// meant to reject the request.
fn warn_of_falsy_user(py: Python<'_>, report: &mut WorkerReport, user: &Py<PyAny>) {
    let class = user.bind(py).get_type();
    let name = class.name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    report.warning(
        py,
        &format!(
            "auth has accepted a caller by a falsy value of type {name}: \
             only None and False reject a request"
        ),
    );
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
