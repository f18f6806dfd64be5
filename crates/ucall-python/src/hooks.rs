//! Hooks around calls (`Server.middleware`), and `ucall.Call`, by which a hook calls the function.
//!
//! A function with hooks is registered as a procedure without a signature, whose callable is
//! the outermost hook. It runs as every function does: on the worker's thread, in a thread of the
//! pool, or as a task. The hook gets the call's context and a [`HookedCall`], which keeps the text
//! of the params. To call that calls the next hook or, after the last one, reads the params and
//! calls the function.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PySystemError};
use pyo3::prelude::*;
use ucall_proto::Parts;
use ucall_server::{Reservation, Token, unknown_method};

use crate::arguments::{self, Failure};
use crate::awaited_call::{AwaitedCall, AwaitedStart, AwaitedWork};
use crate::context::Context;
use crate::convert::{Convert, Input, Scratch};
use crate::errors;
use crate::ffi;
use crate::identity::missing_scopes_of;
use crate::outcomes::DeferredOutcome;
use crate::procedure::{Hooked, SharedProcedure};

/// A call, as a hook sees it: calling it runs the function, and the hooks within.
#[pyclass(frozen, module = "ucall", name = "Call")]
pub(crate) struct HookedCall {
    hooked: Arc<Hooked>,
    /// The hook that it calls; the number of hooks if it calls the function.
    next: usize,
    context: Py<Context>,
    input: Arc<CallInput>,
    has_begun: AtomicBool,
    /// What the hook awaits, if that runs elsewhere.
    awaited: Mutex<Option<Arc<AwaitedCall>>>,
}

/// The params of a call, which all of its hooks share.
struct CallInput {
    params: Option<Box<[u8]>>,
    parts: Option<Arc<Parts>>,
    _reserved: Reservation,
}

/// Calls the outermost hook of a function.
#[cold]
pub(crate) fn call_hooked<'py>(
    callable: &Bound<'py, PyAny>,
    hooked: &Arc<Hooked>,
    params: Option<&[u8]>,
    context: Option<Bound<'py, PyAny>>,
    scratch: &Scratch,
) -> PyResult<Bound<'py, PyAny>> {
    let no_context = || PySystemError::new_err("a call with hooks has no context");
    let context = context.ok_or_else(no_context)?.cast_into::<Context>()?;
    let input = CallInput {
        params: params.map(Box::from),
        parts: scratch.parts.clone(),
        _reserved: scratch.reserve(params.map_or(0, <[u8]>::len)),
    };
    let call = HookedCall {
        hooked: hooked.clone(),
        next: 0,
        context: context.clone().unbind(),
        input: Arc::new(input),
        has_begun: AtomicBool::new(false),
        awaited: Mutex::default(),
    };
    let call = Bound::new(callable.py(), call)?;
    ffi::call(callable, [context.as_any(), call.as_any()])
}

#[pymethods]
impl HookedCall {
    /// The name that the function was called by.
    #[getter]
    fn method(&self) -> &str {
        self.context.get().method()
    }

    /// The params as sent: a dict, a list, or None without any.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(text) = &self.input.params else { return Ok(None) };
        // The function reads the params again.
        let parts = self.input.parts.as_ref().map(|parts| Arc::new(parts.untaken()));
        let mut scratch = Scratch::of_parts(parts);
        let read = Input::new(py, text, &mut scratch).read(&Convert::Any);
        read.map(Some).map_err(|fault| Failure::Params(fault).into_exception(py))
    }

    /// Checks and converts the params, runs the function, and returns its result.
    fn __call__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let call = slf.get();
        if call.has_begun.swap(true, Ordering::Relaxed) {
            let name = call.method();
            return Err(PyRuntimeError::new_err(format!("{name}: a hook calls the function once")));
        }
        match &call.hooked.later {
            Some(later) if call.next == call.hooked.inner_async => {
                ffi::call(later.bind(slf.py()), [slf.as_any()])
            }
            _ => call._proceed(slf.py()),
        }
    }

    /// Calls the next hook, or the function.
    fn _proceed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(hook) = self.hooked.inner.get(self.next) else { return self.call_function(py) };
        let call = Self {
            hooked: self.hooked.clone(),
            next: self.next + 1,
            context: self.context.clone_ref(py),
            input: self.input.clone(),
            has_begun: AtomicBool::new(false),
            awaited: Mutex::default(),
        };
        let call = Bound::new(py, call)?;
        ffi::call(hook.bind(py), [self.context.bind(py).as_any(), call.as_any()])
    }

    /// Has a thread of the pool run `work`, or a batch the function. `future` gets the outcome.
    #[pyo3(signature = (future, work = None, is_step = false))]
    fn _begin(
        slf: &Bound<'_, Self>,
        future: Py<PyAny>,
        work: Option<Py<PyAny>>,
        is_step: bool,
    ) -> PyResult<()> {
        let (py, call) = (slf.py(), slf.get());
        if work.is_none() {
            call.check_scopes(py)?;
        }
        let awaited = Arc::new(AwaitedCall::new(future));
        *call.awaited() = Some(awaited.clone());
        let in_thread = |work| AwaitedWork::Thread { work, is_step };
        let work = work.map_or(AwaitedWork::Function, in_thread);
        let start = AwaitedStart { call: slf.clone().into_any().unbind(), work, awaited };
        call.push(py, DeferredOutcome::Begin(Box::new(start)))
    }

    /// Cancels what `_begin` has begun last.
    fn _cancel(&self, py: Python<'_>) -> PyResult<()> {
        let awaited = self.awaited().take();
        awaited.map_or(Ok(()), |awaited| self.push(py, DeferredOutcome::Cancel(awaited)))
    }
}

impl HookedCall {
    /// The function that the hooks are around.
    pub(crate) fn function(&self) -> &SharedProcedure {
        &self.hooked.function
    }

    /// What the hook awaits.
    fn awaited(&self) -> MutexGuard<'_, Option<Arc<AwaitedCall>>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text of the params, and what it refers to.
    pub(crate) fn params_and_parts(&self) -> (Option<&[u8]>, Option<&Arc<Parts>>) {
        (self.input.params.as_deref(), self.input.parts.as_ref())
    }

    pub(crate) fn context(&self) -> &Context {
        self.context.get()
    }

    /// The context, as the function gets it.
    pub(crate) fn context_object(&self, py: Python<'_>) -> Py<PyAny> {
        self.context.clone_ref(py).into_any()
    }

    /// Asks the worker for something beside an outcome.
    fn push(&self, py: Python<'_>, outcome: DeferredOutcome) -> PyResult<()> {
        let Some(outcomes) = self.context.get().outcomes() else {
            return Err(PySystemError::new_err("no worker runs the call"));
        };
        outcomes.push(py, Token::NONE, outcome);
        Ok(())
    }

    /// Raises `RPCError` if the caller lacks a scope.
    fn check_scopes(&self, py: Python<'_>) -> PyResult<()> {
        let function = &self.hooked.function;
        if function.scopes.is_empty() {
            return Ok(());
        }
        let user = self.context.get().user(py);
        let user = user.as_ref().map(|user| user.bind(py));
        match missing_scopes_of(&function.scopes, user) {
            Some(missing) => Err(errors::rpc_exception(py, &missing.error)),
            None => Ok(()),
        }
    }

    fn call_function<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let function = &self.hooked.function;
        if !self.hooked.is_known {
            return Err(errors::rpc_exception(py, &unknown_method(self.method())));
        }
        self.check_scopes(py)?;
        let context = function.takes_context().then(|| self.context.bind(py).clone().into_any());
        let mut scratch = Scratch::of_parts(self.input.parts.clone());
        let params = self.input.params.as_deref();
        let called = arguments::call(py, function, params, context, &mut scratch);
        called.map_err(|failure| failure.into_exception(py))
    }
}
