//! Received messages as Python objects.

use std::ffi::c_int;

use bytes::Bytes;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi as raw;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use ucall_queue::{Body, Encoding, Segment};

use super::pickle::PickleLoader;
use crate::ffi;

/// Received bytes, exported through the buffer protocol.
#[pyclass(frozen, module = "ucall._core", name = "Block")]
pub(crate) struct Block {
    segment: Segment,
}

#[pymethods]
impl Block {
    fn __len__(&self) -> usize {
        self.segment.as_raw().1
    }

    /// # Safety
    /// `view` must be a buffer structure to fill, as the buffer protocol defines.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut raw::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let (start, length) = slf.get().segment.as_raw();
        // Memory that is shared with other messages or another process is read-only.
        let readonly = c_int::from(!matches!(slf.get().segment, Segment::Owned(_)));
        let (memory, len) = (start.cast_mut().cast(), length as raw::Py_ssize_t);
        // SAFETY: the object owns the memory, and the view holds a reference to the object. Python
        // code may write the memory of an owned segment, because no Rust code reads it any more.
        let state =
            unsafe { raw::PyBuffer_FillInfo(view, slf.as_ptr(), memory, len, readonly, flags) };
        if state == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut raw::Py_buffer) {}
}

/// The loaders of received messages.
pub(super) struct Reader {
    /// Called with the stream and the list of its out-of-band buffers.
    pub(super) load: Py<PyAny>,
    /// Called with a `bytes` or `str` that the peer sent unchanged; `None` returns it as it is.
    pub(super) load_plain: Option<Py<PyAny>>,
}

impl Reader {
    pub(super) fn read<'py>(
        &self,
        py: Python<'py>,
        encoding: Encoding,
        body: Body,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (first, rest) = match body {
            Body::One(first) => (first, Vec::new()),
            Body::Many(mut segments) if !segments.is_empty() => {
                let rest = segments.split_off(1);
                (segments.pop().unwrap_or(Segment::Shared(Bytes::new())), rest)
            }
            Body::Many(_) => (Segment::Shared(Bytes::new()), Vec::new()),
        };
        let plain = match encoding {
            Encoding::Bytes => {
                let (start, length) = first.as_raw();
                // SAFETY: `first` keeps the memory readable. Its bytes are copied once, whatever
                // they are.
                unsafe { PyBytes::from_ptr(py, start, length) }.into_any()
            }
            // Memory that could change after the check is copied first.
            Encoding::Text => match std::str::from_utf8(&first.bytes()) {
                Ok(text) => PyString::new(py, text).into_any(),
                Err(_) => return Err(PyValueError::new_err("a peer sent text that is no UTF-8")),
            },
            Encoding::Serialized => return self.read_serialized(py, first, rest),
        };
        match &self.load_plain {
            Some(load) => ffi::call(load.bind(py), [&plain]),
            None => Ok(plain),
        }
    }

    fn read_serialized<'py>(
        &self,
        py: Python<'py>,
        first: Segment,
        rest: Vec<Segment>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let buffers = PyList::empty(py);
        for segment in rest {
            buffers.append(Bound::new(py, Block { segment })?)?;
        }
        let load = self.load.bind(py);
        if let Ok(loader) = load.cast_exact::<PickleLoader>() {
            return loader.get().load(py, &first.bytes(), buffers);
        }
        let stream = Bound::new(py, Block { segment: first })?;
        ffi::call(load, [stream.as_any(), buffers.as_any()])
    }
}
