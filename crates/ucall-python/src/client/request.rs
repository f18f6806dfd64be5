//! A request as bytes, which may be sent more than once.

use std::ops::Range;
use std::os::raw::c_int;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};
use ucall_proto::json::{write_i64, write_string};

use super::error::value_error;
use crate::convert;

const LENGTH_DIGITS_MAX: usize = 20;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Initial capacity beyond the head, enough for most requests.
const TYPICAL_BYTES: usize = 160;

/// The reply that a request expects.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// A reply with this id, which is JSON text.
    Id(Vec<u8>),
    /// A reply for each call that has an id.
    Batch,
    /// None, or over HTTP an empty one.
    Nothing,
}

/// The caller's `traceparent` and `tracestate`.
type TraceContext = (String, Option<String>);

/// A request as it is sent. It shows its bytes as a buffer.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct Request {
    data: Vec<u8>,
    /// Where it starts in `data`.
    start: usize,
    /// Where its document is.
    document: Range<usize>,
    /// Where the digits of its `timeout_ms` are; empty without one.
    timeout: Range<usize>,
    expected: Expected,
}

impl Request {
    pub(super) fn bytes(&self) -> &[u8] {
        self.data.get(self.start..).unwrap_or_default()
    }

    pub(super) fn expected(&self) -> &Expected {
        &self.expected
    }

    pub(super) fn expects_nothing(&self) -> bool {
        matches!(self.expected, Expected::Nothing)
    }
}

#[pymethods]
impl Request {
    /// The document: the body of its HTTP request.
    #[getter]
    fn document<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data.get(self.document.clone()).unwrap_or_default())
    }

    /// Whether it consists of notifications.
    #[getter]
    fn is_notification(&self) -> bool {
        self.expects_nothing()
    }

    /// A view of its bytes.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(slf.as_any())
    }

    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    /// Shows the bytes, which never change.
    ///
    /// # Safety
    /// The interpreter passes a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes();
        let (data, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: the view holds a reference to the request, which keeps its bytes in place for as
        // long as it lives. They are read-only, and a writable view is refused.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Writes requests that share a head.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct RequestWriter {
    /// Up to the digits of the length; `None` on raw TCP.
    head: Option<Vec<u8>>,
    /// Replaces an object that JSON does not have by one that it has.
    default: Py<PyAny>,
    /// The `timeout_ms` of each call's `_meta`, for requests without a head.
    timeout_ms: Option<u64>,
}

#[pymethods]
impl RequestWriter {
    /// `head` ends with `Content-Length: `; with `None` requests are raw documents, whose calls
    /// carry `timeout_ms`.
    #[new]
    #[pyo3(signature = (head, default, timeout_ms=None))]
    fn new(head: Option<Vec<u8>>, default: Py<PyAny>, timeout_ms: Option<u64>) -> Self {
        Self { head, default, timeout_ms }
    }

    /// Writes one call; with the id `None` a notification. `wants_items` asks for the items of a
    /// stream, with the id as their token. `trace` goes into the head, or else into `_meta`.
    #[pyo3(signature = (method, args, kwargs, id, wants_items=false, trace=None))]
    fn call(
        &self,
        method: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        id: Option<&Bound<'_, PyAny>>,
        wants_items: bool,
        trace: Option<TraceContext>,
    ) -> PyResult<Request> {
        let (head_end, trace) = match (&self.head, trace) {
            (Some(_), Some(trace)) => (head_end_with(&trace), None),
            (_, trace) => (HEAD_END.to_vec(), trace),
        };
        let mut data = self.begin(&head_end);
        data.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
        write_string(&mut data, method);
        self.params(&mut data, args, kwargs.filter(|kwargs| !kwargs.is_empty()))?;
        let expected = match id {
            Some(id) => {
                let text = self.id(id)?;
                data.extend_from_slice(br#","id":"#);
                data.extend_from_slice(&text);
                Expected::Id(text)
            }
            None => Expected::Nothing,
        };
        let progress_token = match &expected {
            Expected::Id(text) if wants_items => Some(&**text),
            _ => None,
        };
        // The timeout of a stream holds between its items.
        let timeout_ms = self.timeout_ms.filter(|_| id.is_some() && !wants_items);
        let timeout = write_meta(&mut data, progress_token, trace, timeout_ms);
        data.push(b'}');
        Ok(Request { timeout, ..self.end(data, expected, &head_end) })
    }

    /// Writes a request object that is complete, with its id.
    fn document(&self, document: &Bound<'_, PyDict>, id: &Bound<'_, PyAny>) -> PyResult<Request> {
        let mut data = self.begin(HEAD_END);
        self.write(&mut data, document, "request")?;
        let expected = Expected::Id(self.id(id)?);
        Ok(self.end(data, expected, HEAD_END))
    }

    /// Writes a batch of request objects; `answered` is whether any of them has an id.
    fn batch(&self, calls: &Bound<'_, PyAny>, answered: bool) -> PyResult<Request> {
        let mut data = self.begin(HEAD_END);
        self.write(&mut data, calls, "batch")?;
        let expected = if answered { Expected::Batch } else { Expected::Nothing };
        Ok(self.end(data, expected, HEAD_END))
    }

    /// Writes the same request for another server, with the head of this writer.
    fn rewrite(&self, request: &Request) -> Request {
        let document = request.data.get(request.document.clone()).unwrap_or_default();
        let head = self.head.as_deref().unwrap_or_default();
        let room = head.len() + LENGTH_DIGITS_MAX + HEAD_END.len();
        let mut data = Vec::with_capacity(room + document.len() + 1);
        if self.head.is_some() {
            data.extend_from_slice(head);
            write_i64(&mut data, document.len() as i64);
            data.extend_from_slice(HEAD_END);
        }
        let start = data.len();
        data.extend_from_slice(document);
        let mut timeout = 0..0;
        if let (Some(timeout_ms), false) = (self.timeout_ms, request.timeout.is_empty()) {
            let digits = timeout_ms.to_string();
            let at = start + request.timeout.start - request.document.start;
            data.splice(at..at + request.timeout.len(), digits.bytes());
            timeout = at..at + digits.len();
        }
        let document = start..data.len();
        if self.head.is_none() {
            data.push(b'\n');
        }
        Request { data, start: 0, document, timeout, expected: request.expected.clone() }
    }
}

impl RequestWriter {
    /// Leaves room for the head, which is written when the length is known.
    fn begin(&self, head_end: &[u8]) -> Vec<u8> {
        let head_bytes = self.head_bytes(head_end);
        let mut data = Vec::with_capacity(head_bytes + TYPICAL_BYTES);
        data.resize(head_bytes, 0);
        data
    }

    fn head_bytes(&self, head_end: &[u8]) -> usize {
        self.head.as_ref().map_or(0, |head| head.len() + LENGTH_DIGITS_MAX + head_end.len())
    }

    /// Writes the head up to the start of the body. A raw document ends with a newline.
    fn end(&self, mut data: Vec<u8>, expected: Expected, head_end: &[u8]) -> Request {
        let document = self.head_bytes(head_end)..data.len();
        let Some(head) = &self.head else {
            data.push(b'\n');
            return Request { data, start: 0, document, timeout: 0..0, expected };
        };
        let head_bytes = document.start;
        let length = (data.len() - head_bytes).to_string();
        let mut start = head_bytes;
        for part in [head_end, length.as_bytes(), head] {
            let end = start;
            start = end.saturating_sub(part.len());
            if let Some(position) = data.get_mut(start..end) {
                position.copy_from_slice(part);
            }
        }
        Request { data, start, document, timeout: 0..0, expected }
    }

    fn params(
        &self,
        data: &mut Vec<u8>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let params = match kwargs {
            Some(_) if !args.is_empty() => {
                let message =
                    "params are given by position or by name, not both (JSON-RPC 2.0, 4.2)";
                return Err(PyTypeError::new_err(message));
            }
            Some(kwargs) => kwargs.as_any(),
            None if args.is_empty() => return Ok(()),
            None => args.as_any(),
        };
        data.extend_from_slice(br#","params":"#);
        self.write(data, params, "params")
    }

    fn write(&self, data: &mut Vec<u8>, object: &Bound<'_, PyAny>, root: &str) -> PyResult<()> {
        let default = self.default.bind(object.py());
        convert::write_with(data, usize::MAX, object, default)
            .map_err(|fault| value_error(fault, root))
    }

    fn id(&self, id: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        let mut text = Vec::new();
        convert::write(&mut text, usize::MAX, id).map_err(|fault| value_error(fault, "id"))?;
        Ok(text)
    }
}

/// The end of a head with the headers of a trace.
fn head_end_with((traceparent, tracestate): &TraceContext) -> Vec<u8> {
    let mut lines = format!("\r\ntraceparent: {traceparent}");
    if let Some(tracestate) = tracestate {
        lines += &format!("\r\ntracestate: {tracestate}");
    }
    [lines.as_bytes(), HEAD_END].concat()
}

/// Writes the member `_meta`, if it has members. Returns the digits of its `timeout_ms`.
fn write_meta(
    data: &mut Vec<u8>,
    progress_token: Option<&[u8]>,
    trace: Option<TraceContext>,
    timeout_ms: Option<u64>,
) -> Range<usize> {
    let mut begin: &[u8] = br#","_meta":{"#;
    let mut member = |data: &mut Vec<u8>, name: &str| {
        data.extend_from_slice(std::mem::replace(&mut begin, b","));
        write_string(data, name);
        data.push(b':');
    };
    if let Some(token) = progress_token {
        member(data, "progressToken");
        data.extend_from_slice(token);
    }
    if let Some((traceparent, tracestate)) = trace {
        member(data, "traceparent");
        write_string(data, &traceparent);
        if let Some(tracestate) = tracestate {
            member(data, "tracestate");
            write_string(data, &tracestate);
        }
    }
    let mut timeout = 0..0;
    if let Some(timeout_ms) = timeout_ms {
        member(data, "timeout_ms");
        let start = data.len();
        data.extend_from_slice(timeout_ms.to_string().as_bytes());
        timeout = start..data.len();
    }
    if begin == b"," {
        data.push(b'}');
    }
    timeout
}
