//! The messages by which an application accepts, uses and closes a WebSocket.

use std::sync::MutexGuard;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::exchange::{Conversation, Exchange, State};
use super::http::Http;
use super::output::{Output, PIECE_BYTES_MAX, Received, complete, unexpected};
use super::response::ResponseHead;
use super::websocket::{Phase, accepted_head, close_of, close_payload, frame_of};

impl Exchange {
    /// Takes a message of the application to its WebSocket.
    pub(super) fn send_websocket<'py>(
        &self,
        py: Python<'py>,
        kind: Option<&str>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Received<'py>> {
        let (phase, name) = match &self.state().conversation {
            Conversation::WebSocket(socket) => (socket.phase, socket.state_name()),
            Conversation::Http(_) => return Ok(Received::Done),
        };
        match (phase, kind.unwrap_or("without a type")) {
            (Phase::Asked, "websocket.accept") => self.accept(py, message),
            (Phase::Asked, "websocket.close") => {
                self.deny(ResponseHead::forbidden());
                self.send_part(py, b"", true)
            }
            (Phase::Asked, "websocket.http.response.start") => {
                self.deny(ResponseHead::read(message)?);
                Ok(Received::Done)
            }
            (Phase::Open, "websocket.send") => {
                let frame = frame_of(message)?;
                let mut state = self.state();
                if let Conversation::WebSocket(socket) = &mut state.conversation {
                    socket.sent_bytes += frame.len();
                }
                self.send_bytes(py, state, frame)
            }
            (Phase::Open, "websocket.close") => self.close(py, message),
            (_, kind) => Err(unexpected(kind, name)),
        }
    }

    fn accept<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Received<'py>> {
        let head = accepted_head(message)?;
        let mut state = self.state();
        if let Conversation::WebSocket(socket) = &mut state.conversation {
            socket.phase = Phase::Open;
            socket.was_open = true;
        }
        let call = match &state.output {
            Output::Caller(call) => Some(call.clone()),
            Output::Buffer { .. } => None,
        };
        let sent = self.send_bytes(py, state, head)?;
        if let Some(call) = call {
            // Frames may wait.
            call.take_body(py);
        }
        Ok(sent)
    }

    /// Begins a response in place of the WebSocket.
    fn deny(&self, head: ResponseHead) {
        self.state().conversation = Conversation::Http(Http::denial(head));
    }

    fn close<'py>(&self, py: Python<'py>, message: &Bound<'py, PyDict>) -> PyResult<Received<'py>> {
        let (code, reason) = close_of(message)?;
        let payload = close_payload(code, &reason);
        let mut state = self.state();
        let State { conversation, output, receivers, .. } = &mut *state;
        let Conversation::WebSocket(socket) = conversation else { return Ok(Received::Done) };
        socket.phase = Phase::Closed;
        socket.set_end(code.get(), &reason);
        let receivers = std::mem::take(receivers);
        let call = match output {
            Output::Caller(call) => call.clone(),
            Output::Buffer { .. } => {
                socket.close = Some(payload);
                drop(state);
                return complete(py, receivers).map(|()| Received::Done);
            }
        };
        drop(state);
        call.finish(py, payload)?;
        complete(py, receivers).map(|()| Received::Done)
    }

    /// Sends bytes of the connection.
    fn send_bytes<'py>(
        &self,
        py: Python<'py>,
        mut state: MutexGuard<'_, State>,
        mut bytes: Vec<u8>,
    ) -> PyResult<Received<'py>> {
        match &mut state.output {
            Output::Buffer { text, .. } => {
                text.extend_from_slice(&bytes);
                let is_full = text.len() >= PIECE_BYTES_MAX;
                drop(state);
                match is_full {
                    true => self.wait_in_buffer(py),
                    false => Ok(Received::Done),
                }
            }
            Output::Caller(call) => {
                let call = call.clone();
                drop(state);
                let waits = call.put_part(py, &mut bytes);
                self.sent(py, &call, waits)
            }
        }
    }
}
