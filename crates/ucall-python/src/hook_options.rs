//! The hooks around a function, as Python describes them.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::hooks::call_hooked;
use crate::procedure::{CallMode, Executor, Hooked, Procedure};

/// The attributes of `Hooks` in `python/ucall/_functions/registration.py`.
#[derive(FromPyObject)]
pub(crate) struct HookOptions {
    outermost: Py<PyAny>,
    inner: Vec<Py<PyAny>>,
    inner_async: usize,
    mode: String,
    later: Option<Py<PyAny>>,
    names: String,
}

impl HookOptions {
    /// What the server runs for a call of `function`.
    pub(crate) fn around(self, py: Python<'_>, function: Procedure) -> PyResult<Procedure> {
        self.enclose(py, function, true, false)
    }

    /// What the server runs for a call of a method that there is not, in place of `nothing`.
    pub(crate) fn around_nothing(self, py: Python<'_>, nothing: Procedure) -> PyResult<Procedure> {
        self.enclose(py, nothing, false, false)
    }

    /// What the server runs for calls of native procedures, in place of `native`.
    pub(crate) fn around_natives(self, py: Python<'_>, native: Procedure) -> PyResult<Procedure> {
        self.enclose(py, native, true, true)
    }

    fn enclose(
        self,
        py: Python<'_>,
        mut function: Procedure,
        is_known: bool,
        is_native: bool,
    ) -> PyResult<Procedure> {
        let Self { outermost, inner, inner_async, mode, later, names } = self;
        let mode = CallMode::from_description(&mode, None, None)?;
        // Calls wait for a thread where the thread is taken: before the hooks, or within them.
        let waiting_limit = match mode.executor() {
            Some(Executor::Thread) => function.waiting_limit.take(),
            _ => None,
        };
        let (name, encode) = (function.name.clone(), function.encode.clone_ref(py));
        Ok(Procedure {
            waiting_limit,
            series: function.series,
            is_idempotent: function.is_idempotent,
            stream: function.stream,
            access: function.access.clone(),
            scopes: function.scopes.clone(),
            // The scopes are checked within the hooks.
            is_plain: matches!(mode, CallMode::Inline),
            timeout: function.timeout,
            hooked: Some(Arc::new(Hooked {
                call: call_hooked,
                inner,
                inner_async,
                later,
                function: function.shared(),
                is_known,
                is_native,
                names,
            })),
            ..Procedure::new(name, outermost, None, encode, mode)
        })
    }
}
