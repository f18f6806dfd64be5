//! Bodies of requests that are received while they arrive.
//!
//! [`RequestBody`] is what has arrived of one. A mounted application gets it by messages
//! (`asgi/exchange.rs`), the function of a route by an [`ArrivingBody`].

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_server::Token;

use crate::ffi::DropAttached;
use crate::outcomes::{DeferredOutcome, Outcomes};

/// Bytes of a body that wait for the program before the connection receives no more.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;

/// The body of a request, as far as it has arrived and was not received.
pub(crate) enum RequestBody {
    /// All of it, until it is received.
    Whole(Option<Py<PyBytes>>),
    Parts {
        bytes: Vec<u8>,
        /// Whether all has arrived.
        is_over: bool,
        /// Whether the last part was received.
        is_received: bool,
        /// Whether the worker waits until there is room.
        is_awaited: bool,
    },
}

impl RequestBody {
    /// One that follows its request in parts.
    pub(crate) fn in_parts() -> Self {
        Self::Parts { bytes: Vec::new(), is_over: false, is_received: false, is_awaited: false }
    }

    /// What has arrived since the last time, and whether more follows. `None` if nothing has.
    pub(crate) fn take(&mut self, py: Python<'_>) -> Option<(Py<PyBytes>, bool)> {
        match self {
            Self::Whole(body) => body.take().map(|body| (body, false)),
            Self::Parts { is_received: true, .. } => None,
            Self::Parts { bytes, is_over: false, .. } if bytes.is_empty() => None,
            Self::Parts { bytes, is_over, is_received, .. } => {
                *is_received = *is_over;
                let part = PyBytes::new(py, bytes).unbind();
                bytes.clear();
                bytes.shrink_to(BODY_BYTES_MAX);
                Some((part, !*is_over))
            }
        }
    }

    /// Whether the worker waits for room, and there is room now.
    pub(crate) fn take_awaited(&mut self) -> bool {
        match self {
            Self::Whole(_) => false,
            Self::Parts { is_awaited, .. } => mem::take(is_awaited),
        }
    }

    /// Whether there is room for a part of the body, or it is `unwanted`. If not, the worker waits
    /// for it from now on.
    pub(crate) fn has_room(&mut self, unwanted: bool) -> bool {
        match self {
            Self::Parts { bytes, is_awaited, .. } if bytes.len() >= BODY_BYTES_MAX => {
                *is_awaited = !unwanted;
                unwanted
            }
            _ => true,
        }
    }

    /// Adds a part that has arrived.
    pub(crate) fn put(&mut self, part: &[u8], is_last: bool) {
        if let Self::Parts { bytes, is_over, .. } = self {
            bytes.extend_from_slice(part);
            *is_over = is_last;
        }
    }

    /// Whether all of it was received.
    fn is_received(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Parts { is_received: true, .. })
    }

    /// Whether nothing has arrived, and something will.
    fn is_awaiting(&self) -> bool {
        matches!(self, Self::Parts { bytes, is_over: false, .. } if bytes.is_empty())
    }
}

/// The body of a route's request, which its function and its worker share. The lock is never held
/// while Python code runs.
pub(crate) struct ArrivingBody {
    state: Mutex<State>,
    /// Notified when a part has arrived, or the call is cancelled.
    changed: Condvar,
}

struct State {
    body: RequestBody,
    /// Whose body it is, when that has begun.
    call: Option<Call>,
    is_cancelled: bool,
    /// Futures of the task that waits for a part.
    waiting: Vec<Py<PyAny>>,
}

#[derive(Clone)]
struct Call {
    token: Token,
    outcomes: Arc<Outcomes>,
    /// Whether it runs on the worker's thread.
    is_local: bool,
}

impl ArrivingBody {
    pub(crate) fn new() -> Self {
        let state = State {
            body: RequestBody::in_parts(),
            call: None,
            is_cancelled: false,
            waiting: Vec::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call that receives it begins.
    pub(crate) fn begin(&self, token: Token, outcomes: Arc<Outcomes>, is_local: bool) {
        self.state().call = Some(Call { token, outcomes, is_local });
    }

    /// Whether there is room for a part.
    pub(crate) fn has_room(&self) -> bool {
        let mut state = self.state();
        let is_cancelled = state.is_cancelled;
        state.body.has_room(is_cancelled)
    }

    /// Takes a part. Returns futures of those that wait for it.
    pub(crate) fn put(&self, part: &[u8], is_last: bool) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        state.body.put(part, is_last);
        self.changed.notify_all();
        mem::take(&mut state.waiting)
    }

    /// The rest will not be received: the client has left, the deadline has passed, or the server
    /// ends. Returns futures, which are not to be completed.
    pub(crate) fn cancel(&self) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        state.is_cancelled = true;
        self.changed.notify_all();
        mem::take(&mut state.waiting)
    }

    /// What has arrived; empty at the end; `None` if nothing has.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyBytes>>> {
        let (part, resumed) = {
            let mut state = self.state();
            if state.is_cancelled {
                drop(state);
                let cancelled = py.import("concurrent.futures")?.getattr("CancelledError")?;
                return Err(PyErr::from_value(cancelled.call0()?));
            }
            if state.body.is_received() {
                return Ok(Some(PyBytes::new(py, &[]).unbind()));
            }
            let Some((part, _)) = state.body.take(py) else { return Ok(None) };
            let resumed = state.body.take_awaited().then(|| state.call.clone()).flatten();
            (part, resumed)
        };
        match resumed {
            None => {}
            Some(Call { token, outcomes, is_local: true }) => {
                outcomes.push(py, token, DeferredOutcome::TakesBody);
            }
            Some(Call { token, outcomes, is_local: false }) => {
                outcomes.send(token, DeferredOutcome::TakesBody);
            }
        }
        Ok(Some(part))
    }

    /// Waits until something has arrived. The thread must be detached.
    fn wait(&self) {
        let waits = |state: &mut State| !state.is_cancelled && state.body.is_awaiting();
        drop(self.changed.wait_while(self.state(), waits));
    }
}

/// Receives the body of a route's request, for `python/ucall/_routes/streaming.py`.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct BodyReceiver(Arc<DropAttached<ArrivingBody>>);

impl BodyReceiver {
    pub(crate) fn new(body: Arc<DropAttached<ArrivingBody>>) -> Self {
        Self(body)
    }
}

#[pymethods]
impl BodyReceiver {
    /// What has arrived since the last time; empty at the end of the body; None if nothing has.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyBytes>>> {
        self.0.take(py)
    }

    /// What arrives next, which this thread waits for; empty at the end of the body.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        loop {
            match self.0.take(py)? {
                Some(part) => return Ok(part),
                None => py.detach(|| self.0.wait()),
            }
        }
    }

    /// Has a future be done when something arrives, and returns it.
    fn complete_later<'py>(&self, future: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        self.0.state().waiting.push(future.clone().unbind());
        future
    }

    /// Drops a future of `complete_later`, whose task waits no more.
    fn forget(&self, future: &Bound<'_, PyAny>) {
        let mut state = self.0.state();
        let at = state.waiting.iter().position(|waiting| waiting.is(future));
        let forgotten = at.map(|at| state.waiting.swap_remove(at));
        drop(state); // The lock is not held while Python drops it.
        drop(forgotten);
    }
}
