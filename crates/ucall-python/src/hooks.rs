//! Hooks around calls (`Server.middleware`), and `ucall.Call`, by which a hook calls the function.
//!
//! A function with hooks is registered as a procedure without a signature, whose callable is
//! the outermost hook. It runs as every function does: on the worker's thread, in a thread of the
//! pool, or as a task. The hook gets the call's context, which keeps the text of the params, and a
//! [`HookedCall`]. To call that calls the next hook or, after the last one, reads the params and
//! calls the function.
//!
//! A plain hook costs little more than its frame: the objects of a call are those of an earlier one
//! that nothing refers to any more, and CPython calls them without a tuple.

use std::borrow::Cow;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PySystemError};
use pyo3::intern;
use pyo3::prelude::*;
use ucall_proto::Parts;
use ucall_server::{Token, unknown_method};

use crate::arguments::{self, Failure};
use crate::awaited_call::{AwaitedCall, AwaitedStart, AwaitedWork};
use crate::context::Context;
use crate::convert::{Convert, Input, Scratch};
use crate::errors;
use crate::ffi::{self, CalledWithoutArguments, ReusedObject, Vectorcall};
use crate::identity::missing_scopes_of;
use crate::outcomes::DeferredOutcome;
use crate::procedure::{Hooked, SharedProcedure};

/// A call, as a hook sees it: calling it runs the function, and the hooks within.
#[pyclass(frozen, module = "ucall", name = "Call")]
pub(crate) struct HookedCall {
    vectorcall: Vectorcall,
    /// `None` between two calls.
    target: Option<CallTarget>,
    has_begun: AtomicBool,
    /// What the hook awaits, if that runs elsewhere.
    awaited: Mutex<Option<Arc<AwaitedCall>>>,
}

/// What a hook calls.
pub(crate) struct CallTarget {
    hooked: Arc<Hooked>,
    /// The hook; the number of hooks if it calls the function.
    next: usize,
    /// It has the text of the params.
    context: Py<Context>,
    parts: Option<Arc<Parts>>,
}

/// The objects that nothing refers to any more, of the first hooks around a function.
static REUSED: [ReusedObject<HookedCall>; 4] = [const { ReusedObject::none() }; 4];

/// Calls the outermost hook of a function.
pub(crate) fn call_hooked<'py>(
    callable: &Bound<'py, PyAny>,
    hooked: &Arc<Hooked>,
    context: Bound<'py, PyAny>,
    parts: Option<&Arc<Parts>>,
) -> PyResult<Bound<'py, PyAny>> {
    let context = context.cast_into::<Context>()?;
    let (hooked, parts) = (hooked.clone(), parts.cloned());
    call_hook(callable, CallTarget { hooked, next: 0, context: context.unbind(), parts })
}

/// Calls a hook around `target`.
#[inline]
fn call_hook<'py>(hook: &Bound<'py, PyAny>, target: CallTarget) -> PyResult<Bound<'py, PyAny>> {
    let (py, depth) = (hook.py(), target.next);
    let call = HookedCall::object(py, target)?;
    let context = call.get().target()?.context.bind(py);
    let result = ffi::call(hook, [context.as_any(), call.as_any()]);
    HookedCall::reuse(call, depth);
    result
}

impl HookedCall {
    #[inline]
    fn object(py: Python<'_>, target: CallTarget) -> PyResult<Bound<'_, Self>> {
        let reused = REUSED.get(target.next).and_then(|reused| reused.take(py));
        let mut object = match reused {
            Some(object) => object,
            None => Self::new_object(py)?,
        };
        if let Some(call) = ffi::sole_value(&mut object) {
            call.target = Some(target);
        }
        Ok(object)
    }

    fn new_object(py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        static ENABLED: Once = Once::new();
        let call = Self {
            vectorcall: Vectorcall::of::<Self>(),
            target: None,
            has_begun: AtomicBool::new(false),
            awaited: Mutex::default(),
        };
        let object = Bound::new(py, call)?;
        ENABLED.call_once(|| Vectorcall::enable(&object));
        Ok(object)
    }

    /// Keeps the object of a call for another one, if nothing refers to it any more.
    #[inline]
    fn reuse(mut object: Bound<'_, Self>, depth: usize) {
        let py = object.py();
        let Some(call) = ffi::sole_value(&mut object) else { return };
        // Dropping a `Bound` skips the check that this thread is attached.
        drop(call.target.take().map(|target| target.context.into_bound(py)));
        *call.has_begun.get_mut() = false;
        *call.awaited.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(reused) = REUSED.get(depth) {
            reused.keep(object);
        }
    }
}

impl CalledWithoutArguments for HookedCall {
    const FIELD_OFFSET: usize = offset_of!(Self, vectorcall);

    fn call<'py>(object: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::__call__(object)
    }
}

#[pymethods]
impl HookedCall {
    /// The name that the function was called by.
    #[getter]
    fn method(&self) -> PyResult<Cow<'_, str>> {
        Ok(self.target()?.context().method())
    }

    /// The params as sent: a dict, a list, or None without any.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let target = self.target()?;
        let Some(text) = target.context().params() else { return Ok(None) };
        // The function reads the params again.
        let parts = target.parts.as_ref().map(|parts| Arc::new(parts.untaken()));
        let mut scratch = Scratch::of_parts(parts);
        let read = Input::new(py, text, &mut scratch).read(&Convert::Any);
        read.map(Some).map_err(|fault| Failure::Params(fault).into_exception(py))
    }

    /// Checks and converts the params, runs the function, and returns its result.
    fn __call__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (call, py) = (slf.get(), slf.py());
        let target = call.target()?;
        if call.has_begun.swap(true, Ordering::Relaxed) {
            let name = target.context().method();
            return Err(PyRuntimeError::new_err(format!("{name}: a hook calls the function once")));
        }
        match &target.hooked.later {
            Some(later) if target.next == target.hooked.inner_async => {
                ffi::call(later.bind(py), [slf.as_any()])
            }
            _ => target.proceed(py),
        }
    }

    /// Calls the next hook, or the function.
    fn _proceed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.target()?.proceed(py)
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
            call.target()?.check_scopes(py)?;
        }
        let awaited = Arc::new(AwaitedCall::new(future));
        *call.awaited() = Some(awaited.clone());
        let in_thread = |work| AwaitedWork::Thread { work, is_step };
        let work = work.map_or(AwaitedWork::Function, in_thread);
        let start = AwaitedStart { call: slf.clone().into_any().unbind(), work, awaited };
        call.push(py, DeferredOutcome::Begin(Box::new(start)))
    }

    /// Has `future` get a list of the next items of the generator that `_begin` has begun, or None
    /// after the last one.
    fn _take(&self, py: Python<'_>, future: Py<PyAny>) -> PyResult<()> {
        let awaited = self.awaited().clone();
        let awaited = awaited.ok_or_else(|| PySystemError::new_err("no call has begun"))?;
        awaited.set_future(future);
        self.push(py, DeferredOutcome::Take(awaited))
    }

    /// Cancels what `_begin` has begun last, and whoever awaits it, on the thread of the loop.
    fn _cancel(&self, py: Python<'_>) -> PyResult<()> {
        let Some(awaited) = self.awaited().take() else { return Ok(()) };
        if let Some(future) = awaited.take_future() {
            future.bind(py).call_method0(intern!(py, "cancel"))?;
        }
        if let Some(outcomes) = self.target()?.context().outcomes() {
            outcomes.cancel(awaited);
        }
        Ok(())
    }
}

impl HookedCall {
    /// What the hook calls.
    #[inline]
    pub(crate) fn target(&self) -> PyResult<&CallTarget> {
        self.target.as_ref().ok_or_else(|| PySystemError::new_err("it belongs to no call"))
    }

    /// What the hook awaits.
    fn awaited(&self) -> MutexGuard<'_, Option<Arc<AwaitedCall>>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the worker for something beside an outcome.
    fn push(&self, py: Python<'_>, outcome: DeferredOutcome) -> PyResult<()> {
        let Some(outcomes) = self.target()?.context().outcomes() else {
            return Err(PySystemError::new_err("no worker runs the call"));
        };
        outcomes.push(py, Token::NONE, outcome);
        Ok(())
    }
}

impl CallTarget {
    /// The function that the hooks are around.
    pub(crate) fn function(&self) -> &SharedProcedure {
        &self.hooked.function
    }

    /// Whether that is a native procedure.
    pub(crate) fn is_native(&self) -> bool {
        self.hooked.is_native
    }

    #[inline]
    pub(crate) fn context(&self) -> &Context {
        self.context.get()
    }

    /// The context, as the function gets it.
    pub(crate) fn context_object(&self, py: Python<'_>) -> Py<PyAny> {
        self.context.clone_ref(py).into_any()
    }

    /// The text of the params, and what it refers to.
    pub(crate) fn params_and_parts(&self) -> (Option<&[u8]>, Option<&Arc<Parts>>) {
        (self.context().params(), self.parts.as_ref())
    }

    /// Calls the next hook, or the function.
    fn proceed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(hook) = self.hooked.inner.get(self.next) else { return self.call_function(py) };
        let (hooked, parts) = (self.hooked.clone(), self.parts.clone());
        let context = self.context.clone_ref(py);
        call_hook(hook.bind(py), CallTarget { hooked, next: self.next + 1, context, parts })
    }

    #[inline]
    fn call_function<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let function = &self.hooked.function;
        if !self.hooked.is_known {
            return Err(errors::rpc_exception(py, &unknown_method(&self.context().method())));
        }
        self.check_scopes(py)?;
        let context = function.takes_context().then(|| self.context.bind(py).clone().into_any());
        let mut scratch = Scratch::of_parts(self.parts.clone());
        let params = self.context().params();
        let called = arguments::call(py, function, params, context, &mut scratch);
        called.map_err(|failure| failure.into_exception(py))
    }

    /// Raises `RPCError` if the caller lacks a scope.
    #[inline]
    fn check_scopes(&self, py: Python<'_>) -> PyResult<()> {
        match self.hooked.function.scopes.is_empty() {
            true => Ok(()),
            false => self.check_some_scopes(py),
        }
    }

    #[cold]
    fn check_some_scopes(&self, py: Python<'_>) -> PyResult<()> {
        let function = &self.hooked.function;
        let user = self.context().user(py);
        let user = user.as_ref().map(|user| user.bind(py));
        match missing_scopes_of(&function.scopes, user) {
            Some(missing) => Err(errors::rpc_exception(py, &missing.error)),
            None => Ok(()),
        }
    }
}
