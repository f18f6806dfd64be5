//! A message of the server that answers no request: an item of a stream, or a notification.

use bytes::Bytes;
use pyo3::prelude::*;
use ucall_proto::json::{Reader, ValueKind};
use ucall_proto::{DRAIN, Response, ResponseBody};

use super::values::build;
use crate::convert::Convert;

/// The method of an item of a stream (Language Server Protocol 3.17, "Progress Support").
const PROGRESS: &[u8] = b"$/progress";

/// A notification, parsed when asked.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct Notification {
    len: usize,
    method: Bytes,
    params: Option<Bytes>,
    /// The token and the value of an item.
    item: Option<(Bytes, Bytes)>,
}

impl Notification {
    /// The notification in the object of `text`, if it is one.
    pub(super) fn of(text: &Bytes, response: &Response<'_>) -> Option<Self> {
        let (ResponseBody::Request { method, params }, None) = (response.body, response.id) else {
            return None;
        };
        if Reader::new(method).kind() != ValueKind::String {
            return None;
        }
        let (method, params) = (text.slice_ref(method), params.map(|it| text.slice_ref(it)));
        let is_progress = method.get(1..method.len() - 1) == Some(PROGRESS);
        let item = params.as_ref().filter(|_| is_progress).and_then(item_of);
        Some(Self { len: text.len(), method, params, item })
    }

    /// How many requests the server has read, if it drains; `None` within as long as it reads on.
    pub(super) fn drain(&self) -> Option<Option<u64>> {
        (self.method.get(1..self.method.len() - 1) == Some(DRAIN.as_bytes())).then(|| {
            let [read] = Reader::new(self.params.as_ref()?).members([b"read"])?;
            std::str::from_utf8(read?).ok()?.parse().ok()
        })
    }
}

#[pymethods]
impl Notification {
    /// The name of the method.
    #[getter]
    fn method<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        build(py, &self.method, &Convert::Any, "method")
    }

    /// The params: a dict, a list, or None.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.params {
            Some(params) => build(py, params, &Convert::Any, "params"),
            None => Ok(py.None().into_bound(py)),
        }
    }

    /// The token of an item of a stream; None of another notification.
    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.item {
            Some((token, _)) => build(py, token, &Convert::Any, "token"),
            None => Ok(py.None().into_bound(py)),
        }
    }

    /// The item of a stream; None of another notification.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.item {
            Some((_, value)) => build(py, value, &Convert::Any, "value"),
            None => Ok(py.None().into_bound(py)),
        }
    }

    /// Its bytes as received.
    fn __len__(&self) -> usize {
        self.len
    }
}

/// The token and the value in the params of an item.
fn item_of(params: &Bytes) -> Option<(Bytes, Bytes)> {
    let [token, value] = Reader::new(params).members([b"token", b"value"])?;
    let (token, value) = (token?, value?);
    let is_token = matches!(Reader::new(token).kind(), ValueKind::String | ValueKind::Number);
    is_token.then(|| (params.slice_ref(token), params.slice_ref(value)))
}
