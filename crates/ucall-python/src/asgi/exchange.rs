//! What the task of a request and its worker share: the request, and how far the response is.
//!
//! All runs on the worker's thread. The lock is never held while Python code runs.
//!
//! | response | a start | a part of the body | the last part |
//! |---|---|---|---|
//! | `Expected` | `Started` | is refused | is refused |
//! | `Started` | is refused | the head and it are sent: `Sending` | both are sent: `Complete` |
//! | `Sending` | is refused | is sent | is sent: `Complete` |
//! | `Complete` | is refused | is refused | is refused |

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memchr::memmem;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyString};
use ucall_server::{RunPermit, Token};

use super::response::ResponseHead;
use crate::asyncio::tasks;
use crate::ffi::{self, DropAttached};
use crate::request_body::RequestBody;
use crate::streams::{Room, StreamedCall};

/// Bytes of a response in one piece: a longer one is sent in parts, so that the worker has room for
/// others.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// The task of one request, which may go on after the response.
pub(crate) struct MountedTask {
    pub(crate) exchange: Arc<DropAttached<Exchange>>,
    _permit: RunPermit,
}

impl MountedTask {
    pub(crate) fn new(exchange: Arc<DropAttached<Exchange>>, permit: RunPermit) -> Self {
        Self { exchange, _permit: permit }
    }
}

/// One request, and its response.
pub(crate) struct Exchange {
    event_loop: Py<PyAny>,
    /// Whether the body of the response is omitted.
    is_head: bool,
    state: Mutex<State>,
}

struct State {
    request: RequestBody,
    response: Response,
    /// Whether the client has disconnected, or its deadline has passed.
    is_disconnected: bool,
    /// Whether the application has been told so.
    has_reported_disconnect: bool,
    /// The task of the application, while it runs.
    task: Option<Py<PyAny>>,
    /// Futures of those that wait for a message.
    receivers: Vec<Py<PyAny>>,
    output: Output,
}

enum Response {
    Expected,
    Started {
        head: ResponseHead,
        /// The parts of the body that the task's first step has sent.
        parts: Option<Vec<u8>>,
    },
    /// The head is sent. `left` is how much of the body is not, if its length is known.
    Sending {
        left: Option<u64>,
    },
    Complete,
}

impl Response {
    /// The response after a part of `len` bytes.
    fn after(&self, len: usize, is_last: bool, is_head: bool) -> PyResult<Self> {
        const KIND: &str = "http.response.body";
        let left = match self {
            Self::Expected => return Err(unexpected(KIND, "the response has not begun")),
            Self::Complete => return Err(unexpected(KIND, "the response is complete")),
            Self::Started { head, parts } => {
                let buffered = parts.as_ref().map_or(0, Vec::len) as u64;
                head.body_len().map(|len| len.saturating_sub(buffered))
            }
            Self::Sending { left } => *left,
        };
        let left =
            match left.filter(|_| !is_head) {
                None => None,
                Some(left) => Some(left.checked_sub(len as u64).ok_or_else(|| {
                    unexpected(KIND, "the body is longer than its content-length")
                })?),
            };
        match (is_last, left) {
            (true, Some(1..)) => {
                Err(unexpected(KIND, "the body is shorter than its content-length"))
            }
            (true, _) => Ok(Self::Complete),
            (false, left) => Ok(Self::Sending { left }),
        }
    }

    /// The head and the parts of a response of which parts are buffered: it is sent from now on.
    fn take_parts(&mut self, is_head: bool) -> Option<(Vec<u8>, Vec<u8>)> {
        let Self::Started { head, parts } = self else { return None };
        let parts = parts.take()?;
        let mut text = Vec::new();
        head.write(None, is_head, &mut text);
        let left = head.body_len().map(|len| len.saturating_sub(parts.len() as u64));
        *self = Self::Sending { left };
        Some((text, if is_head { Vec::new() } else { parts }))
    }
}

/// Where the response goes.
enum Output {
    /// Into `text`, when it is complete: the task takes its first step. `room` is done when that
    /// is over.
    Buffer { text: Vec<u8>, room: Option<Py<PyAny>> },
    /// To the caller.
    Caller(StreamedCall),
}

/// What `send` has done.
pub(super) enum Received<'py> {
    Done,
    /// The message is taken; the next one waits for this.
    Waits(Bound<'py, PyAny>),
}

/// What the first step of a task has sent.
pub(crate) enum Sent {
    /// The whole response.
    All(Vec<u8>),
    /// A part of it, or nothing.
    Part,
}

impl State {
    /// The call whose worker waits for room for the body, if there is room now.
    fn take_awaiting(&mut self) -> Option<StreamedCall> {
        match &self.output {
            Output::Caller(call) if self.request.take_awaited() => Some(call.clone()),
            _ => None,
        }
    }
}

impl Exchange {
    /// Of a request with this body. Without one it arrives in parts.
    pub(crate) fn new(event_loop: Py<PyAny>, body: Option<Py<PyBytes>>, is_head: bool) -> Self {
        let whole = |body| RequestBody::Whole(Some(body));
        let request = body.map_or_else(RequestBody::in_parts, whole);
        let state = State {
            request,
            response: Response::Expected,
            is_disconnected: false,
            has_reported_disconnect: false,
            task: None,
            receivers: Vec::new(),
            output: Output::Buffer { text: Vec::new(), room: None },
        };
        Self { event_loop, is_head, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message to the application, if there is one.
    pub(super) fn next_message<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let (body, awaiting) = {
            let mut state = self.state();
            let is_over = state.is_disconnected || matches!(state.response, Response::Complete);
            match state.request.take(py).filter(|_| !state.is_disconnected) {
                Some(body) => (Some(body), state.take_awaiting()),
                None if is_over => {
                    state.has_reported_disconnect = true;
                    (None, None)
                }
                None => return Ok(None),
            }
        };
        if let Some(call) = awaiting {
            call.take_body(py);
        }
        let message = PyDict::new(py);
        match body {
            Some((body, more)) => {
                message.set_item(intern!(py, "type"), intern!(py, "http.request"))?;
                message.set_item(intern!(py, "body"), body)?;
                message.set_item(intern!(py, "more_body"), more)?;
            }
            None => message.set_item(intern!(py, "type"), intern!(py, "http.disconnect"))?,
        }
        Ok(Some(message))
    }

    /// Whether there is room for a part of the body. If not, its worker hears when there is.
    pub(crate) fn has_body_room(&self) -> bool {
        let mut state = self.state();
        let is_complete = matches!(state.response, Response::Complete);
        state.request.has_room(is_complete)
    }

    /// Takes a part of the body. Returns futures of those that wait for it.
    pub(crate) fn take_body_part(&self, part: &[u8], is_last: bool) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        state.request.put(part, is_last);
        mem::take(&mut state.receivers)
    }

    /// A future that is done when there is a message.
    pub(super) fn wait_for_message<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let future = self.create_future(py)?;
        self.state().receivers.push(future.clone().unbind());
        Ok(future)
    }

    fn create_future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.event_loop.bind(py).call_method0(intern!(py, "create_future"))
    }

    /// Raises OSError if the client has disconnected.
    pub(super) fn check_sent(&self) -> PyResult<()> {
        let mut state = self.state();
        if state.is_disconnected {
            state.has_reported_disconnect = true;
            return Err(PyOSError::new_err("the client has disconnected"));
        }
        Ok(())
    }

    /// Takes a message of the application.
    pub(super) fn send<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Received<'py>> {
        self.check_sent()?;
        let kind = message.get_item(intern!(py, "type"))?;
        let kind = kind.as_ref().and_then(|kind| kind.cast::<PyString>().ok());
        match kind.map(|kind| kind.to_str()).transpose()? {
            Some("http.response.body") => self.send_body(py, message),
            Some("http.response.start") => {
                if !matches!(self.state().response, Response::Expected) {
                    return Err(unexpected("http.response.start", "the response has begun"));
                }
                let head = ResponseHead::read(message)?;
                self.state().response = Response::Started { head, parts: None };
                Ok(Received::Done)
            }
            kind => Err(PyRuntimeError::new_err(format!(
                "expected a message http.response.start or http.response.body, got {}",
                kind.unwrap_or("one without a type")
            ))),
        }
    }

    fn send_body<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Received<'py>> {
        let body = message.get_item(intern!(py, "body"))?;
        let body = body.map(|body| bytes_of(&body)).transpose()?;
        let body = body.as_deref().unwrap_or_default();
        let more = message.get_item(intern!(py, "more_body"))?;
        let is_last = !more.map(|more| more.is_truthy()).transpose()?.unwrap_or(false);
        let mut state = self.state();
        let State { response, output, receivers, .. } = &mut *state;
        let next = response.after(body.len(), is_last, self.is_head)?;
        let Output::Caller(call) = output else {
            return self.buffer(py, state, body, is_last);
        };
        let call = call.clone();
        let before = mem::replace(response, next);
        let receivers = if is_last { mem::take(receivers) } else { Vec::new() };
        drop(state);
        let body = if self.is_head { &[] } else { body };
        let mut text = Vec::new();
        if let Response::Started { head, .. } = &before {
            head.write(is_last.then_some(body.len()), self.is_head, &mut text);
            if is_last && text.len() + body.len() <= PIECE_BYTES_MAX {
                text.extend_from_slice(body);
                call.finish(py, text)?;
                return complete(py, receivers).map(|()| Received::Done);
            }
            call.put_part(py, &mut text);
        }
        text.extend_from_slice(body);
        let waits = !body.is_empty() && call.put_part(py, &mut text);
        if is_last {
            call.finish(py, Vec::new())?;
            return complete(py, receivers).map(|()| Received::Done);
        }
        match waits {
            false => Ok(Received::Done),
            true => Ok(match call.room(py, &self.event_loop)? {
                Room::Ended => return self.check_sent().map(|()| Received::Done),
                Room::Waits(awaited) => Received::Waits(awaited),
            }),
        }
    }

    /// Keeps a part of the body, or the whole response if it is the last, until the task's first
    /// step is over.
    fn buffer<'py>(
        &self,
        py: Python<'py>,
        mut state: MutexGuard<'_, State>,
        body: &[u8],
        is_last: bool,
    ) -> PyResult<Received<'py>> {
        let State { response, output, receivers, .. } = &mut *state;
        let (Response::Started { head, parts }, Output::Buffer { text, .. }) = (response, output)
        else {
            return Ok(Received::Done);
        };
        if is_last {
            let len = parts.as_ref().map_or(0, Vec::len) + body.len();
            text.reserve(256 + len);
            head.write(Some(len), self.is_head, text);
            if !self.is_head {
                text.extend_from_slice(parts.as_deref().unwrap_or_default());
                text.extend_from_slice(body);
            }
            let receivers = mem::take(receivers);
            state.response = Response::Complete;
            drop(state);
            return complete(py, receivers).map(|()| Received::Done);
        }
        let parts = parts.get_or_insert_default();
        parts.extend_from_slice(body);
        if parts.len() < PIECE_BYTES_MAX {
            return Ok(Received::Done);
        }
        drop(state);
        let future = self.create_future(py)?;
        let mut state = self.state();
        let Output::Buffer { room, .. } = &mut state.output else { return Ok(Received::Done) };
        let before = room.replace(future.clone().unbind());
        drop(state);
        complete(py, before)?;
        Ok(Received::Waits(future))
    }

    /// What the first step of the task has sent. The whole response is taken out if it is no
    /// longer than a piece.
    pub(crate) fn take_sent(&self) -> Sent {
        let mut state = self.state();
        let is_complete = matches!(state.response, Response::Complete);
        match &mut state.output {
            Output::Buffer { text, .. } if is_complete && text.len() <= PIECE_BYTES_MAX => {
                Sent::All(mem::take(text))
            }
            _ => Sent::Part,
        }
    }

    /// The first step is over: the response goes to the caller from now on.
    pub(crate) fn begin(&self, py: Python<'_>, call: StreamedCall) -> PyResult<()> {
        let (output, parts) = {
            let mut state = self.state();
            let output = mem::replace(&mut state.output, Output::Caller(call.clone()));
            (output, state.response.take_parts(self.is_head))
        };
        let Output::Buffer { text, room } = output else { return Ok(()) };
        if let Some((mut head, mut parts)) = parts {
            call.put_part(py, &mut head);
            if !parts.is_empty() {
                call.put_part(py, &mut parts);
            }
        } else if !text.is_empty() {
            let body_at = memmem::find(&text, b"\r\n\r\n").map_or(text.len(), |at| at + 4);
            let (head, body) = text.split_at(body_at);
            call.put_part(py, &mut head.to_vec());
            call.put_part(py, &mut body.to_vec());
            call.finish(py, Vec::new())?;
        }
        complete(py, room)
    }

    /// The task has ended. Returns the call of a response that is not complete, which the worker
    /// has to answer.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<Option<Token>> {
        let call = {
            let mut state = self.state();
            if state.is_disconnected || matches!(state.response, Response::Complete) {
                return Ok(None);
            }
            state.response = Response::Complete;
            match &state.output {
                Output::Caller(call) => call.clone(),
                Output::Buffer { .. } => return Ok(None),
            }
        };
        call.close(py)
    }

    /// Whether the application knows that its client has disconnected, which it may raise.
    pub(crate) fn has_reported_disconnect(&self) -> bool {
        self.state().has_reported_disconnect
    }

    /// Whether the whole response is sent.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.state().response, Response::Complete)
    }

    /// Sets the task that goes on after its first step.
    pub(crate) fn set_task(&self, task: Py<PyAny>) {
        self.state().task = Some(task);
    }

    /// The task has ended, or is to be cancelled.
    pub(crate) fn take_task(&self) -> Option<Py<PyAny>> {
        self.state().task.take()
    }

    /// The client has disconnected, or its deadline has passed. Returns the futures of those that
    /// wait for a message, which are to be completed.
    pub(crate) fn disconnect(&self) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        state.is_disconnected = true;
        mem::take(&mut state.receivers)
    }
}

/// Completes futures that are not done.
fn complete(py: Python<'_>, futures: impl IntoIterator<Item = Py<PyAny>>) -> PyResult<()> {
    for future in futures {
        tasks::set_done(future.bind(py))?;
    }
    Ok(())
}

fn unexpected(kind: &str, why: &str) -> PyErr {
    PyRuntimeError::new_err(format!("unexpected message {kind}: {why}"))
}

/// The bytes of a body: bytes, or another buffer of them.
fn bytes_of(body: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    if let Ok(bytes) = body.cast::<PyBytes>() {
        return Ok(bytes.clone().into());
    }
    if !ffi::has_buffer(body) {
        let found = ffi::type_name(body);
        return Err(PyTypeError::new_err(format!("body: expected bytes, got {found}")));
    }
    let copied = body.py().get_type::<PyBytes>().call1((body,))?;
    Ok(copied.cast_into::<PyBytes>()?.into())
}
