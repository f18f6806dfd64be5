//! What `receive` and `send` return: an awaitable that may be done already.
//!
//! It has the methods of a coroutine, so `asyncio.create_task(receive())` works, too.
//!
//! An `await` that is done costs no exception: an iterator that ends without one has the result
//! None, and a value that is neither a tuple nor an exception goes into `StopIteration` as it is.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use super::exchange::Exchange;
use crate::ffi::DropAttached;

/// An awaitable that is done, or waits for a future.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Awaitable(Mutex<Step>);

/// What an awaitable does when it is stepped.
enum Step {
    /// Returns None.
    Done,
    Return(Py<PyAny>),
    Wait {
        iterator: Py<PyIterator>,
        then: Then,
    },
    Ended,
}

/// What follows a wait.
pub(super) enum Then {
    /// The next message of a request.
    Receive(Arc<DropAttached<Exchange>>),
    /// There is room for more of the response, or its client has left.
    Send(Arc<DropAttached<Exchange>>),
}

impl Awaitable {
    /// One that returns None at once.
    #[inline]
    pub(super) fn done() -> Self {
        Self(Mutex::new(Step::Done))
    }

    /// One that returns a message at once.
    #[inline]
    pub(super) fn of(message: Py<PyAny>) -> Self {
        Self(Mutex::new(Step::Return(message)))
    }

    /// One that awaits another awaitable before.
    pub(super) fn after(awaited: &Bound<'_, PyAny>, then: Then) -> PyResult<Self> {
        let iterator = awaited.call_method0(intern!(awaited.py(), "__await__"))?;
        let iterator = iterator.cast_into::<PyIterator>()?.unbind();
        Ok(Self(Mutex::new(Step::Wait { iterator, then })))
    }

    /// Ends an awaitable that is done with None; `false` for any other one.
    #[inline]
    fn take_done(&self) -> bool {
        let mut step = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_done = matches!(*step, Step::Done);
        if is_done {
            *step = Step::Ended;
        }
        is_done
    }

    /// Sets the next step, and returns that which is due. The lock is not held while code runs.
    fn replace(&self, step: Step) -> Step {
        mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), step)
    }

    /// Yields what is to be awaited, or raises `StopIteration` with the value, a dict or None.
    #[inline]
    fn step(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.replace(Step::Ended) {
            Step::Return(value) => Err(PyStopIteration::new_err(value)),
            Step::Done => Err(PyStopIteration::new_err(py.None())),
            Step::Wait { iterator, then } => self.step_wait(py, iterator, then),
            Step::Ended => {
                Err(PyRuntimeError::new_err("cannot reuse already awaited receive() or send()"))
            }
        }
    }

    fn step_wait(
        &self,
        py: Python<'_>,
        mut iterator: Py<PyIterator>,
        then: Then,
    ) -> PyResult<Py<PyAny>> {
        loop {
            if let Some(awaited) = iterator.bind(py).clone().next() {
                self.replace(Step::Wait { iterator, then });
                return Ok(awaited?.unbind());
            }
            let value = match &then {
                Then::Send(exchange) => exchange.go_on().map(|()| py.None())?,
                Then::Receive(exchange) => match exchange.next_message(py)? {
                    Some(message) => message.into_any().unbind(),
                    None => {
                        let future = exchange.wait_for_message(py)?;
                        let next = future.call_method0(intern!(py, "__await__"))?;
                        iterator = next.cast_into::<PyIterator>()?.unbind();
                        continue;
                    }
                },
            };
            return Err(PyStopIteration::new_err(value));
        }
    }
}

#[pymethods]
impl Awaitable {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if self.take_done() {
            return Ok(None);
        }
        self.step(py).map(Some)
    }

    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        self.step(py)
    }

    /// Raises the exception where the awaitable waits: it ends.
    #[pyo3(signature = (exception, value = None, traceback = None))]
    fn throw(
        &self,
        exception: &Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = traceback;
        drop(self.replace(Step::Ended));
        let is_type = exception.is_instance_of::<pyo3::types::PyType>();
        Err(match value {
            Some(value) if is_type => PyErr::from_value(value),
            None if is_type => PyErr::from_value(exception.call0()?),
            _ => PyErr::from_value(exception.clone()),
        })
    }

    fn close(&self) {
        drop(self.replace(Step::Ended));
    }
}
