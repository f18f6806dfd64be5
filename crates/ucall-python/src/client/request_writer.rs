//! Writes the requests of a client.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ucall_proto::json::{write_i64, write_string};
use ucall_proto::{ResultFormat, inline_results};

use super::coding::CodingSupport;
use super::error::value_error;
use super::request::{Expected, Request};
use super::request_parts::{Frame, FrameBody, OutgoingParts, fits_frame};
use super::support::{Form, FrameSupport, undecided};
use crate::convert::{self, Results};

const LENGTH_DIGITS_MAX: usize = 20;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Initial capacity beyond the head, enough for most requests.
const TYPICAL_BYTES: usize = 160;
/// A request of this length is worth a question whether the server takes frames.
const LONG_BYTES_MIN: usize = 64 * 1024;

/// The caller's `traceparent` and `tracestate`.
type TraceContext = (String, Option<String>);

/// How requests are written.
enum Forms {
    /// As JSON, to a server that takes no frames.
    Json,
    /// By what is known of the server.
    Known(Py<FrameSupport>),
    /// For one of several servers: they are written again for it.
    Provisional,
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
    /// The `priority` of each request's `_meta`.
    priority: Option<i8>,
    forms: Forms,
    /// Which requests with a head are compressed.
    coding: Option<Py<CodingSupport>>,
}

#[pymethods]
impl RequestWriter {
    /// `head` ends with `Content-Length: `; with `None` requests are raw documents, whose calls
    /// carry `timeout_ms`. Requests may be frames as far as `frames` knows that the server takes
    /// them; `Undecided` is raised if it has to be asked first. With `provisional` they are written
    /// again, by `rewrite` of another writer, before they are sent. Others than frames are
    /// compressed if `coding` says so.
    #[new]
    #[pyo3(signature = (
        head, default, timeout_ms=None, frames=None, provisional=false, priority=None, coding=None
    ))]
    fn new(
        head: Option<Vec<u8>>,
        default: Py<PyAny>,
        timeout_ms: Option<u64>,
        frames: Option<Py<FrameSupport>>,
        provisional: bool,
        priority: Option<i8>,
        coding: Option<Py<CodingSupport>>,
    ) -> Self {
        let forms = match (frames, provisional) {
            (_, true) => Forms::Provisional,
            (Some(support), false) => Forms::Known(support),
            (None, false) => Forms::Json,
        };
        Self { head, default, timeout_ms, priority, forms, coding }
    }

    /// A writer of the same requests as JSON.
    fn without_frames(&self, py: Python<'_>) -> Self {
        let (head, default) = (self.head.clone(), self.default.clone_ref(py));
        let (timeout_ms, priority) = (self.timeout_ms, self.priority);
        let coding = self.coding.as_ref().map(|coding| coding.clone_ref(py));
        Self { head, default, timeout_ms, priority, forms: Forms::Json, coding }
    }

    /// A writer of the same requests as JSON that is not compressed.
    fn plain(&self, py: Python<'_>) -> Self {
        Self { coding: None, ..self.without_frames(py) }
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
        let (form, mut results) = self.form_of_next(args.py())?;
        let mut data = self.begin(&head_end);
        data.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
        write_string(&mut data, method);
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        self.params(&mut data, &mut results, args, kwargs)?;
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
        let timeout = write_meta(&mut data, progress_token, trace, self.priority, timeout_ms);
        data.push(b'}');
        self.finish(form, WrittenRequest { data, expected, timeout, head_end: &head_end }, results)
    }

    /// Writes a request object that is complete, with its id.
    fn document(&self, document: &Bound<'_, PyDict>, id: &Bound<'_, PyAny>) -> PyResult<Request> {
        let (form, mut results) = self.form_of_next(document.py())?;
        let mut data = self.begin(HEAD_END);
        self.write(&mut data, &mut results, document, "request")?;
        let expected = Expected::Id(self.id(id)?);
        let written = WrittenRequest { data, expected, timeout: 0..0, head_end: HEAD_END };
        self.finish(form, written, results)
    }

    /// Writes a batch of request objects; `answered` is whether any of them has an id.
    fn batch(&self, calls: &Bound<'_, PyAny>, answered: bool) -> PyResult<Request> {
        let (form, mut results) = self.form_of_next(calls.py())?;
        let mut data = self.begin(HEAD_END);
        self.write(&mut data, &mut results, calls, "batch")?;
        let expected = if answered { Expected::Batch } else { Expected::Nothing };
        let written = WrittenRequest { data, expected, timeout: 0..0, head_end: HEAD_END };
        self.finish(form, written, results)
    }

    /// Writes a frame without parts that calls a method without params, to ask whether the server
    /// takes frames. It ends with a newline, for servers that read lines.
    fn frame(&self, method: &str, id: &Bound<'_, PyAny>) -> PyResult<Request> {
        let (mut document, id) = (br#"{"jsonrpc":"2.0","method":"#.to_vec(), self.id(id)?);
        write_string(&mut document, method);
        document.extend_from_slice(br#","id":"#);
        document.extend_from_slice(&id);
        document.extend_from_slice(b"}\n");
        Ok(self.assemble(&document, 0..0, Expected::Id(id), HEAD_END, Some(Arc::default())))
    }

    /// Writes the same request for another server, with the head of this writer.
    fn rewrite(&self, py: Python<'_>, request: &Request) -> PyResult<Request> {
        let form = self.form(py);
        if request.is_frame() || !matches!(form, Form::Json | Form::Undecided) {
            return self.rewrite_general(request, form);
        }
        let document = request.data.get(request.document.clone()).unwrap_or_default();
        let timeout = relative(&request.timeout, request.document.start);
        let expected = request.expected.clone();
        Ok(self.assemble(document, timeout, expected, HEAD_END, None))
    }
}

/// A request that is being written.
struct WrittenRequest<'a> {
    /// Its document, after room for a head.
    data: Vec<u8>,
    expected: Expected,
    timeout: Range<usize>,
    head_end: &'a [u8],
}

impl RequestWriter {
    #[inline]
    fn form(&self, py: Python<'_>) -> Form {
        match &self.forms {
            Forms::Json => Form::Json,
            Forms::Known(support) => support.bind(py).get().form(),
            Forms::Provisional => Form::Provisional,
        }
    }

    /// How the next request is written, and what takes its parts.
    #[inline]
    fn form_of_next(&self, py: Python<'_>) -> PyResult<(Form, Results)> {
        let form = self.form(py);
        let has_parts = matches!(form, Form::Frame | Form::Provisional);
        let format = if has_parts { ResultFormat::Parts } else { ResultFormat::Json };
        match form {
            Form::Wanted => Err(undecided()),
            form => Ok((form, Results { format, borrows: has_parts, ..Results::default() })),
        }
    }

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

    #[inline(always)]
    fn finish(
        &self,
        form: Form,
        written: WrittenRequest<'_>,
        results: Results,
    ) -> PyResult<Request> {
        if form == Form::Undecided && results.has_binary {
            self.check_short(written.data.len())?;
        }
        match results.format {
            ResultFormat::Parts if form == Form::Frame || !results.parts.is_empty() => {
                Ok(self.finish_frame(form, &written, results))
            }
            _ => Ok(self.end(written)),
        }
    }

    /// Raises `Undecided` for a long request with binary params. After a short one, which is JSON,
    /// the server is asked whether it takes frames.
    #[cold]
    fn check_short(&self, len: usize) -> PyResult<()> {
        if len >= LONG_BYTES_MIN {
            return Err(undecided());
        }
        if let Forms::Known(support) = &self.forms {
            support.get().want();
        }
        Ok(())
    }

    /// Writes the head up to the start of the body. A raw document ends with a newline.
    #[inline(always)]
    fn end(&self, written: WrittenRequest<'_>) -> Request {
        let WrittenRequest { mut data, expected, timeout, head_end } = written;
        let document = self.head_bytes(head_end)..data.len();
        let Some(head) = &self.head else {
            data.push(b'\n');
            let (start, frame, is_compressed) = (0, None, false);
            return Request { data, start, document, timeout, expected, frame, is_compressed };
        };
        if self.coding.is_some()
            && let Some(text) = data.get(document.clone())
            && let Some(request) = self.coded(text, &expected, head_end, None)
        {
            return request;
        }
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
        Request { data, start, document, timeout, expected, frame: None, is_compressed: false }
    }

    /// The request of a document that is compressed; `None` if it is sent as it is. It is a frame
    /// if `parts` are given, of which there is none.
    #[cold]
    fn coded(
        &self,
        document: &[u8],
        expected: &Expected,
        head_end: &[u8],
        parts: Option<&OutgoingParts>,
    ) -> Option<Request> {
        let (head, coding) = (self.head.as_ref()?, self.coding.as_ref()?);
        let (mut data, mut framed) = (Vec::new(), Vec::new());
        let body: &[u8] = match parts {
            Some(parts) => {
                write_parts_head(&mut data, head);
                FrameBody::of(parts).write(&mut framed, document, parts);
                &framed
            }
            None => {
                data.extend_from_slice(head);
                document
            }
        };
        let (body, header) = coding.get().encode(body)?;
        write_i64(&mut data, body.len() as i64);
        for part in [header.as_bytes(), head_end, &body] {
            data.extend_from_slice(part);
        }
        let document = data.len() - body.len()..data.len();
        let frame = parts.map(|parts| {
            let parts = parts.clone();
            Box::new(Frame { parts, attached: Vec::new(), is_provisional: false })
        });
        let expected = expected.clone();
        let (start, timeout, is_compressed) = (0, 0..0, true);
        Some(Request { data, start, document, timeout, expected, frame, is_compressed })
    }

    #[inline(never)]
    fn finish_frame(&self, form: Form, written: &WrittenRequest<'_>, results: Results) -> Request {
        let start = self.head_bytes(written.head_end);
        let document = written.data.get(start..).unwrap_or_default();
        let timeout = relative(&written.timeout, start);
        let (expected, parts) = (written.expected.clone(), Some(Arc::new(results.parts)));
        let mut request = self.assemble(document, timeout, expected, written.head_end, parts);
        if let Some(frame) = &mut request.frame {
            frame.is_provisional = form == Form::Provisional;
        }
        request
    }

    /// Writes a request again that is a frame, or becomes one.
    #[inline(never)]
    fn rewrite_general(&self, request: &Request, form: Form) -> PyResult<Request> {
        let parts = request.frame.as_ref().map(|frame| frame.parts.clone()).unwrap_or_default();
        let document = request.data.get(request.document.clone()).unwrap_or_default();
        let timeout = relative(&request.timeout, request.document.start);
        let expected = request.expected.clone();
        Ok(match form {
            Form::Wanted => return Err(undecided()),
            Form::Undecided if !parts.is_empty() => return Err(undecided()),
            Form::Frame if request.is_frame() || may_be_frame(document) => {
                self.assemble(document, timeout, expected, HEAD_END, Some(parts))
            }
            _ => {
                let text = inline_results(document, &parts);
                // The digits are behind all parts, so they are as far from the end.
                let moved = |at: usize| (at + text.len()).saturating_sub(document.len());
                let timeout = match timeout.is_empty() {
                    true => timeout,
                    false => moved(timeout.start)..moved(timeout.end),
                };
                self.assemble(&text, timeout, expected, HEAD_END, None)
            }
        })
    }

    /// Writes a request of a document, whose timeout is replaced by this writer's. `timeout` is
    /// where its digits are in the document.
    fn assemble(
        &self,
        document: &[u8],
        timeout: Range<usize>,
        expected: Expected,
        head_end: &[u8],
        parts: Option<OutgoingParts>,
    ) -> Request {
        let (mut replaced, mut timeout) = (Vec::new(), timeout);
        let document = match self.timeout_ms {
            Some(timeout_ms) if !timeout.is_empty() => {
                let digits = timeout_ms.to_string();
                replaced.extend_from_slice(document);
                replaced.splice(timeout.clone(), digits.bytes());
                timeout.end = timeout.start + digits.len();
                &replaced
            }
            _ => document,
        };
        if self.coding.is_some()
            && parts.as_ref().is_none_or(|parts| parts.is_empty())
            && let Some(request) = self.coded(document, &expected, head_end, parts.as_ref())
        {
            return request;
        }
        let body = parts.as_ref().map(|parts| FrameBody::of(parts));
        let len = body.as_ref().map_or(document.len(), |body| body.len(document.len()));
        let mut data = Vec::new();
        match &self.head {
            Some(head) => {
                data.reserve(head.len() + LENGTH_DIGITS_MAX + head_end.len() + document.len());
                match &parts {
                    Some(_) => write_parts_head(&mut data, head),
                    None => data.extend_from_slice(head),
                }
                write_i64(&mut data, len as i64);
                data.extend_from_slice(head_end);
            }
            None => data.reserve(document.len() + 1),
        }
        let (Some(parts), Some(body)) = (parts, body) else {
            let start = data.len();
            data.extend_from_slice(document);
            let document = start..data.len();
            if self.head.is_none() {
                data.push(b'\n');
            }
            let timeout = absolute(&timeout, start);
            let (start, frame, is_compressed) = (0, None, false);
            return Request { data, start, document, timeout, expected, frame, is_compressed };
        };
        let (document, attached) = body.write(&mut data, document, &parts);
        let timeout = absolute(&timeout, document.start);
        let frame = Some(Box::new(Frame { parts, attached, is_provisional: false }));
        Request { data, start: 0, document, timeout, expected, frame, is_compressed: false }
    }

    fn params(
        &self,
        data: &mut Vec<u8>,
        results: &mut Results,
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
        self.write(data, results, params, "params")
    }

    fn write(
        &self,
        data: &mut Vec<u8>,
        results: &mut Results,
        object: &Bound<'_, PyAny>,
        root: &str,
    ) -> PyResult<()> {
        let start = data.len();
        self.write_once(data, results, object, root)?;
        if results.format == ResultFormat::Parts && !fits_frame(data.len(), results) {
            data.truncate(start);
            *results = Results::default();
            self.write_once(data, results, object, root)?;
        }
        Ok(())
    }

    fn write_once(
        &self,
        data: &mut Vec<u8>,
        results: &mut Results,
        object: &Bound<'_, PyAny>,
        root: &str,
    ) -> PyResult<()> {
        let default = Some(self.default.bind(object.py()));
        let written = convert::write_results(data, usize::MAX, object, default, results);
        written.map_err(|fault| value_error(fault, root))
    }

    fn id(&self, id: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        let mut text = Vec::new();
        convert::write(&mut text, usize::MAX, id).map_err(|fault| value_error(fault, "id"))?;
        Ok(text)
    }
}

const JSON_TYPE: &[u8] = b"\r\nContent-Type: application/json\r\n";
const PARTS_TYPE: &[u8] = b"\r\nContent-Type: application/vnd.ucall.parts\r\n";

/// Appends a head of JSON with the type of frames.
fn write_parts_head(data: &mut Vec<u8>, head: &[u8]) {
    match memchr::memmem::find(head, JSON_TYPE) {
        Some(at) => {
            let (before, rest) = head.split_at(at);
            let after = rest.get(JSON_TYPE.len()..).unwrap_or_default();
            for part in [before, PARTS_TYPE, after] {
                data.extend_from_slice(part);
            }
        }
        None => data.extend_from_slice(head),
    }
}

/// Whether a document that was not written as one of a frame may become one: no object in it looks
/// like one that stands for a part.
fn may_be_frame(document: &[u8]) -> bool {
    let has_mark = memchr::memmem::find(document, b"$part").is_some();
    !has_mark && u32::try_from(document.len()).is_ok()
}

/// A range in a document, of one in what it starts in; empty ones stay so.
fn relative(range: &Range<usize>, start: usize) -> Range<usize> {
    match range.is_empty() {
        true => 0..0,
        false => range.start.saturating_sub(start)..range.end.saturating_sub(start),
    }
}

fn absolute(range: &Range<usize>, start: usize) -> Range<usize> {
    match range.is_empty() {
        true => 0..0,
        false => range.start + start..range.end + start,
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
    priority: Option<i8>,
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
    if let Some(priority) = priority {
        member(data, "priority");
        data.extend_from_slice(priority.to_string().as_bytes());
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
