//! Who a caller is: what the program's `auth` has returned.

use pyo3::intern;
use pyo3::prelude::*;

use crate::ffi::DropAttached;

/// The caller of a request.
pub(crate) struct Identity {
    user: DropAttached<Py<PyAny>>,
    /// The highest priority that the caller's calls may have: the attribute `priority` of the user.
    priority_max: Option<i8>,
}

impl Identity {
    /// The caller that `auth` has returned this for.
    pub(crate) fn new(py: Python<'_>, user: Py<PyAny>) -> Self {
        let attribute = user.bind(py).getattr_opt(intern!(py, "priority")).ok().flatten();
        let priority = attribute.and_then(|it| it.extract::<i64>().ok());
        let priority_max = priority.map(|it| it.clamp(-8, 7) as i8);
        Self { user: DropAttached::new(user), priority_max }
    }

    pub(crate) fn user(&self) -> &Py<PyAny> {
        &self.user
    }

    /// The priority of a call that asks for this one.
    pub(crate) fn priority(&self, asked: i8) -> i8 {
        self.priority_max.map_or(asked, |max| asked.min(max))
    }
}
