//! The result of a `put`: the core of `ucall.queue.Future`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ucall_queue::{DeliveryState, DeliveryStatus, Failure, Handle, Identity};

use super::errors::{reject_forked, undelivered};
use super::pinned_buffers;
use super::waiting::{deadline_after, wait_checking_signals};

/// A future that compares its number with the last acknowledged one; it keeps no state.
#[pyclass(frozen, subclass, module = "ucall._core", name = "Receipt")]
pub(crate) struct Receipt {
    entry: OnceLock<Entry>,
    cancelled: AtomicBool,
}

struct Entry {
    handle: Arc<Handle>,
    receipt: ucall_queue::Receipt,
}

impl Receipt {
    pub(super) fn fill(&self, handle: Arc<Handle>, receipt: ucall_queue::Receipt) {
        // The entry is set once, right after the object was made.
        let _ = self.entry.set(Entry { handle, receipt });
    }

    pub(super) fn is_finished(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || !matches!(self.state().1, DeliveryStatus::Pending)
    }

    /// The order among the messages to the same peer, if there is one peer.
    pub(super) fn position(&self) -> Option<(usize, u64)> {
        match &self.entry.get()?.receipt {
            ucall_queue::Receipt::One(delivery, sequence) => {
                Some((Arc::as_ptr(delivery) as usize, *sequence))
            }
            _ => None,
        }
    }

    /// The delivery of messages to the peer, if there is one.
    pub(super) fn delivery(&self) -> Option<&DeliveryState> {
        match &self.entry.get()?.receipt {
            ucall_queue::Receipt::One(delivery, _) => Some(delivery),
            _ => None,
        }
    }

    /// The state of the message, and the peer that failed it.
    fn state(&self) -> (Option<Identity>, DeliveryStatus) {
        let Some(entry) = self.entry.get() else { return (None, DeliveryStatus::Pending) };
        match &entry.receipt {
            ucall_queue::Receipt::One(delivery, sequence) => match delivery.progress(*sequence) {
                DeliveryStatus::Failed(failure) => {
                    (delivery.peer(), DeliveryStatus::Failed(failure))
                }
                progress => (None, progress),
            },
            ucall_queue::Receipt::None(peer, failure) => {
                (*peer, DeliveryStatus::Failed(failure.clone()))
            }
            ucall_queue::Receipt::Many(all) => {
                let mut whole = DeliveryStatus::Done;
                for (delivery, sequence) in all.iter() {
                    match delivery.progress(*sequence) {
                        DeliveryStatus::Done => {}
                        DeliveryStatus::Pending => whole = DeliveryStatus::Pending,
                        DeliveryStatus::Failed(failure) => {
                            return (delivery.peer(), DeliveryStatus::Failed(failure));
                        }
                    }
                }
                (None, whole)
            }
        }
    }

    /// Whether a peer may have the message, which has failed.
    fn may_have_arrived(&self) -> bool {
        match self.entry.get().map(|entry| &entry.receipt) {
            Some(ucall_queue::Receipt::One(delivery, sequence)) => {
                delivery.may_have_arrived(*sequence)
            }
            Some(ucall_queue::Receipt::Many(all)) => {
                all.iter().any(|(delivery, sequence)| delivery.may_have_arrived(*sequence))
            }
            Some(ucall_queue::Receipt::None(..)) | None => false,
        }
    }

    /// Waits for the result: a failure, or `None` after delivery.
    fn outcome(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(Option<Identity>, Failure)>> {
        let (peer, mut progress) = self.state();
        let mut peer = peer;
        if progress == DeliveryStatus::Pending && !self.cancelled.load(Ordering::Acquire) {
            let deadline = deadline_after(timeout)?;
            (peer, progress) = self.wait(py, deadline)?;
        }
        pinned_buffers::release_pending(py);
        if self.cancelled.load(Ordering::Acquire) {
            let error = py.import("concurrent.futures")?.getattr("CancelledError")?;
            return Err(PyErr::from_value(crate::ffi::call(&error, [])?));
        }
        match progress {
            DeliveryStatus::Done => Ok(None),
            DeliveryStatus::Failed(failure) => {
                let handle = self.entry.get().map(|entry| &entry.handle);
                Ok(Some((handle.and_then(|it| it.failed_id(peer, &failure)), failure)))
            }
            DeliveryStatus::Pending => {
                let error = py.import("concurrent.futures")?.getattr("TimeoutError")?;
                Err(PyErr::from_value(crate::ffi::call(&error, [])?))
            }
        }
    }

    fn wait(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
    ) -> PyResult<(Option<Identity>, DeliveryStatus)> {
        let Some(entry) = self.entry.get() else {
            return Err(PyRuntimeError::new_err("nothing was put"));
        };
        reject_forked(&entry.handle)?;
        let finished = || match (self.cancelled.load(Ordering::Acquire), self.state()) {
            (false, (_, DeliveryStatus::Pending)) => None,
            (_, state) => Some(state),
        };
        let event_count = &entry.handle.notifier.progressed;
        let waited =
            wait_checking_signals(py, deadline, |until| event_count.wait(until, finished))?;
        Ok(waited.unwrap_or((None, DeliveryStatus::Pending)))
    }
}

#[pymethods]
impl Receipt {
    #[new]
    fn new() -> Self {
        Self { entry: OnceLock::new(), cancelled: AtomicBool::new(false) }
    }

    /// Whether the message was delivered, failed or was cancelled.
    fn done(&self, py: Python<'_>) -> bool {
        let finished = self.is_finished();
        if finished {
            pinned_buffers::release_pending(py);
        }
        finished
    }

    /// Whether it was cancelled.
    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the message is acknowledged, at the point that ``ack`` chooses.
    ///
    /// Raises:
    ///     ConnectionError: A peer, or this side, has closed for good.
    ///     ucall.queue.FullError: It was dropped from a full queue.
    ///     concurrent.futures.CancelledError: It was cancelled.
    ///     TimeoutError: It has not, within ``timeout`` seconds.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        match self.outcome(py, timeout)? {
            None => Ok(()),
            Some((peer, failure)) => {
                let raised = undelivered(py, peer, &failure, self.may_have_arrived())?;
                Err(PyErr::from_value(raised))
            }
        }
    }

    /// Like `result`, but returns the exception.
    #[pyo3(signature = (timeout = None))]
    fn exception<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.outcome(py, timeout)? {
            None => Ok(None),
            Some((peer, failure)) => {
                undelivered(py, peer, &failure, self.may_have_arrived()).map(Some)
            }
        }
    }

    /// Cancels the message unless it is on the wire. `True` if no peer will get it.
    fn _cancel(&self) -> bool {
        if self.cancelled.load(Ordering::Acquire) {
            return true;
        }
        let Some(entry) = self.entry.get() else { return false };
        // A message to several peers may be on the wire to some of them.
        let ucall_queue::Receipt::One(delivery, sequence) = &entry.receipt else { return false };
        let was_cancelled = entry.handle.outbox.cancel(delivery, *sequence);
        if was_cancelled {
            self.cancelled.store(true, Ordering::Release);
            entry.handle.notifier.progressed.notify();
        }
        was_cancelled
    }
}
