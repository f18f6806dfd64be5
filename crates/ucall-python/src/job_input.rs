//! The input of a call that runs in a thread: shared by the queue of jobs and the call's record.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ucall_proto::Binary;
use ucall_server::Reservation;

use crate::metrics::WaitingCall;

/// The input of a call that waits for a thread. Cancelling the call takes the input out, so that
/// cancelled calls hold no memory in the queue.
pub(crate) struct JobInput(Mutex<Option<Contents>>);

/// The text of a call's params, and its context.
pub(crate) struct Contents {
    pub(crate) params: Option<Vec<u8>>,
    /// What the call has beside their text.
    pub(crate) binary: Option<Binary>,
    pub(crate) context: Option<Py<PyAny>>,
    /// Counts the wait for a thread, if that is measured.
    pub(crate) waiting: Option<WaitingCall>,
    /// The memory reserved for the params.
    pub(crate) _reserved: Reservation,
}

impl JobInput {
    pub(crate) fn new(contents: Contents) -> Self {
        Self(Mutex::new(Some(contents)))
    }

    pub(crate) fn take(&self) -> Option<Contents> {
        self.contents().take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.contents().is_none()
    }

    fn contents(&self) -> MutexGuard<'_, Option<Contents>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
