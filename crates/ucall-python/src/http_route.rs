//! Routes (`Server.http`): functions that take a `ucall.HttpRequest` and answer with a response.
//!
//! A route is a procedure whose only parameter is the request, in the place of a context. So it
//! runs in all the ways that calls do. Its result is the bytes of a response, which
//! `python/ucall/_routes/adapt.py` writes.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use ucall_proto::http1::{Head, Methods};
use ucall_proto::{Call, MemoryBudget, Reservation, ResultFormat, percent_decoded};
use ucall_server::{Caller, PathPattern};

use crate::arguments::Failure;
use crate::context::{Context, ContextParts};
use crate::convert::{self, ConversionFault, Convert, Results};
use crate::errors;
use crate::ffi::DropAttached;
use crate::functions::Functions;
use crate::procedure::{Executor, Param, Procedure, Signature};
use crate::request_body::{ArrivingBody, BODY_BYTES_MAX, BodyReceiver};

/// One HTTP request, as the function of a route gets it.
#[pyclass(frozen, module = "ucall", name = "HttpRequest")]
pub(crate) struct HttpRequest {
    /// Its method is the path.
    context: Context,
    method: &'static str,
    query: Vec<u8>,
    path_params: Vec<(String, String)>,
    body: Body,
    /// Whether the function is async.
    is_async: bool,
    /// The form that was read, which ends with the request.
    form: Mutex<Option<Py<PyAny>>>,
    /// The memory of the body, and of what the function keeps of it.
    reserved: Mutex<Reservation>,
    /// That of the body alone.
    body_bytes: usize,
    budget: MemoryBudget,
}

/// How the function gets the body.
enum Body {
    Whole(Py<PyBytes>),
    /// All of it, but as if it was arriving.
    Streamed(Py<PyBytes>),
    Arriving(Arc<DropAttached<ArrivingBody>>),
}

/// A request that begins.
pub(crate) struct RouteRequest {
    /// The `ucall.HttpRequest`.
    pub(crate) object: DropAttached<Py<PyAny>>,
    /// Its body, if that is received while it arrives.
    pub(crate) body: Option<Arc<DropAttached<ArrivingBody>>>,
}

impl Signature {
    /// The signature of a function that takes a request.
    pub(crate) fn of_route() -> Self {
        let name = "request".to_owned();
        let request = Param::new(name, false, Convert::Any, None);
        Self { params: vec![request], positional: 1, context: Some(0), ..Self::default() }
    }
}

impl RouteRequest {
    /// The request of a route, whose body is reserved from `budget`. Without a body that follows in
    /// parts.
    pub(crate) fn new(
        py: Python<'_>,
        functions: &Functions,
        budget: &MemoryBudget,
        procedure: &Procedure,
        call: &Call<'_>,
        body: Option<&[u8]>,
        caller: &Caller,
    ) -> Result<Self, Failure> {
        let route = procedure.route.as_ref();
        let arriving = body.is_none().then(|| Arc::new(DropAttached::new(ArrivingBody::new())));
        let body_bytes = body.map_or(2 * BODY_BYTES_MAX, <[u8]>::len);
        let whole = || PyBytes::new(py, body.unwrap_or_default()).unbind();
        let body = match &arriving {
            Some(body) => Body::Arriving(body.clone()),
            None if route.is_some_and(|route| route.streams_body) => Body::Streamed(whole()),
            None => Body::Whole(whole()),
        };
        let pattern = route.and_then(|route| route.pattern.as_ref());
        let path = call.head.map(|head| head.path_and_query().0).unwrap_or_default();
        let path_params = pattern.map(|pattern| path_params(pattern, path)).transpose();
        let identity = functions.contexts.identity().cloned();
        let deadline = functions.timing.deadline_of(procedure, call);
        let parts = ContextParts { identity, deadline, ..ContextParts::default() };
        let request = HttpRequest {
            context: Context::new(call, caller, parts),
            method: call.head.and_then(|head| head.method().name()).unwrap_or_default(),
            query: call.head.map(query).unwrap_or_default(),
            path_params: path_params.map_err(Failure::Params)?.unwrap_or_default(),
            body,
            is_async: procedure.mode.executor() == Some(Executor::Task),
            form: Mutex::default(),
            reserved: Mutex::new(budget.reserve_large(body_bytes)),
            body_bytes,
            budget: budget.clone(),
        };
        let object = DropAttached::new(Bound::new(py, request)?.into_any().unbind());
        Ok(Self { object, body: arriving })
    }
}

/// The JSON text of a value that a route has returned, as of a function that is called without
/// JSON-RPC.
#[pyfunction]
pub(crate) fn json_text<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    encode: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut text = Vec::new();
    let mut results = Results { format: ResultFormat::Lists, ..Results::default() };
    convert::write_results(&mut text, usize::MAX, value, Some(encode), &mut results)
        .map_err(|fault| errors::unwritable(fault, "result"))?;
    Ok(PyBytes::new(py, &text))
}

/// The set of the methods with these names.
pub(crate) fn methods(names: &[String]) -> PyResult<Methods> {
    names.iter().try_fold(Methods::default(), |methods, name| match Methods::named(name) {
        Some(method) => Ok(methods.union(method)),
        None => Err(PyValueError::new_err(format!(
            "methods: expected GET, POST, PUT, PATCH or DELETE, got {name:?}"
        ))),
    })
}

fn query(head: &Head<'_>) -> Vec<u8> {
    head.path_and_query().1.to_vec()
}

/// The params of a path that matches, without percent-encoding.
fn path_params(
    pattern: &PathPattern,
    path: &[u8],
) -> Result<Vec<(String, String)>, ConversionFault> {
    let decoded = pattern.params(path).map(|(name, segment)| {
        let text = percent_decoded(segment).and_then(|bytes| String::from_utf8(bytes).ok());
        match text.filter(|text| !text.contains('\0')) {
            Some(text) => Ok((name.to_owned(), text)),
            None => {
                let expected = "expected UTF-8 without NUL, percent-encoded";
                Err(ConversionFault::value(expected).at_key(name.as_bytes()))
            }
        }
    });
    decoded.collect()
}

#[pymethods]
impl HttpRequest {
    /// The method, in capitals; HEAD for a request that a GET route answers without its body.
    #[getter]
    fn method(&self) -> &'static str {
        self.method
    }

    /// The path as it was sent, with its percent-encoding.
    #[getter]
    fn path(&self) -> Cow<'_, str> {
        self.context.method()
    }

    /// The params of the route's path, such as ``name`` of ``/notes/{name}``, without
    /// percent-encoding. They may contain ``/`` and be ``..``.
    #[getter]
    fn path_params<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let params = PyDict::new(py);
        for (name, value) in &self.path_params {
            params.set_item(name, value)?;
        }
        Ok(params)
    }

    /// The text after the ``?``, with its percent-encoding; empty without one.
    #[getter]
    fn query<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &String::from_utf8_lossy(&self.query))
    }

    /// The headers by their names in lower case. Repeated headers are joined by ", ",
    /// those of Cookie by "; ".
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.context.headers(py)
    }

    /// The headers in their order, each with its name in lower case and its value.
    #[getter]
    fn header_list(&self) -> Vec<(String, String)> {
        self.context.header_list()
    }

    /// The body; empty without one. Raises RuntimeError of a route with ``stream_body=True``.
    #[getter]
    fn body(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        match &self.body {
            Body::Whole(body) => Ok(body.clone_ref(py)),
            Body::Streamed(_) | Body::Arriving(_) => Err(PyRuntimeError::new_err(
                "body: the route has stream_body=True: receive it by stream() or form()",
            )),
        }
    }

    /// The body in parts of bytes, while it arrives if the route has ``stream_body=True``: an async
    /// iterator in an async function, else a plain one. It raises CancelledError when the client
    /// leaves, the deadline passes or the body is invalid.
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let module = py.import(intern!(py, "ucall._routes.streaming"))?;
        let name = match (&self.body, self.is_async) {
            (Body::Arriving(_), true) => intern!(py, "AsyncArriving"),
            (Body::Arriving(_), false) => intern!(py, "arriving"),
            (_, true) => intern!(py, "AsyncWhole"),
            (_, false) => intern!(py, "whole"),
        };
        match &self.body {
            Body::Whole(body) | Body::Streamed(body) => module.call_method1(name, (body,)),
            Body::Arriving(body) => {
                module.call_method1(name, (Bound::new(py, BodyReceiver::new(body.clone()))?,))
            }
        }
    }

    /// The form in the body: a mapping of its texts by their names, with its files in ``files``.
    /// To be awaited in an async function. Raises `RPCError` (-32602) for an invalid one.
    #[pyo3(signature = (
        *, max_parts = 100, max_header_bytes = 4_096, max_text_bytes = 1_048_576,
        max_file_bytes = None, spool_bytes = 65_536
    ))]
    fn form<'py>(
        slf: Bound<'py, Self>,
        max_parts: usize,
        max_header_bytes: usize,
        max_text_bytes: usize,
        max_file_bytes: Option<usize>,
        spool_bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let limits = PyDict::new(py);
        limits.set_item("max_parts", max_parts)?;
        limits.set_item("max_header_bytes", max_header_bytes)?;
        limits.set_item("max_text_bytes", max_text_bytes)?;
        limits.set_item("max_file_bytes", max_file_bytes)?;
        limits.set_item("spool_bytes", spool_bytes)?;
        let read = if slf.get().is_async { intern!(py, "read_later") } else { intern!(py, "read") };
        let module = py.import(intern!(py, "ucall._routes.forms"))?;
        module.call_method(read, (slf,), Some(&limits))
    }

    /// The form that was read.
    #[getter]
    fn _form(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let form = self.form.lock().unwrap_or_else(PoisonError::into_inner);
        form.as_ref().map(|form| form.clone_ref(py))
    }

    /// Counts bytes that are kept of the body among those that the server holds.
    fn _hold(&self, bytes: usize) {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.resize(self.body_bytes + bytes, &self.budget);
    }

    /// Keeps the form that is read, which is closed after the response.
    fn _keep_form(&self, form: Py<PyAny>) {
        *self.form.lock().unwrap_or_else(PoisonError::into_inner) = Some(form);
    }

    /// The client's address and port, or its `ucall.Process`: see `Context.peer`.
    #[getter]
    fn peer<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.context.peer(py)
    }

    /// The user that the server's ``auth`` returned; None without ``auth``.
    #[getter]
    fn user(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.context.user(py)
    }

    fn __repr__(&self) -> String {
        format!("<ucall.HttpRequest {} {}>", self.method, self.path())
    }
}
