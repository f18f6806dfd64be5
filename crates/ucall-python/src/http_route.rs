//! Routes (`Server.http`): functions that take a `ucall.HttpRequest` and answer with a response.
//!
//! A route is a procedure whose only parameter is the request, in the place of a context. So it
//! runs in all the ways that calls do. Its result is the bytes of a response, which
//! `python/ucall/_routes/adapt.py` writes.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use ucall_proto::http1::{Head, Methods};
use ucall_proto::{Call, MemoryBudget, Reservation};
use ucall_server::Caller;

use crate::context::Context;
use crate::convert::Convert;
use crate::functions::Functions;
use crate::procedure::{Param, Procedure, Signature};

/// One HTTP request, as the function of a route gets it.
#[pyclass(frozen, module = "ucall", name = "HttpRequest")]
pub(crate) struct HttpRequest {
    /// Its method is the path.
    context: Context,
    method: &'static str,
    query: Vec<u8>,
    body: Py<PyBytes>,
    /// The memory of the body.
    _reserved: Reservation,
}

impl Signature {
    /// The signature of a function that takes a request.
    pub(crate) fn of_route() -> Self {
        let name = "request".to_owned();
        let request = Param::new(name, false, Convert::Any, None);
        Self { params: vec![request], positional: 1, context: Some(0), ..Self::default() }
    }
}

impl HttpRequest {
    /// The request of a route, whose body is reserved from `budget`.
    pub(crate) fn object(
        py: Python<'_>,
        functions: &Functions,
        budget: &MemoryBudget,
        procedure: &Procedure,
        call: &Call<'_>,
        body: &[u8],
        caller: &Caller,
    ) -> PyResult<Py<PyAny>> {
        let identity = functions.contexts.identity().cloned();
        let deadline = functions.timing.deadline_of(procedure, call);
        let request = Self {
            context: Context::new(call, caller, identity, deadline, Arc::default(), None),
            method: call.head.and_then(|head| head.method().name()).unwrap_or_default(),
            query: call.head.map(query).unwrap_or_default(),
            body: PyBytes::new(py, body).unbind(),
            _reserved: budget.reserve_large(body.len()),
        };
        Ok(Bound::new(py, request)?.into_any().unbind())
    }
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

#[pymethods]
impl HttpRequest {
    /// The method, in capitals; HEAD for a request that a GET route answers without its body.
    #[getter]
    fn method(&self) -> &'static str {
        self.method
    }

    /// The path as it was sent, with its percent-encoding.
    #[getter]
    fn path(&self) -> &str {
        self.context.method()
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

    /// The body; empty without one.
    #[getter]
    fn body(&self, py: Python<'_>) -> Py<PyBytes> {
        self.body.clone_ref(py)
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
