//! The errors of a call that got no reply, and their exceptions.

use std::io;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use ucall_proto::http1::{ResponseError, ResponseHead};

use crate::convert;
use crate::ffi::Imported;

/// An error quotes at most this many bytes of an invalid reply.
const TEXT_BYTES_MAX: usize = 4096;

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum ClientFault {
    /// The server closed the connection before the reply or within it.
    Closed { within_reply: bool },
    /// The system could not send or receive.
    System(io::Error),
    /// The deadline passed.
    TimedOut,
    /// A signal arrived; the call may continue after its handler has run.
    Interrupted,
    /// The reply exceeds the client's limit.
    TooLarge { bytes_max: usize },
    /// The server violates the protocol; the text is a clause.
    Protocol(String),
    /// An HTTP status other than success, with a text that is no JSON-RPC document.
    Http(Box<ResponseHead>, String),
    /// A status of success without a body, as notifications get.
    NoReply { status: u16 },
    /// The frames of the server violate WebSocket; the text says what was expected.
    WebSocket(String),
    /// The server sent a Close frame.
    WebSocketClosed { code: Option<u16>, reason: String },
    /// The reply has the id of another request.
    WrongReply,
}

impl ClientFault {
    /// The text to show of a reply that is no JSON-RPC.
    pub(super) fn excerpt(text: &[u8]) -> String {
        let excerpt = text.get(..TEXT_BYTES_MAX).unwrap_or(text);
        String::from_utf8_lossy(excerpt).trim().to_owned()
    }

    /// The exception of `ucall.errors` for it.
    #[cold]
    pub(super) fn into_error(self, py: Python<'_>) -> PyErr {
        let message = match self {
            Self::TimedOut => return raise(py, &TIMEOUT_ERROR, self.message()),
            Self::Http(head, text) => return http_error(py, *head, text),
            _ => self.message(),
        };
        raise(py, &CONNECTION_ERROR, message)
    }

    fn message(&self) -> String {
        match self {
            Self::Closed { within_reply: false } => {
                "the server closed the connection instead of replying; the call may have run"
                    .to_owned()
            }
            Self::Closed { within_reply: true } => {
                "the server closed the connection within its reply".to_owned()
            }
            Self::System(error) => format!("the connection failed: {error}"),
            Self::TimedOut => "no reply within the timeout".to_owned(),
            Self::Interrupted => "interrupted by a signal".to_owned(),
            Self::TooLarge { bytes_max } => {
                format!("the reply is larger than max_reply_bytes ({bytes_max} bytes)")
            }
            Self::Protocol(what) => format!("the server's reply is not JSON-RPC: {what}"),
            Self::WebSocket(expected) => format!("the server violates WebSocket: {expected}"),
            Self::WebSocketClosed { code: None, .. } => {
                "the server closed the WebSocket without a code".to_owned()
            }
            Self::WebSocketClosed { code: Some(code), reason } => {
                format!("the server closed the WebSocket: {code} {reason}").trim_end().to_owned()
            }
            Self::Http(head, _) => format!("HTTP status {}", head.status),
            Self::NoReply { status } => format!(
                "HTTP status {status} without a reply, which only notifications get: check that \
                 the address and its path are those of a JSON-RPC server"
            ),
            Self::WrongReply => "the server replied to another request".to_owned(),
        }
    }
}

impl From<ResponseError> for ClientFault {
    fn from(error: ResponseError) -> Self {
        match error {
            ResponseError::BodyTooLarge(bytes_max) => Self::TooLarge { bytes_max },
            ResponseError::Invalid(what) => Self::Protocol(what),
        }
    }
}

impl From<io::Error> for ClientFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::Interrupted => Self::Interrupted,
            io::ErrorKind::WouldBlock => Self::TimedOut,
            // The system's own, ETIMEDOUT, is a failure of the connection.
            io::ErrorKind::TimedOut if error.raw_os_error().is_none() => Self::TimedOut,
            _ => Self::System(error),
        }
    }
}

static CONNECTION_ERROR: Imported<PyType> = Imported::new("ucall.errors", "ConnectionError");
static TIMEOUT_ERROR: Imported<PyType> = Imported::new("ucall.errors", "TimeoutError");
static HTTP_ERROR: Imported<PyType> = Imported::new("ucall.errors", "HTTPError");

fn raise(py: Python<'_>, class: &'static Imported<PyType>, message: String) -> PyErr {
    match class.get(py) {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(error) => error,
    }
}

fn http_error(py: Python<'_>, head: ResponseHead, text: String) -> PyErr {
    let arguments = (head.status, head.reason, text, head.retry_after_s, head.location);
    match HTTP_ERROR.get(py) {
        Ok(class) => PyErr::from_type(class.clone(), arguments),
        Err(error) => error,
    }
}

/// The exception for an invalid value; `root` names what the value is part of.
#[cold]
pub(super) fn value_error(fault: convert::ConversionFault, root: &str) -> PyErr {
    match fault {
        convert::ConversionFault::Value(mismatch) => PyValueError::new_err(mismatch.describe(root)),
        convert::ConversionFault::TooLarge => PyValueError::new_err(format!("{root}: too large")),
        convert::ConversionFault::Raised(error) => *error,
    }
}
