//! The messages that an application receives.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

/// A message to an application.
pub(crate) enum Message {
    /// A part of a request's body, and whether more follows.
    Request(Py<PyBytes>, bool),
    HttpDisconnect,
    Connect,
    Text(Py<PyString>),
    Bytes(Py<PyBytes>),
    /// A WebSocket has ended, with this code and reason.
    Disconnect(u16, String),
}

impl Message {
    /// Whether it reports the end.
    pub(super) fn is_disconnect(&self) -> bool {
        matches!(self, Self::HttpDisconnect | Self::Disconnect(..))
    }

    /// The message as the application gets it.
    pub(super) fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let message = PyDict::new(py);
        let kind = match self {
            Self::Request(body, more) => {
                message.set_item(intern!(py, "body"), body)?;
                message.set_item(intern!(py, "more_body"), more)?;
                intern!(py, "http.request")
            }
            Self::HttpDisconnect => intern!(py, "http.disconnect"),
            Self::Connect => intern!(py, "websocket.connect"),
            Self::Text(text) => {
                message.set_item(intern!(py, "text"), text)?;
                intern!(py, "websocket.receive")
            }
            Self::Bytes(bytes) => {
                message.set_item(intern!(py, "bytes"), bytes)?;
                intern!(py, "websocket.receive")
            }
            Self::Disconnect(code, reason) => {
                message.set_item(intern!(py, "code"), code)?;
                message.set_item(intern!(py, "reason"), reason)?;
                intern!(py, "websocket.disconnect")
            }
        };
        message.set_item(intern!(py, "type"), kind)?;
        Ok(message)
    }
}
