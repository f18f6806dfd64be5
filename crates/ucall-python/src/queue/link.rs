//! A link over a transport in Python.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_queue::{ExternalLink, Handle};

use super::pinned_buffers;

/// A link of a communicator over a transport that Python code provides.
///
/// A link is an ordered stream of bytes in each direction, without gaps; it may be cut into pieces
/// anywhere. After a gap, call `handle_closed()` and open another link: the session resumes. The
/// side that connects opens a link with ``dialed=True``, the server one with ``dialed=False`` for
/// each peer.
///
/// - `receive(data)` takes received bytes.
/// - `next_frame()` returns the next bytes to send, or None. ``wake`` is called without arguments,
///   on a thread of ucall, when there may be bytes again and when the link is closed. It must be
///   quick and must not raise (`event.set`, `loop.call_soon_threadsafe`).
/// - `is_full`: stop calling `receive` until ``wake`` is called.
/// - Flow control: at most about ``in_flight_size`` bytes wait in the link. The rest stays in the
///   queue, where it may be cancelled or dropped. So a transport that calls `next_frame` only as
///   fast as it can send bounds the memory of both.
/// - `is_closed`: ucall has closed the link and all output is fetched; close the stream.
#[pyclass(frozen, module = "ucall._core", name = "QueueLink")]
pub(crate) struct QueueLink {
    pub(super) handle: Arc<Handle>,
    pub(super) link: Arc<ExternalLink>,
}

#[pymethods]
impl QueueLink {
    /// Takes received bytes, in order.
    fn receive(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        crate::ffi::with_buffer(data, |bytes| self.handle.link_received(&self.link, bytes))
    }

    /// Whether `receive` must not be called until `wake` is called.
    #[getter]
    fn is_full(&self) -> bool {
        self.link.is_full()
    }

    /// The next bytes to send, at most ``size``, or None.
    #[pyo3(signature = (size = 65_536))]
    fn next_frame<'py>(
        &self,
        py: Python<'py>,
        size: usize,
    ) -> Option<Bound<'py, pyo3::types::PyBytes>> {
        pinned_buffers::release_pending(py);
        let bytes = self.handle.link_next(&self.link, size)?;
        Some(pyo3::types::PyBytes::new(py, &bytes))
    }

    /// The bytes that wait for `next_frame`.
    #[getter]
    fn in_flight(&self) -> usize {
        self.link.waiting_bytes()
    }

    /// Whether ucall has closed the link and all output is fetched.
    #[getter]
    fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Reports that the transport's stream failed or was closed.
    fn handle_closed(&self) {
        self.handle.link_closed(&self.link);
    }
}
