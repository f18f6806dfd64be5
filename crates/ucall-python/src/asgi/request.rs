//! The `receive` and the `send` of one request, which its application calls.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::awaitable::{Awaitable, Then};
use super::exchange::Exchange;
use super::output::Received;
use crate::ffi::DropAttached;

/// One request and its response, as the application sees them.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct AsgiExchange(Arc<DropAttached<Exchange>>);

impl AsgiExchange {
    pub(crate) fn new(exchange: Arc<DropAttached<Exchange>>) -> Self {
        Self(exchange)
    }
}

#[pymethods]
impl AsgiExchange {
    /// Returns an awaitable of the next message: parts of the request, or messages of a WebSocket;
    /// then, when its client has left or has the whole response, that it has disconnected.
    fn receive(&self, py: Python<'_>) -> PyResult<Awaitable> {
        match self.0.next_message(py)? {
            Some(message) => Ok(Awaitable::of(message.into_any().unbind())),
            None => {
                let future = self.0.wait_for_message(py)?;
                Awaitable::after(&future, Then::Receive(self.0.clone()))
            }
        }
    }

    /// Sends a part of the response, or a message of a WebSocket. Returns an awaitable that is done
    /// when there is room for more. Raises OSError after the client has left, and other errors if
    /// the message is wrong.
    #[pyo3(signature = (message, /))]
    fn send(&self, py: Python<'_>, message: &Bound<'_, PyDict>) -> PyResult<Awaitable> {
        match self.0.send(py, message)? {
            Received::Done => Ok(Awaitable::done()),
            Received::Waits(awaited) => Awaitable::after(&awaited, Then::Send(self.0.clone())),
        }
    }
}
