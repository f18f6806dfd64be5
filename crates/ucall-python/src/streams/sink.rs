//! Takes the items of an async generator from its task.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;

use super::state::{Progress, Waiter};
use super::stream::Stream;
use crate::arguments::Failure;
use crate::errors::Unwritable;

/// Takes the items of one async generator.
#[pyclass(module = "ucall._core")]
pub(crate) struct ItemSink {
    stream: Arc<Stream>,
    event_loop: Py<PyAny>,
    /// Memory for an item.
    text: Vec<u8>,
}

impl ItemSink {
    pub(super) fn new(stream: Arc<Stream>, event_loop: Py<PyAny>) -> Self {
        Self { stream, event_loop, text: Vec::new() }
    }
}

#[pymethods]
impl ItemSink {
    /// Takes an item; of a batch, a list with an entry for each call. `True` if the task has to
    /// await `room` before the next one.
    #[pyo3(signature = (item, /))]
    fn put(&mut self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        let progress = self.stream.put(item, &mut self.text).map_err(to_exception)?;
        Ok(progress != Progress::Continue)
    }

    /// Begins a step of a generator with slots. `False` if the task has to await `room` first.
    fn begin_step(&self, py: Python<'_>) -> PyResult<bool> {
        match self.stream.progress() {
            Progress::Continue => self.stream.begin_step(py).map_err(to_exception),
            Progress::Wait | Progress::End => Ok(false),
        }
    }

    /// Returns an awaitable that is done when the task may go on.
    ///
    /// Raises:
    ///     asyncio.CancelledError: No call is left to answer.
    fn room<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let asyncio = py.import(intern!(py, "asyncio"))?;
        if self.stream.progress() == Progress::End {
            let cancelled = asyncio.getattr(intern!(py, "CancelledError"))?.call0()?;
            return Err(PyErr::from_value(cancelled));
        }
        let future = self.event_loop.bind(py).call_method0(intern!(py, "create_future"))?;
        match self.stream.set_waiter(Waiter::Future(future.clone().unbind())) {
            None => Ok(future),
            Some(_) => asyncio.call_method1(intern!(py, "sleep"), (0,)),
        }
    }

    /// Begins a slice: the task goes on after it has awaited `room`.
    fn begin_slice(&self) {
        self.stream.begin_slice();
    }
}

/// The exception that ends the task: the report of its failure recognises `Unwritable`.
#[cold]
fn to_exception(failure: Failure) -> PyErr {
    let described = match failure {
        Failure::Item(fault) => fault.describe("item"),
        Failure::Result(fault) | Failure::Params(fault) => fault.describe("result"),
        Failure::Raised(error) => return error,
    };
    described.map_or_else(|error| *error, Unwritable::new_err)
}
