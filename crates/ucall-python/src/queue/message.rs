//! The messages that `get` returns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyIterator, PyTuple};
use ucall_queue::{Failure, Handle, Identity, Incoming, ReceiveCredit};

use super::errors::{failed, reject_forked};
use super::incoming::Reader;
use crate::ffi;

/// A received object and its sender.
#[pyclass(frozen, subclass, module = "ucall.queue", name = "Message", generic)]
pub(crate) struct Message {
    /// The id of the sender.
    #[pyo3(get)]
    peer: Py<PyAny>,
    /// The object.
    #[pyo3(get)]
    data: Py<PyAny>,
    /// Whether an earlier process with this id may have received it already.
    #[pyo3(get)]
    redelivered: bool,
    /// Acknowledges the message to its sender, if the sender waits for `ack`.
    acknowledgement: Option<Box<Acknowledgement>>,
}

/// Acknowledges one message.
struct Acknowledgement {
    /// A message does not keep its communicator open.
    handle: Weak<Handle>,
    credit: Arc<ReceiveCredit>,
    peer: Identity,
    sequence: u64,
    is_given: AtomicBool,
}

impl Message {
    fn pair<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [&self.peer, &self.data])
    }

    /// Loads a received message.
    pub(super) fn read(
        py: Python<'_>,
        reader: &Reader,
        handle: &Arc<Handle>,
        peer: Py<PyAny>,
        message: Incoming,
    ) -> PyResult<Self> {
        let acknowledgement = Acknowledgement::of(handle, &message).map(Box::new);
        let Incoming { peer: sender, credit, sequence, weight, encoding, body, .. } = message;
        let mut made =
            Self { peer, data: py.None(), redelivered: message.redelivered, acknowledgement };
        match reader.read(py, encoding, body) {
            Ok(data) => {
                handle.notify_taken(&credit, sequence, weight);
                made.data = data.unbind();
                Ok(made)
            }
            Err(error) => {
                let reason = reason(py, &error);
                handle.warn(|| format!("a message of peer {sender} cannot be read: {reason}"));
                handle.reject(&credit, sequence, weight, reason);
                made.attach_to(py, &error);
                Err(error)
            }
        }
    }

    /// Sets the sender and the message as attributes of an exception, for the program, which has to
    /// acknowledge a message that cannot be loaded, too.
    fn attach_to(self, py: Python<'_>, error: &PyErr) {
        let value = error.value(py);
        // An exception without attributes does not get them.
        let _ = value.setattr("peer", &self.peer);
        let _ = value.setattr("queue_message", self);
    }
}

/// Why a message cannot be read, for the log and for its sender.
fn reason(py: Python<'_>, error: &PyErr) -> String {
    let value = error.value(py);
    let text = value.str().map_or_else(|_| String::new(), |text| text.to_string());
    match value.is_instance_of::<PyException>() && text.starts_with("refused: ") {
        true => text,
        false => format!("{}: {text}", ffi::type_name(value)),
    }
}

impl Acknowledgement {
    fn of(handle: &Arc<Handle>, message: &Incoming) -> Option<Self> {
        message.credit.is_explicit().then(|| Self {
            handle: Arc::downgrade(handle),
            credit: message.credit.clone(),
            peer: message.peer,
            sequence: message.sequence,
            is_given: AtomicBool::new(false),
        })
    }

    fn give(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_given.load(Ordering::Acquire) {
            return Ok(());
        }
        let given = match self.handle.upgrade() {
            None => Err(Failure::Closed),
            Some(handle) => {
                reject_forked(&handle)?;
                handle.acknowledge(&self.credit, self.sequence)
            }
        };
        match given {
            Ok(()) => self.is_given.store(true, Ordering::Release),
            Err(failure) => {
                return Err(PyErr::from_value(failed(py, Some(self.peer), &failure)?));
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Message {
    #[classattr]
    fn __match_args__(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
        PyTuple::new(py, ["peer", "data"])
    }

    #[new]
    #[pyo3(signature = (peer, data, redelivered = false))]
    fn new(peer: Py<PyAny>, data: Py<PyAny>, redelivered: bool) -> Self {
        Self { peer, data, redelivered, acknowledgement: None }
    }

    /// Acknowledges a message that was put with ``ack="explicit"``. Never waits.
    ///
    /// Acknowledge messages in any order, on any thread. A second call does nothing. A message with
    /// another ``ack`` was acknowledged before `get` returned it, so this does nothing.
    ///
    /// Raises:
    ///     ConnectionError: The session with its ``peer`` is over, or this side has closed. The
    ///         message is not acknowledged, and comes again if the peer still has it.
    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        self.acknowledgement.as_ref().map_or(Ok(()), |it| it.give(py))
    }

    /// Unpacks as ``peer, data = message``.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.pair(py)?.try_iter()
    }

    fn __eq__<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Ok(other) = other.cast::<Self>() else { return Ok(py.NotImplemented().into_bound(py)) };
        let is_equal = self.pair(py)?.eq(other.get().pair(py)?)?;
        Ok(PyBool::new(py, is_equal).to_owned().into_any())
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.pair(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (peer, data) = (self.peer.bind(py).repr()?, self.data.bind(py).repr()?);
        let redelivered = if self.redelivered { ", redelivered=True" } else { "" };
        Ok(format!("Message(peer={peer}, data={data}{redelivered})"))
    }
}
