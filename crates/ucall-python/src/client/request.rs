//! A request as bytes, which may be sent more than once.

use std::io::Write;
use std::ops::Range;
use std::os::raw::c_int;

use bytes::Bytes;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use ucall_proto::websocket::{Opcode, write_client_frame};

use super::request_parts::{Frame, view};
use super::support::undecided;

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

/// A request as it is sent. It shows its bytes as a buffer.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Request {
    pub(super) data: Vec<u8>,
    /// Where it starts in `data`.
    pub(super) start: usize,
    /// Where its document is.
    pub(super) document: Range<usize>,
    /// Where the digits of its `timeout_ms` are; empty without one.
    pub(super) timeout: Range<usize>,
    pub(super) expected: Expected,
    /// Of a request that is a frame.
    pub(super) frame: Option<Box<Frame>>,
    /// Whether its body is in a coding.
    pub(super) is_compressed: bool,
}

impl Request {
    /// The bytes in memory of its own: all of them, unless it has [`attached`](Self::attached)
    /// ones.
    pub(super) fn bytes(&self) -> &[u8] {
        self.data.get(self.start..).unwrap_or_default()
    }

    /// Bytes between those, each with the position in `data` before which they go.
    pub(super) fn attached(&self) -> &[(usize, Bytes)] {
        self.frame.as_deref().map_or(&[], |frame| &frame.attached)
    }

    /// Whether it is a frame.
    pub(super) fn is_frame(&self) -> bool {
        self.frame.is_some()
    }

    /// Raises `Undecided` if it cannot be sent before it is written again for a server.
    pub(super) fn check_decided(&self) -> PyResult<()> {
        match self.frame.as_deref().is_some_and(|frame| frame.is_provisional) {
            true => Err(undecided()),
            false => Ok(()),
        }
    }

    /// The bytes in the order in which they are sent, each in one piece of memory.
    pub(super) fn pieces(&self) -> Vec<&[u8]> {
        let mut start = self.start;
        let mut pieces = Vec::new();
        for (end, attached) in self.attached() {
            pieces.push(self.data.get(start..*end).unwrap_or_default());
            pieces.push(attached);
            start = *end;
        }
        pieces.push(self.data.get(start..).unwrap_or_default());
        pieces
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

    /// Whether its body is in a coding.
    #[getter]
    fn is_compressed(&self) -> bool {
        self.is_compressed
    }

    /// A view of its bytes, which are joined if they are in several places.
    #[getter]
    fn data<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyMemoryView>> {
        let request = slf.get();
        request.check_decided()?;
        if request.attached().is_empty() {
            return PyMemoryView::from(slf.as_any());
        }
        let joined = PyBytes::new_with(slf.py(), request.len(), |mut room| {
            Ok(request.pieces().into_iter().try_for_each(|piece| room.write_all(piece))?)
        })?;
        PyMemoryView::from(joined.as_any())
    }

    /// Views of its bytes, in each place where they are.
    #[getter(pieces)]
    fn views<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (py, request) = (slf.py(), slf.get());
        request.check_decided()?;
        let own = PyMemoryView::from(slf.as_any())?.into_any();
        if request.attached().is_empty() {
            return Ok(vec![own]);
        }
        let (mut views, mut start) = (Vec::new(), 0);
        let slice = |start, end| own.get_item(PySlice::new(py, start as isize, end as isize, 1));
        for (at, attached) in request.attached() {
            let end = at - request.start;
            views.extend([slice(start, end)?, view(py, attached)?]);
            start = end;
        }
        views.push(slice(start, request.bytes().len())?);
        Ok(views)
    }

    /// Writes its bytes to a transport of asyncio, which may send them when the program changes its
    /// arrays again: after a notification, or a call that was cancelled.
    fn write_to(slf: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        transport.call_method1(intern!(slf.py(), "write"), (Self::data(slf)?,))?;
        Ok(())
    }

    /// Its message on a WebSocket, masked by a random key of 4 bytes.
    fn websocket_frame<'py>(slf: &Bound<'py, Self>, key: [u8; 4]) -> PyResult<Bound<'py, PyBytes>> {
        let (py, request) = (slf.py(), slf.get());
        request.check_decided()?;
        let mut frame = Vec::new();
        if !request.is_frame() {
            write_client_frame(&mut frame, Opcode::Text, request.bytes(), key);
            return Ok(PyBytes::new(py, &frame));
        }
        write_client_frame(&mut frame, Opcode::Binary, &request.pieces().concat(), key);
        Ok(PyBytes::new(py, &frame))
    }

    /// All its bytes.
    #[pyo3(name = "__len__")]
    pub(super) fn len(&self) -> usize {
        let attached: usize = self.attached().iter().map(|(_, bytes)| bytes.len()).sum();
        self.bytes().len() + attached
    }

    /// Shows the bytes in its own memory, which never change.
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
