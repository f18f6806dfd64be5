//! Who a caller is: what the program's `auth` has returned.

use std::sync::{Arc, OnceLock};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFrozenSet, PySet};
use ucall_proto::CallerIdentity;
use ucall_server::MissingScopes;

use crate::ffi::DropAttached;

/// The caller of a request.
pub(crate) struct Identity {
    user: DropAttached<Py<PyAny>>,
    /// The variables (`contextvars`) of `auth`, if that has set any.
    variables: Option<DropAttached<Py<PyAny>>>,
    /// The highest priority that the caller's calls may have: the attribute `priority` of the user.
    priority_max: Option<i8>,
    /// That of the user, once it was asked for.
    name: OnceLock<Option<String>>,
}

impl Identity {
    /// The caller that `auth` has returned this for.
    pub(crate) fn new(py: Python<'_>, user: Py<PyAny>) -> Self {
        let attribute = user.bind(py).getattr_opt(intern!(py, "priority")).ok().flatten();
        let priority = attribute.and_then(|it| it.extract::<i64>().ok());
        let priority_max = priority.map(|it| it.clamp(-8, 7) as i8);
        let user = DropAttached::new(user);
        Self { user, variables: None, priority_max, name: OnceLock::new() }
    }

    /// Has the caller's calls run in copies of these variables.
    pub(crate) fn with_variables(self, variables: Py<PyAny>) -> Self {
        Self { variables: Some(DropAttached::new(variables)), ..self }
    }

    /// The variables that the caller's calls start with, if they are not the worker's.
    pub(crate) fn variables(&self) -> Option<&Py<PyAny>> {
        self.variables.as_deref()
    }

    pub(crate) fn user(&self) -> &Py<PyAny> {
        &self.user
    }

    /// The name of the user: itself, if that is a text, or its attribute ``subject``.
    pub(crate) fn name(&self, py: Python<'_>) -> Option<&str> {
        if self.name.get().is_none() {
            // Not within the lock: a property of the program may wait for another thread.
            let _ = self.name.set(name_of(self.user.bind(py)));
        }
        self.known_name().flatten()
    }

    /// The name, if [`Identity::name`] has read it: needs no interpreter lock.
    pub(crate) fn known_name(&self) -> Option<Option<&str>> {
        self.name.get().map(Option::as_deref)
    }

    /// The priority of a call that asks for this one.
    pub(crate) fn priority(&self, asked: i8) -> i8 {
        self.priority_max.map_or(asked, |max| asked.min(max))
    }
}

/// The name of a user: itself, if that is a text, or its attribute ``subject``.
fn name_of(user: &Bound<'_, PyAny>) -> Option<String> {
    let subject = || user.getattr(intern!(user.py(), "subject"))?.extract();
    user.extract().or_else(|_: PyErr| subject()).ok()
}

/// The user of an identity, if a function of the program has returned it or it has one by its key.
pub(crate) fn user_of(identity: &CallerIdentity) -> Option<&Py<PyAny>> {
    identity.downcast_ref().map(Identity::user)
}

/// Those of `required` that a user does not have.
#[cold]
pub(crate) fn missing_scopes_of(
    required: &Arc<[String]>,
    user: Option<&Bound<'_, PyAny>>,
) -> Option<MissingScopes> {
    let scopes = user.and_then(scopes_of);
    MissingScopes::find(required, |scope| {
        scopes.as_ref().is_some_and(|scopes| scopes.contains(scope).unwrap_or(false))
    })
}

/// The attribute ``scopes`` of a user. It counts only as a set: text would contain its parts.
fn scopes_of<'py>(user: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let scopes = user.getattr_opt(intern!(user.py(), "scopes")).ok()??;
    let is_set = scopes.is_instance_of::<PyFrozenSet>() || scopes.is_instance_of::<PySet>();
    is_set.then_some(scopes)
}
