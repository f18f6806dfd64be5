//! The parts of a request, which are sent behind its document.

use std::ops::Range;
use std::os::raw::c_int;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use ucall_proto::arrays::npy;
use ucall_proto::{ResultPart, frame_padding, write_frame_head};

use crate::convert::Results;

/// Bytes of this length are sent from where they are, without a copy.
const IN_PLACE_BYTES_MIN: usize = 64 * 1024;
/// The head of a frame, without the lengths of its parts, and each of those.
pub(super) const FRAME_HEAD_BYTES: usize = 8;
pub(super) const LENGTH_BYTES: usize = 8;
/// A request with more parts is JSON: it is the default of the server's `max_parts`.
const PARTS_MAX: usize = 1024;

/// The parts of a request, in the order of the document.
pub(super) type OutgoingParts = Arc<Vec<ResultPart>>;

/// What a request that is a frame has beside its bytes.
pub(super) struct Frame {
    pub(super) parts: OutgoingParts,
    /// The bytes that are not copied, each with the position in the request's data before which
    /// they are sent.
    pub(super) attached: Vec<(usize, Bytes)>,
    /// Whether it has to be written again before it is sent.
    pub(super) is_provisional: bool,
}

/// Whether a document of this length with these values may be that of a frame.
pub(super) fn fits_frame(document: usize, results: &Results) -> bool {
    let fits = results.parts.len() <= PARTS_MAX && u32::try_from(document).is_ok();
    fits && !results.has_mark
}

/// Writes the frame of some parts.
pub(super) struct FrameBody {
    pub(super) headers: Vec<Vec<u8>>,
    pub(super) lengths: Vec<usize>,
}

impl FrameBody {
    pub(super) fn of(parts: &[ResultPart]) -> Self {
        let header = |part: &ResultPart| {
            let mut header = Vec::new();
            if let Some(tensor) = &part.tensor {
                npy::write_header(&mut header, tensor);
            }
            header
        };
        let headers: Vec<_> = parts.iter().map(header).collect();
        let len = |(header, part): (&Vec<u8>, &ResultPart)| header.len() + part.bytes.len();
        let lengths = headers.iter().zip(parts).map(len).collect();
        Self { headers, lengths }
    }

    /// The length of the frame.
    pub(super) fn len(&self, document: usize) -> usize {
        let head = FRAME_HEAD_BYTES + LENGTH_BYTES * self.lengths.len() + document;
        self.lengths.iter().fold(head, |len, part| len + frame_padding(len).len() + part)
    }

    /// Appends the frame to `data`. Returns where its document is, and the bytes that belong in
    /// between.
    pub(super) fn write(
        &self,
        data: &mut Vec<u8>,
        document: &[u8],
        parts: &[ResultPart],
    ) -> (Range<usize>, Vec<(usize, Bytes)>) {
        let begin = data.len();
        let is_written = write_frame_head(data, document.len(), &self.lengths).is_ok();
        debug_assert!(is_written, "see `fits_frame`");
        let start = data.len();
        data.extend_from_slice(document);
        let range = start..data.len();
        let (mut len, mut attached) = (data.len() - begin, Vec::new());
        for ((part, header), part_len) in parts.iter().zip(&self.headers).zip(&self.lengths) {
            let zeros = frame_padding(len);
            data.extend_from_slice(zeros);
            data.extend_from_slice(header);
            match part.bytes.len() {
                IN_PLACE_BYTES_MIN.. => attached.push((data.len(), part.bytes.clone())),
                _ => data.extend_from_slice(&part.bytes),
            }
            len += zeros.len() + part_len;
        }
        (range, attached)
    }
}

/// Bytes that are not copied, as a buffer.
#[pyclass(frozen, module = "ucall._core")]
struct AttachedMemory {
    bytes: Bytes,
}

#[pymethods]
impl AttachedMemory {
    /// Shows the bytes.
    ///
    /// # Safety
    /// The interpreter passes a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let (data, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: the view holds a reference to this object, which keeps the bytes in place. They
        // are read-only, and a writable view is refused.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A view of bytes that are not copied, for Python.
pub(super) fn view<'py>(py: Python<'py>, bytes: &Bytes) -> PyResult<Bound<'py, PyAny>> {
    let memory = Bound::new(py, AttachedMemory { bytes: bytes.clone() })?;
    Ok(PyMemoryView::from(memory.as_any())?.into_any())
}
