//! A link that a transport in Python carries.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_queue::{ExternalTransport, Handle};

use super::pinned_buffers;

/// Carries a communicator's sessions over anything that Python can send bytes with.
///
/// A link is a stream of bytes each way that keeps their order. Where it is cut into pieces does
/// not matter, but nothing may be missing in the middle: when the carrier cannot tell, it calls
/// `closed` and opens another link, which goes on where the session was. The side that connects
/// opens a link with ``dialed=True``, the server with ``dialed=False`` for each peer that speaks.
///
/// - `receive(data)` hands in what came.
/// - `next_frame()` gives the next bytes to send, or None when there are none just now. `wake` was
///   called, without arguments, on a thread of ucall's, whenever there may be some, and when the
///   link is over; it must be quick and must not raise (`event.set`, `loop.call_soon_threadsafe`).
/// - `is_full`: so much was handed in that the communicator has not taken yet that the carrier is
///   to receive no more for now. `wake` is called when that is over.
/// - Flow control: at most about ``in_flight_size`` bytes wait in the link; the rest stays in the
///   queue, where it may be cancelled or dropped, until they are fetched. So a carrier that fetches
///   only as fast as it can send (so many publications without their acknowledgement) bounds the
///   memory of both.
/// - `is_closed`: ucall has given the link up and everything was fetched: close the carrier.
///   `closed()`: the carrier has.
#[pyclass(frozen, module = "ucall._core", name = "QueueLink")]
pub(crate) struct QueueLink {
    pub(super) handle: Arc<Handle>,
    pub(super) link: Arc<ExternalTransport>,
}

#[pymethods]
impl QueueLink {
    /// Hands in bytes that came, in their order.
    fn receive(&self, data: &Bound<'_, PyAny>) -> PyResult<()> {
        crate::ffi::with_buffer(data, |bytes| self.handle.link_received(&self.link, bytes))
    }

    /// Whether nothing more is to be handed in until `wake` is called.
    #[getter]
    fn is_full(&self) -> bool {
        self.link.is_full()
    }

    /// The next bytes to send, at most ``size`` of them; None when there are none just now.
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

    /// Bytes that wait to be fetched.
    #[getter]
    fn in_flight(&self) -> usize {
        self.link.waiting_bytes()
    }

    /// Whether ucall has given the link up, and everything was fetched.
    #[getter]
    fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Says that the carrier has broken, or was closed.
    fn handle_closed(&self) {
        self.handle.link_closed(&self.link);
    }
}
