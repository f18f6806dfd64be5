//! The WebSocket of an application.
//!
//! | state | `accept` | `send` | `close` | a response | the task ends |
//! |---|---|---|---|---|---|
//! | `Asked` | 101: `Open` | is refused | 403: the end | is sent: the end | 500 |
//! | `Open` | is refused | a frame | its frame: `Closed` | is refused | 1000; 1011 if it raised |
//! | `Closed` | is refused | is refused | is refused | is refused | |
//!
//! After its client has left each of them raises OSError.

use std::collections::VecDeque;
use std::mem;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use ucall_proto::websocket::{CloseCode, Opcode, write_frame};
use ucall_server::{MemoryBudget, Reservation};

use super::message::Message;
use super::output::{FirstStep, bytes_of};
use super::response::{ResponseHead, is_token};
use crate::request_body::BODY_BYTES_MAX;

/// Stands for the code of a connection that has ended without a Close frame (RFC 6455, section
/// 7.4.1).
pub(crate) const ABNORMAL: u16 = 1006;
/// What a message counts besides its bytes, so that empty ones are no way to exhaust memory.
const MESSAGE_OVERHEAD_BYTES: usize = 128;
/// The longest reason of a Close frame.
const REASON_BYTES_MAX: usize = 123;

/// One WebSocket.
#[derive(Default)]
pub(super) struct Socket {
    pub(super) phase: Phase,
    /// Whether the application has received the first message.
    is_connected: bool,
    /// Messages that the application has not received, and what they have reserved.
    messages: VecDeque<(Message, usize, Reservation)>,
    held_bytes: usize,
    /// Whether the worker waits until there is room.
    is_awaited: bool,
    /// Whether it was accepted.
    pub(super) was_open: bool,
    /// The bytes that were sent since.
    pub(super) sent_bytes: usize,
    /// How it has ended.
    end: Option<(u16, String)>,
    /// The payload of the Close frame, if the task's first step has closed it.
    pub(super) close: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    #[default]
    Asked,
    Open,
    Closed,
}

impl Socket {
    /// Whether it was neither accepted nor denied.
    pub(super) fn is_asked(&self) -> bool {
        self.phase == Phase::Asked
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether there is room for a message. If not, the worker waits for it from now on.
    pub(super) fn has_room(&mut self) -> bool {
        self.is_awaited = self.held_bytes >= BODY_BYTES_MAX && !self.is_closed();
        !self.is_awaited
    }

    /// Whether the worker waits for room, and there is room now.
    pub(super) fn take_awaited(&mut self) -> bool {
        self.held_bytes < BODY_BYTES_MAX && mem::take(&mut self.is_awaited)
    }

    /// The next message to the application, if there is one.
    pub(super) fn next(&mut self) -> Option<Message> {
        if !self.is_connected {
            self.is_connected = true;
            return Some(Message::Connect);
        }
        if let Some((message, len, _)) = self.messages.pop_front() {
            self.held_bytes -= len;
            return Some(message);
        }
        self.end.clone().map(|(code, reason)| Message::Disconnect(code, reason))
    }

    /// Takes a message of the client, of `len` bytes. Messages for which there was no room, since
    /// they come before the end of the connection, are reserved however short they are.
    pub(super) fn push(&mut self, message: Message, len: usize, budget: &MemoryBudget) {
        let len = len + MESSAGE_OVERHEAD_BYTES;
        let mut reserved = budget.reserve_large(len);
        if self.held_bytes >= BODY_BYTES_MAX {
            reserved.resize(len, budget);
        }
        self.held_bytes += len;
        self.messages.push_back((message, len, reserved));
    }

    /// It has ended. Only the first end counts.
    pub(super) fn set_end(&mut self, code: u16, reason: &str) {
        self.end.get_or_insert_with(|| (code, reason.to_owned()));
    }

    /// Ends it, because its application has.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Closed;
    }

    /// What the first step has left, with the bytes of the connection in `text`.
    pub(super) fn take_first_step(&mut self, text: Vec<u8>) -> FirstStep {
        let takes_body = !text.is_empty();
        FirstStep { parts: vec![text], takes_body, outcome: self.close.take() }
    }

    /// The status of the response, or 0, and the bytes that were sent.
    pub(super) fn summary(&self) -> (u16, usize) {
        (if self.was_open { 101 } else { 0 }, self.sent_bytes)
    }

    pub(super) fn state_name(&self) -> &'static str {
        match self.phase {
            Phase::Asked => "the WebSocket is not accepted",
            Phase::Open => "the WebSocket is open",
            Phase::Closed => "the WebSocket is closed",
        }
    }
}

/// The payload of a Close frame.
pub(crate) fn close_payload(code: CloseCode, reason: &str) -> Vec<u8> {
    let mut payload = code.get().to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    payload
}

/// The head of the reply that accepts a WebSocket, to which the layer below adds its own headers.
pub(super) fn accepted_head(message: &Bound<'_, PyDict>) -> PyResult<Vec<u8>> {
    let py = message.py();
    let mut head = b"HTTP/1.1 101 \r\n".to_vec();
    let subprotocol = message.get_item(intern!(py, "subprotocol"))?;
    if let Some(subprotocol) = subprotocol.filter(|it| !it.is_none()) {
        let subprotocol: String = subprotocol.extract()?;
        if subprotocol.is_empty() || !subprotocol.bytes().all(is_token) {
            return Err(PyValueError::new_err(format!(
                "subprotocol: expected a token, got {subprotocol:?}"
            )));
        }
        head.extend_from_slice(format!("Sec-WebSocket-Protocol: {subprotocol}\r\n").as_bytes());
    }
    head.extend_from_slice(&ResponseHead::accepted_lines(message)?);
    Ok(head)
}

pub(super) fn frame_of(message: &Bound<'_, PyDict>) -> PyResult<Vec<u8>> {
    let py = message.py();
    let mut out = Vec::new();
    let text = message.get_item(intern!(py, "text"))?.filter(|text| !text.is_none());
    let bytes = message.get_item(intern!(py, "bytes"))?.filter(|bytes| !bytes.is_none());
    match (text, bytes) {
        (Some(text), None) => {
            let text = text.cast_into::<PyString>().map_err(|_| {
                PyTypeError::new_err("text: expected a str; bytes go into the key 'bytes'")
            })?;
            write_frame(&mut out, Opcode::Text, text.to_str()?.as_bytes());
        }
        (None, Some(bytes)) => {
            write_frame(&mut out, Opcode::Binary, &bytes_of("bytes", &bytes)?);
        }
        _ => return Err(PyValueError::new_err("websocket.send: expected either text or bytes")),
    }
    Ok(out)
}

pub(super) fn close_of(message: &Bound<'_, PyDict>) -> PyResult<(CloseCode, String)> {
    let py = message.py();
    let code = message.get_item(intern!(py, "code"))?.filter(|code| !code.is_none());
    let number = code.map_or(Ok(CloseCode::NORMAL.get()), |code| code.extract::<u16>())?;
    let code = CloseCode::new(number).ok_or_else(|| {
        PyValueError::new_err(format!(
            "code: expected one that may be sent, such as 1000 or 3000 to 4999, got {number}"
        ))
    })?;
    let reason = message.get_item(intern!(py, "reason"))?.filter(|reason| !reason.is_none());
    let reason = reason.map_or(Ok(String::new()), |reason| reason.extract::<String>())?;
    match reason.len() {
        ..=REASON_BYTES_MAX => Ok((code, reason)),
        len => Err(PyValueError::new_err(format!(
            "reason: expected at most {REASON_BYTES_MAX} bytes, got {len}"
        ))),
    }
}
