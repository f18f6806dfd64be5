//! The request and the response of HTTP.
//!
//! | response | a start | a part of the body | the last part |
//! |---|---|---|---|
//! | `Expected` | `Started` | is refused | is refused |
//! | `Started` | is refused | the head and it are sent: `Sending` | both are sent: `Complete` |
//! | `Sending` | is refused | is sent | is sent: `Complete` |
//! | `Complete` | is refused | is refused | is refused |

use memchr::memmem;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::message::Message;
use super::output::{FirstStep, unexpected};
use super::response::ResponseHead;
use super::websocket::ABNORMAL;
use crate::request_body::RequestBody;

/// A request and its response.
pub(super) struct Http {
    request: RequestBody,
    pub(super) response: Response,
    /// Whether the body of the response is omitted.
    pub(super) is_head: bool,
    /// What the messages of the response begin with: also those that deny a WebSocket.
    pub(super) kinds: Kinds,
    /// That of the response that has begun, or 0.
    pub(super) status: u16,
    /// The bytes of its body.
    pub(super) sent_bytes: usize,
}

/// The types of the messages of a response.
#[derive(Clone, Copy)]
pub(super) struct Kinds {
    pub(super) start: &'static str,
    pub(super) body: &'static str,
}

const RESPONSE: Kinds = Kinds { start: "http.response.start", body: "http.response.body" };
const DENIAL: Kinds =
    Kinds { start: "websocket.http.response.start", body: "websocket.http.response.body" };

pub(super) enum Response {
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
    /// The response after a part of `len` bytes in a message of this kind.
    pub(super) fn after(
        &self,
        kind: &str,
        len: usize,
        is_last: bool,
        is_head: bool,
    ) -> PyResult<Self> {
        let left = match self {
            Self::Expected => return Err(unexpected(kind, "the response has not begun")),
            Self::Complete => return Err(unexpected(kind, "the response is complete")),
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
                    unexpected(kind, "the body is longer than its content-length")
                })?),
            };
        match (is_last, left) {
            (true, Some(1..)) => {
                Err(unexpected(kind, "the body is shorter than its content-length"))
            }
            (true, _) => Ok(Self::Complete),
            (false, left) => Ok(Self::Sending { left }),
        }
    }
}

impl Http {
    /// A request with this body. Without one it arrives in parts.
    pub(super) fn new(body: Option<Py<PyBytes>>, is_head: bool) -> Self {
        let whole = |body| RequestBody::Whole(Some(body));
        let request = body.map_or_else(RequestBody::in_parts, whole);
        Self::with(request, Response::Expected, is_head, RESPONSE)
    }

    /// The response that denies a WebSocket.
    pub(super) fn denial(head: ResponseHead) -> Self {
        let status = head.status();
        let response = Response::Started { head, parts: None };
        Self { status, ..Self::with(RequestBody::Whole(None), response, false, DENIAL) }
    }

    fn with(request: RequestBody, response: Response, is_head: bool, kinds: Kinds) -> Self {
        Self { request, response, is_head, kinds, status: 0, sent_bytes: 0 }
    }

    /// The status of the response, or 0, and the bytes of its body.
    pub(super) fn summary(&self) -> (u16, usize) {
        (self.status, self.sent_bytes)
    }

    /// The next message to the application, if there is one.
    pub(super) fn next(&mut self, py: Python<'_>, is_disconnected: bool) -> Option<Message> {
        match self.request.take(py).filter(|_| !is_disconnected) {
            Some((body, more)) => Some(Message::Request(body, more)),
            None if is_disconnected || self.is_complete() => Some(self.disconnect()),
            None => None,
        }
    }

    fn disconnect(&self) -> Message {
        match self.kinds.start == RESPONSE.start {
            true => Message::HttpDisconnect,
            false => Message::Disconnect(ABNORMAL, String::new()),
        }
    }

    /// Whether there is room for a part of the request's body.
    pub(super) fn has_room(&mut self) -> bool {
        let is_complete = self.is_complete();
        self.request.has_room(is_complete)
    }

    /// Whether the worker waits for room, and there is room now.
    pub(super) fn take_awaited(&mut self) -> bool {
        self.request.take_awaited()
    }

    /// Takes a part of the request's body.
    pub(super) fn take_part(&mut self, part: &[u8], is_last: bool) {
        self.request.put(part, is_last);
    }

    /// Whether the whole response is sent.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.response, Response::Complete)
    }

    /// Sends no more.
    pub(super) fn end(&mut self) {
        self.response = Response::Complete;
    }

    /// The head and the parts of a response of which parts are buffered: it is sent from now on.
    fn take_parts(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let Response::Started { head, parts } = &mut self.response else { return None };
        let parts = parts.take()?;
        let mut text = Vec::new();
        head.write(None, self.is_head, &mut text);
        let left = head.body_len().map(|len| len.saturating_sub(parts.len() as u64));
        self.response = Response::Sending { left };
        Some((text, if self.is_head { Vec::new() } else { parts }))
    }

    /// What the first step has left, with the whole response in `text` if it is complete.
    pub(super) fn take_first_step(&mut self, text: &[u8]) -> FirstStep {
        if let Some((head, parts)) = self.take_parts() {
            return FirstStep { parts: vec![head, parts], ..FirstStep::default() };
        }
        if text.is_empty() {
            return FirstStep::default();
        }
        let body_at = memmem::find(text, b"\r\n\r\n").map_or(text.len(), |at| at + 4);
        let (head, body) = text.split_at(body_at);
        let parts = vec![head.to_vec(), body.to_vec()];
        FirstStep { parts, outcome: Some(Vec::new()), ..FirstStep::default() }
    }
}
