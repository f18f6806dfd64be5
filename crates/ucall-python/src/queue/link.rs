//! A link over a transport in Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_queue::{ByteTunnel, ExternalLink, Handle, TunnelEvent};

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
    fn next_frame<'py>(&self, py: Python<'py>, size: usize) -> Option<Bound<'py, PyBytes>> {
        pinned_buffers::release_pending(py);
        let mut bytes = Vec::new();
        self.handle.link_next(&self.link, size, &mut bytes);
        (!bytes.is_empty()).then(|| PyBytes::new(py, &bytes))
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

/// A link through a broker of messages: its pieces, and credit for them.
///
/// - `handle_message(data)` takes a message of the other side, and says what it was.
/// - `next_message(piece_bytes_max, links)` returns the next message to send, or None. ``links`` is
///   the number of links that share the connection.
#[pyclass(frozen, module = "ucall._core", name = "QueueTunnel")]
pub(crate) struct QueueTunnel {
    handle: Arc<Handle>,
    link: Arc<ExternalLink>,
    tunnel: Mutex<ByteTunnel>,
}

#[pymethods]
impl QueueTunnel {
    #[new]
    fn new(link: &QueueLink, is_dialed: bool) -> Self {
        let tunnel = Mutex::new(ByteTunnel::new(is_dialed));
        Self { handle: link.handle.clone(), link: link.link.clone(), tunnel }
    }

    /// Handles a message of the other side; returns what it was.
    fn handle_message(&self, data: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        crate::ffi::with_buffer(data, |message| match self.tunnel().handle_message(message) {
            TunnelEvent::Piece(bytes) => {
                self.handle.link_received(&self.link, bytes);
                "piece"
            }
            TunnelEvent::Credit => "credit",
            TunnelEvent::Closed => "closed",
            TunnelEvent::Lost => "lost",
            TunnelEvent::Ignored => "ignored",
        })
    }

    /// The next message to send, or None.
    fn next_message<'py>(
        &self,
        py: Python<'py>,
        piece_bytes_max: usize,
        links: usize,
    ) -> Option<Bound<'py, PyBytes>> {
        pinned_buffers::release_pending(py);
        let message = self.tunnel().next_message(
            piece_bytes_max,
            links,
            || !self.link.is_full(),
            |bytes_max, output| self.handle.link_next(&self.link, bytes_max, output),
        )?;
        Some(PyBytes::new(py, &message))
    }

    /// Whether a piece has arrived.
    #[getter]
    fn has_received(&self) -> bool {
        self.tunnel().has_received()
    }
}

impl QueueTunnel {
    fn tunnel(&self) -> MutexGuard<'_, ByteTunnel> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
