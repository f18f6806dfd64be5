//! What the task of a request and its worker share: what was received and not read, and how far the
//! response or the WebSocket is.
//!
//! All runs on the worker's thread. The lock is never held while Python code runs.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use ucall_proto::websocket::CloseCode;
use ucall_server::{MemoryBudget, RunPermit, Token};

use super::http::Http;
use super::message::Message;
use super::output::{Output, PIECE_BYTES_MAX, Received, Sent, complete};
use super::websocket::{ABNORMAL, Socket, close_payload};
use crate::ffi::DropAttached;
use crate::origin::CallOrigin;
use crate::streams::{Room, StreamedCall};

/// The task of one request, which may go on after the response.
pub(crate) struct MountedTask {
    pub(crate) exchange: Arc<DropAttached<Exchange>>,
    /// Who has made the request, for the log.
    pub(crate) origin: Arc<CallOrigin>,
    _permit: RunPermit,
}

impl MountedTask {
    pub(crate) fn new(
        exchange: Arc<DropAttached<Exchange>>,
        origin: Arc<CallOrigin>,
        permit: RunPermit,
    ) -> Self {
        Self { exchange, origin, _permit: permit }
    }
}

/// One request, and its response or its WebSocket.
pub(crate) struct Exchange {
    event_loop: Py<PyAny>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) conversation: Conversation,
    /// Whether the client has disconnected, or its deadline has passed.
    is_disconnected: bool,
    /// Whether the application has been told so.
    has_reported_disconnect: bool,
    /// The task of the application, while it runs.
    task: Option<Py<PyAny>>,
    /// Futures of those that wait for a message.
    pub(super) receivers: Vec<Py<PyAny>>,
    pub(super) output: Output,
}

/// What the application and its client have to do with one another.
pub(super) enum Conversation {
    Http(Http),
    WebSocket(Socket),
}

impl Conversation {
    /// Whether the application has nothing more to send.
    fn is_over(&self) -> bool {
        match self {
            Self::Http(http) => http.is_complete(),
            Self::WebSocket(socket) => socket.is_closed(),
        }
    }

    fn has_room(&mut self) -> bool {
        match self {
            Self::Http(http) => http.has_room(),
            Self::WebSocket(socket) => socket.has_room(),
        }
    }

    fn take_awaited(&mut self) -> bool {
        match self {
            Self::Http(http) => http.take_awaited(),
            Self::WebSocket(socket) => socket.take_awaited(),
        }
    }
}

impl State {
    /// The call whose worker waits for room, if there is room now.
    fn take_awaiting(&mut self) -> Option<StreamedCall> {
        match &self.output {
            Output::Caller(call) if self.conversation.take_awaited() => Some(call.clone()),
            _ => None,
        }
    }
}

impl Exchange {
    /// Of a request with this body. Without one it arrives in parts.
    pub(crate) fn of_http(event_loop: Py<PyAny>, body: Option<Py<PyBytes>>, is_head: bool) -> Self {
        Self::new(event_loop, Conversation::Http(Http::new(body, is_head)))
    }

    /// Of a request for a WebSocket.
    pub(crate) fn of_websocket(event_loop: Py<PyAny>) -> Self {
        Self::new(event_loop, Conversation::WebSocket(Socket::default()))
    }

    fn new(event_loop: Py<PyAny>, conversation: Conversation) -> Self {
        let state = State {
            conversation,
            is_disconnected: false,
            has_reported_disconnect: false,
            task: None,
            receivers: Vec::new(),
            output: Output::Buffer { text: Vec::new(), room: None },
        };
        Self { event_loop, state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next message to the application, if there is one.
    pub(super) fn next_message<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let (message, awaiting) = {
            let mut state = self.state();
            let is_disconnected = state.is_disconnected;
            let message = match &mut state.conversation {
                Conversation::Http(http) => http.next(py, is_disconnected),
                Conversation::WebSocket(socket) => socket.next(),
            };
            let Some(message) = message else { return Ok(None) };
            state.has_reported_disconnect |= message.is_disconnect();
            (message, state.take_awaiting())
        };
        if let Some(call) = awaiting {
            call.take_body(py);
        }
        message.into_dict(py).map(Some)
    }

    /// Whether there is room for what the client sends. If not, its worker hears when there is.
    pub(crate) fn has_room(&self) -> bool {
        self.state().conversation.has_room()
    }

    /// Takes a part of the body. Returns futures of those that wait for it.
    pub(crate) fn take_body_part(&self, part: &[u8], is_last: bool) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        if let Conversation::Http(http) = &mut state.conversation {
            http.take_part(part, is_last);
        }
        mem::take(&mut state.receivers)
    }

    /// Takes a message of the WebSocket, of `len` bytes. Returns futures of those that wait for it.
    pub(crate) fn take_message(
        &self,
        message: Message,
        len: usize,
        budget: &MemoryBudget,
    ) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        if let Conversation::WebSocket(socket) = &mut state.conversation {
            socket.push(message, len, budget);
        }
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

    /// The application goes on after it has waited in `send`.
    pub(super) fn go_on(&self) -> PyResult<()> {
        if let Output::Caller(call) = &self.state().output {
            call.begin_slice();
        }
        self.check_sent()
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
        let kind = kind.map(|kind| kind.to_str()).transpose()?;
        let is_http = matches!(self.state().conversation, Conversation::Http(_));
        match is_http {
            true => self.send_http(py, kind, message),
            false => self.send_websocket(py, kind, message),
        }
    }

    /// What `send` returns after a part that `call` has taken.
    pub(super) fn sent<'py>(
        &self,
        py: Python<'py>,
        call: &StreamedCall,
        waits: bool,
    ) -> PyResult<Received<'py>> {
        match waits {
            false => Ok(Received::Done),
            true => Ok(match call.room(py, &self.event_loop)? {
                Room::Ended => return self.check_sent().map(|()| Received::Done),
                Room::Waits(awaited) => Received::Waits(awaited),
            }),
        }
    }

    /// Waits until the task's first step is over.
    pub(super) fn wait_in_buffer<'py>(&self, py: Python<'py>) -> PyResult<Received<'py>> {
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
        let State { conversation, output, .. } = &mut *state;
        let is_complete = matches!(conversation, Conversation::Http(http) if http.is_complete());
        match output {
            Output::Buffer { text, .. } if is_complete && text.len() <= PIECE_BYTES_MAX => {
                Sent::All(mem::take(text))
            }
            _ => Sent::Part,
        }
    }

    /// The first step is over: the response goes to the caller from now on.
    pub(crate) fn begin(&self, py: Python<'_>, call: StreamedCall) -> PyResult<()> {
        let (first_step, room) = {
            let mut state = self.state();
            let output = mem::replace(&mut state.output, Output::Caller(call.clone()));
            let Output::Buffer { text, room } = output else { return Ok(()) };
            let first_step = match &mut state.conversation {
                Conversation::Http(http) => http.take_first_step(&text),
                Conversation::WebSocket(socket) => socket.take_first_step(text),
            };
            (first_step, room)
        };
        for mut part in first_step.parts.into_iter().filter(|part| !part.is_empty()) {
            call.put_part(py, &mut part);
        }
        if first_step.takes_body {
            call.take_body(py);
        }
        if let Some(outcome) = first_step.outcome {
            call.finish(py, outcome)?;
        }
        complete(py, room)
    }

    /// The task has ended. Returns the call of a response that is not complete, or of a WebSocket
    /// that its task has not closed by itself: the worker has to answer it with an error.
    pub(crate) fn end(&self, py: Python<'_>, has_raised: bool) -> PyResult<Option<Token>> {
        let (call, is_error) = {
            let mut state = self.state();
            let State { conversation, output, is_disconnected, .. } = &mut *state;
            if *is_disconnected || conversation.is_over() {
                return Ok(None);
            }
            let is_error = match conversation {
                Conversation::Http(http) => {
                    http.end();
                    true
                }
                Conversation::WebSocket(socket) => {
                    let is_error = has_raised || !socket.is_open();
                    socket.end();
                    is_error
                }
            };
            match output {
                Output::Caller(call) => (call.clone(), is_error),
                Output::Buffer { .. } => return Ok(None),
            }
        };
        if is_error {
            return call.close(py);
        }
        call.finish(py, close_payload(CloseCode::NORMAL, "")).map(|()| None)
    }

    /// Whether the application knows that its client has disconnected, which it may raise.
    pub(crate) fn has_reported_disconnect(&self) -> bool {
        self.state().has_reported_disconnect
    }

    /// Whether the application has nothing more to send.
    pub(crate) fn is_over(&self) -> bool {
        self.state().conversation.is_over()
    }

    /// Whether an error may be the response to a task that ends within its first step.
    pub(crate) fn may_fail(&self) -> bool {
        match &self.state().conversation {
            Conversation::Http(http) => !http.is_complete(),
            Conversation::WebSocket(socket) => socket.is_asked(),
        }
    }

    /// The status of the response, or 0 if there is none, and the bytes of its body.
    pub(crate) fn summary(&self) -> (u16, usize) {
        match &self.state().conversation {
            Conversation::Http(http) => http.summary(),
            Conversation::WebSocket(socket) => socket.summary(),
        }
    }

    /// Whether it is an open WebSocket, which has no deadline.
    pub(crate) fn is_open_websocket(&self) -> bool {
        matches!(&self.state().conversation, Conversation::WebSocket(socket) if socket.is_open())
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
        self.disconnect_with(ABNORMAL, "")
    }

    /// [`Exchange::disconnect`] with the code and the reason of a Close frame.
    pub(crate) fn disconnect_with(&self, code: u16, reason: &str) -> Vec<Py<PyAny>> {
        let mut state = self.state();
        state.is_disconnected = true;
        if let Conversation::WebSocket(socket) = &mut state.conversation {
            socket.set_end(code, reason);
        }
        mem::take(&mut state.receivers)
    }
}
