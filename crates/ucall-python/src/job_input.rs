//! The input of a call that runs in a thread or in a batch: shared by what waits for its turn and
//! the call's record.
//!
//! The server's thread makes it without the interpreter's lock. Who runs the function reads it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use pyo3::prelude::*;
use ucall_proto::{Binary, CallerIdentity};
use ucall_server::Reservation;

use crate::awaited_call::AwaitedCall;
use crate::context::Context;
use crate::ffi::DropAttached;
use crate::ffi::variables;
use crate::identity::Identity;
use crate::metrics::WaitingCall;
use crate::origin::CallOrigin;
use crate::waiting_limit::WaitingPermit;

/// The input of a call that waits for a thread or a batch. Cancelling the call takes the input out,
/// so that cancelled calls hold no memory in the queue.
pub(crate) struct JobInput(Mutex<Option<Contents>>);

/// The text of a call's params, and its context.
pub(crate) struct Contents {
    pub(crate) params: Option<InputParams>,
    /// What the call has beside their text.
    pub(crate) binary: Option<Binary>,
    pub(crate) context: Option<CallContext>,
    /// The caller, if the call runs in variables of its own.
    pub(crate) identity: Option<CallerIdentity>,
    /// Set if an async hook awaits it.
    pub(crate) awaited: Option<Arc<AwaitedCall>>,
    /// Who has made the call, for the log.
    pub(crate) origin: Option<Arc<CallOrigin>>,
    /// Counts the wait, if that is measured.
    pub(crate) waiting: Option<WaitingCall>,
    /// Counts the wait for a thread, if that is limited.
    pub(crate) permit: Option<WaitingPermit>,
    /// The memory reserved for the params.
    pub(crate) _reserved: Reservation,
}

/// The text of a call's params.
pub(crate) enum InputParams {
    Own(Bytes),
    /// Short ones are in the memory of the origin, which ends with the call. As a rule one thread
    /// allocates and frees it, which costs less than memory that passes from one to another.
    WithOrigin(Arc<CallOrigin>),
}

/// Params up to this length are kept with the origin.
pub(crate) const SHORT_PARAMS_MAX: usize = 4 << 10;

impl InputParams {
    pub(crate) fn copied(params: &[u8]) -> Self {
        Self::Own(Bytes::copy_from_slice(params))
    }
}

impl Deref for InputParams {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(text) => text,
            Self::WithOrigin(origin) => origin.params().unwrap_or_default(),
        }
    }
}

/// What a function gets of the request beside params.
pub(crate) enum CallContext {
    Call(Box<Context>),
    /// The request of a route, or the context that hooks have.
    Object(DropAttached<Py<PyAny>>),
}

impl Contents {
    /// The variables of a call that runs in a thread: copies of its caller's, or of the thread's.
    pub(crate) fn variables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let caller = self.identity.as_ref().and_then(|it| it.downcast_ref::<Identity>());
        match caller.and_then(Identity::variables) {
            Some(of_caller) => variables::copy(of_caller.bind(py)),
            None => variables::copy_current(py),
        }
    }
}

impl CallContext {
    /// The object that the function gets.
    pub(crate) fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Call(context) => Ok(context.into_object(py)?.into_any()),
            Self::Object(object) => Ok(object.bind(py).clone()),
        }
    }
}

impl JobInput {
    pub(crate) fn new(contents: Contents) -> Self {
        Self(Mutex::new(Some(contents)))
    }

    pub(crate) fn take(&self) -> Option<Contents> {
        self.contents().take()
    }

    /// The params, if they are short and the call has nothing beside their text.
    pub(crate) fn short_params(&self) -> Option<Arc<CallOrigin>> {
        match self.contents().as_ref()? {
            Contents { params: Some(InputParams::WithOrigin(origin)), binary: None, .. } => {
                Some(origin.clone())
            }
            _ => None,
        }
    }

    /// Puts back what was taken for a batch that has not begun.
    pub(crate) fn put_back(&self, contents: Contents) {
        *self.contents() = Some(contents);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.contents().is_none()
    }

    fn contents(&self) -> MutexGuard<'_, Option<Contents>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
