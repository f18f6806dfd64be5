//! A reply: validated as JSON-RPC at once, converted to objects when asked.

use std::sync::OnceLock;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use ucall_proto::json::{Reader, validate};
use ucall_proto::{FRAME_BYTE, Response, ResponseBody, RpcError};

use ucall_proto::http1::ResponseHead;

use super::error::ClientFault;
use super::incoming::{FrameMemory, IncomingFrame, IncomingParts, SharedParts};
use super::notification::Notification;
use super::parser::{Message, NESTING_MAX};
use super::request::{Expected, Request};
use super::support::frame_refused;
use super::values::build;
use crate::convert::{Convert, PartMemory, part_array};

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
        let Message { head, body, frame, parts, .. } = message;
        if let Some(memory) = frame {
            return Self::from_frame(*memory, parts, head);
        }
        if body.first() == Some(&FRAME_BYTE) {
            return Self::from_frame(FrameMemory::of(&body), parts, head);
        }
        Self::from_text(Bytes::from(body), head)
    }

    #[inline(always)]
    fn from_text(text: Bytes, head: Option<ResponseHead>) -> Result<Self, ClientFault> {
        let status = head.as_ref().map_or(0, |head| head.status);
        let is_success = matches!(status, 0 | 200..300);
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

    /// Parses a frame: a reply to one call with binary parts in its result. Others have none.
    #[cold]
    fn from_frame(
        memory: FrameMemory,
        shared: SharedParts,
        head: Option<ResponseHead>,
    ) -> Result<Self, ClientFault> {
        let fault = |clause: &str| ClientFault::Protocol(clause.to_owned());
        let mut frame = IncomingFrame::of(memory, shared)?;
        let received = Self::from_text(frame.text.clone(), head)?;
        frame.find_marks().map_err(fault)?;
        match received {
            Self::Reply(reply) if matches!(reply.content, Content::One(_)) => {
                let binary = BinaryReply { parts: frame.parts, inlined: OnceLock::new() };
                Ok(Self::Reply(Reply { binary: Some(Box::new(binary)), ..reply }))
            }
            received if frame.parts.is_empty() => Ok(received),
            _ => Err(fault("parts of a document without one result")),
        }
    }

    fn reply(status: u16, text: Bytes, content: Content) -> Self {
        Self::Reply(Reply { status, text, content, parts: OnceLock::new(), binary: None })
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
    /// Of a frame with one reply.
    binary: Option<Box<BinaryReply>>,
}

/// What a reply that came as a frame has beside its text.
#[derive(Debug)]
struct BinaryReply {
    parts: IncomingParts,
    /// The text with the parts as base64, and the answer in it, made on first use.
    inlined: OnceLock<(Bytes, Answer)>,
}

impl BinaryReply {
    fn inlined(&self, text: &Bytes) -> &(Bytes, Answer) {
        self.inlined.get_or_init(|| {
            let text = self.parts.inlined(text);
            let answer = parse_object(&text).and_then(|it| Answer::of(&text, &it));
            let answer = answer.unwrap_or_else(|| Answer {
                id: Bytes::from_static(b"null"),
                outcome: ReplyOutcome::Result(Bytes::from_static(b"null")),
            });
            (text, answer)
        })
    }
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
        if request.is_frame() && self.refuses_frame() {
            return Err(frame_refused());
        }
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

    /// The document, with its parts as base64.
    fn inlined_text(&self) -> &Bytes {
        match &self.binary {
            Some(binary) if !binary.parts.is_empty() => &binary.inlined(&self.text).0,
            _ => &self.text,
        }
    }

    /// The answer, with its parts as base64.
    fn inlined_answer(&self) -> PyResult<&Answer> {
        match &self.binary {
            Some(binary) if !binary.parts.is_empty() => Ok(&binary.inlined(&self.text).1),
            _ => self.answer(),
        }
    }

    /// Whether it is the error for a document that cannot be read, which nothing was run of.
    fn refuses_frame(&self) -> bool {
        match &self.content {
            Content::One(Answer { id, outcome: ReplyOutcome::Error(error) }) => {
                let error = RpcError::parse_response(error);
                id == &b"null"[..]
                    && error.is_some_and(|error| matches!(error.code, -32700 | -32600))
            }
            _ => false,
        }
    }

    fn part_of_result(&self) -> Option<(&IncomingParts, usize)> {
        let parts = &self.binary.as_deref()?.parts;
        let Content::One(Answer { outcome: ReplyOutcome::Result(result), .. }) = &self.content
        else {
            return None;
        };
        let at = (result.as_ptr() as usize).checked_sub(self.text.as_ptr() as usize)?;
        Some((parts, parts.part(at..at + result.len())?))
    }

    fn answer(&self) -> PyResult<&Answer> {
        match &self.content {
            Content::One(answer) => Ok(answer),
            Content::Batch => Err(PyValueError::new_err("the reply is that of a batch")),
            Content::Nothing => Err(PyValueError::new_err("the reply is empty")),
        }
    }

    fn result_as<'py>(&self, py: Python<'py>, convert: &Convert) -> PyResult<Bound<'py, PyAny>> {
        match &self.inlined_answer()?.outcome {
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
        let (text, content) = (Bytes::new(), Content::Nothing);
        Self { status: 0, text, content, parts: OnceLock::new(), binary: None }
    }

    /// The HTTP status; 0 of a document, a WebSocket message or an event.
    #[getter]
    fn status(&self) -> u16 {
        self.status
    }

    /// The document as received, with its parts as base64.
    #[getter]
    fn text<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.inlined_text())
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
            _ => build(py, self.inlined_text(), &Convert::Any, "reply"),
        }
    }

    /// The result.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.result_as(py, &Convert::Any)
    }

    /// Whether it came as a frame.
    #[getter]
    fn is_frame(&self) -> bool {
        self.binary.is_some()
    }

    /// Whether the result is a binary part.
    #[getter]
    fn has_result_part(&self) -> bool {
        self.part_of_result().is_some()
    }

    /// A view of a result that is a binary part; None of another one.
    fn result_part<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let Some((parts, index)) = self.part_of_result() else { return Ok(None) };
        let memory = PartMemory::new(py, parts.memory().clone(), index)?;
        Ok(Some(PyMemoryView::from(memory.as_any())?))
    }

    /// The array of a result that is a `.npy` as a binary part, in the memory of that.
    fn result_array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.part_of_result() {
            Some((parts, index)) => part_array(py, parts.memory(), index),
            None => Err(PyValueError::new_err("the result is no binary part")),
        }
    }

    /// The bytes of a result in base64.
    fn result_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.result_as(py, &Convert::Bytes)
    }

    /// The error object.
    fn error<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.inlined_answer()?.outcome {
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
                binary: None,
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
