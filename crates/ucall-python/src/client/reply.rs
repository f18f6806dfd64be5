//! A reply: validated as JSON-RPC at once, converted to objects when asked.

use std::sync::OnceLock;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::json::{Reader, validate};
use ucall_proto::{Response, ResponseBody, RpcError};

use super::error::ClientFault;
use super::notification::Notification;
use super::parser::{Message, NESTING_MAX};
use super::request::{Expected, Request};
use super::values::build;
use crate::convert::Convert;

/// A message of the server.
#[derive(Debug, IntoPyObject)]
pub(super) enum Received {
    Reply(Reply),
    Notification(Notification),
}

impl Received {
    /// Parses a message. The body of an HTTP reply is no notification, and without JSON-RPC in it,
    /// an error status becomes the error.
    pub(super) fn from_message(message: Message) -> Result<Self, ClientFault> {
        let Message { head, body, .. } = message;
        let status = head.as_ref().map_or(0, |head| head.status);
        let (text, is_success) = (Bytes::from(body), matches!(status, 0 | 200..300));
        if is_success && text.trim_ascii().is_empty() {
            return Ok(Self::reply(status, text, Content::Nothing));
        }
        if text.trim_ascii_start().starts_with(b"[") {
            if validate(&text, NESTING_MAX).is_ok() {
                return Ok(Self::reply(status, text, Content::Batch));
            }
        } else if let Some(response) = parse_object(&text) {
            if let Some(answer) = Answer::of(&text, &response) {
                return Ok(Self::reply(status, text, Content::One(answer)));
            }
            if let (0, Some(notification)) = (status, Notification::of(&text, &response)) {
                return Ok(Self::Notification(notification));
            }
        }
        let text = ClientFault::excerpt(&text);
        Err(match head {
            Some(head) if !is_success => ClientFault::Http(Box::new(head), text),
            _ => ClientFault::Protocol(format!("{text:?}")),
        })
    }

    fn reply(status: u16, text: Bytes, content: Content) -> Self {
        Self::Reply(Reply { status, text, content, parts: OnceLock::new() })
    }
}

/// The reply to one request, for `ucall.client.Response`.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    /// The whole document; empty for a notification.
    text: Bytes,
    content: Content,
    /// The ranges of a batch's parts, found on first use.
    parts: OnceLock<Vec<Bytes>>,
}

#[derive(Clone, Debug)]
enum Content {
    Nothing,
    One(Answer),
    Batch,
}

/// The members of one reply object, as slices of its text.
#[derive(Clone, Debug)]
struct Answer {
    id: Bytes,
    outcome: ReplyOutcome,
}

#[derive(Clone, Debug)]
enum ReplyOutcome {
    Result(Bytes),
    Error(Bytes),
}

impl Reply {
    /// Checks that it answers the request: by its id, or as an error with the id `null`.
    pub(super) fn check(&self, py: Python<'_>, request: &Request) -> PyResult<()> {
        let fits = match (&self.content, request.expected()) {
            (Content::Nothing, Expected::Nothing) => true,
            (_, Expected::Nothing) => matches!(self.content, Content::One(_)),
            (Content::One(answer), Expected::Id(id)) => answer.has_id(py, id)?,
            (Content::One(answer), Expected::Batch) => {
                matches!(answer.outcome, ReplyOutcome::Error(_))
            }
            (Content::Batch, Expected::Batch) => true,
            _ => false,
        };
        match (fits, &self.content) {
            (true, _) => Ok(()),
            (false, Content::Nothing) => {
                Err(ClientFault::NoReply { status: self.status }.into_error(py))
            }
            (false, _) => Err(ClientFault::WrongReply.into_error(py)),
        }
    }

    fn answer(&self) -> PyResult<&Answer> {
        match &self.content {
            Content::One(answer) => Ok(answer),
            Content::Batch => Err(PyValueError::new_err("the reply is that of a batch")),
            Content::Nothing => Err(PyValueError::new_err("the reply is empty")),
        }
    }

    fn result_as<'py>(&self, py: Python<'py>, convert: &Convert) -> PyResult<Bound<'py, PyAny>> {
        match &self.answer()?.outcome {
            ReplyOutcome::Result(text) => build(py, text, convert, "result"),
            ReplyOutcome::Error(_) => Err(PyValueError::new_err("the reply is an error")),
        }
    }
}

#[pymethods]
impl Reply {
    /// The reply to a notification on raw TCP, where none is sent.
    #[staticmethod]
    pub(super) fn nothing() -> Self {
        Self { status: 0, text: Bytes::new(), content: Content::Nothing, parts: OnceLock::new() }
    }

    /// The HTTP status; 0 of a document, a WebSocket message or an event.
    #[getter]
    fn status(&self) -> u16 {
        self.status
    }

    /// The document as received.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.text)
    }

    /// Whether it is empty, as after a notification.
    #[getter]
    fn is_empty(&self) -> bool {
        matches!(self.content, Content::Nothing)
    }

    /// Whether it is the error of one call.
    #[getter]
    fn is_error(&self) -> bool {
        matches!(&self.content, Content::One(Answer { outcome: ReplyOutcome::Error(_), .. }))
    }

    /// Whether it reports that the deadline of the call passed: the client had sent its timeout.
    #[getter]
    pub(super) fn is_deadline_error(&self) -> bool {
        let Content::One(Answer { outcome: ReplyOutcome::Error(error), .. }) = &self.content else {
            return false;
        };
        let error = RpcError::parse_response(error);
        error.is_some_and(|error| error.code == RpcError::DEADLINE_PASSED)
    }

    /// Whether it is the result of one call, or empty.
    #[getter]
    fn is_result(&self) -> bool {
        match &self.content {
            Content::One(answer) => matches!(answer.outcome, ReplyOutcome::Result(_)),
            Content::Nothing => true,
            Content::Batch => false,
        }
    }

    /// Whether it is the reply to a batch.
    #[getter]
    fn is_batch(&self) -> bool {
        matches!(self.content, Content::Batch)
    }

    /// The id of the answered request.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        build(py, &self.answer()?.id, &Convert::Any, "id")
    }

    /// The whole document, as objects.
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.content {
            Content::Nothing => Ok(py.None().into_bound(py)),
            _ => build(py, &self.text, &Convert::Any, "reply"),
        }
    }

    /// The result.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.result_as(py, &Convert::Any)
    }

    /// The bytes of a result in base64.
    fn result_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.result_as(py, &Convert::Bytes)
    }

    /// The error object.
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.answer()?.outcome {
            ReplyOutcome::Error(text) => build(py, text, &Convert::Any, "error"),
            ReplyOutcome::Result(_) => Err(PyValueError::new_err("the reply is a result")),
        }
    }

    /// The replies in a batch's, in their order.
    fn split(&self, py: Python<'_>) -> PyResult<Vec<Self>> {
        let mut replies = Vec::new();
        for part in self.parts.get_or_init(|| items(&self.text)) {
            let answer = parse_object(part).and_then(|it| Answer::of(part, &it));
            let Some(answer) = answer else {
                let fault = ClientFault::Protocol(format!("{:?}", ClientFault::excerpt(part)));
                return Err(fault.into_error(py));
            };
            replies.push(Self {
                status: self.status,
                text: part.clone(),
                content: Content::One(answer),
                parts: OnceLock::new(),
            });
        }
        Ok(replies)
    }

    /// Raises `ucall.ConnectionError` unless it answers the request.
    fn check_answers(&self, py: Python<'_>, request: &Request) -> PyResult<()> {
        self.check(py, request)
    }
}

impl Answer {
    /// The answer in the object of `text`, if it is one.
    fn of(text: &Bytes, response: &Response<'_>) -> Option<Self> {
        let outcome = match response.body {
            ResponseBody::Result(result) => ReplyOutcome::Result(text.slice_ref(result)),
            ResponseBody::Error(error) => ReplyOutcome::Error(text.slice_ref(error)),
            ResponseBody::Request { .. } | ResponseBody::Invalid => return None,
        };
        let id = response.id.map_or(Bytes::from_static(b"null"), |id| text.slice_ref(id));
        Some(Self { id, outcome })
    }

    /// A server that cannot read a request answers with an error and the id `null`.
    fn has_id(&self, py: Python<'_>, sent: &[u8]) -> PyResult<bool> {
        if self.id == sent {
            return Ok(true);
        }
        if self.id == b"null"[..] {
            return Ok(matches!(self.outcome, ReplyOutcome::Error(_)));
        }
        // The same string may have other escapes.
        let received_id = build(py, &self.id, &Convert::Any, "id")?;
        received_id.eq(build(py, &Bytes::copy_from_slice(sent), &Convert::Any, "id")?)
    }
}

/// The object in a text of nothing else.
fn parse_object(text: &[u8]) -> Option<Response<'_>> {
    let (response, len) = Response::parse(text, NESTING_MAX).ok()?;
    text.get(len..)?.trim_ascii().is_empty().then_some(response)
}

/// The items of an array.
fn items(text: &Bytes) -> Vec<Bytes> {
    let mut reader = Reader::new(text);
    let mut items = Vec::new();
    reader.enter();
    while reader.next_item() {
        items.push(text.slice_ref(reader.skip()));
    }
    items
}
