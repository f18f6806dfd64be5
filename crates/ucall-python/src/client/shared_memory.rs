//! The memory that a connection shares with its server.
//!
//! A client asks for it at the start of a connection, and then puts the parts of its requests
//! there. The connection's parser finds the parts of replies in it.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ucall_engine::shared::SharedMemory as _;
use ucall_engine::shared::{self, Preamble, Side, SlotMemory};
use ucall_proto::arrays::npy;
use ucall_proto::{
    FRAME_BYTE, FrameError, PREAMBLE_BYTES, client_preamble, place_parts, read_server_preamble,
    take_parts, write_shared_head,
};

use super::error::ClientFault;
use super::incoming::{SharedParts, fault_of, frame_head};
use super::request::Request;
use super::request_parts::{FRAME_HEAD_BYTES, Frame, FrameBody, LENGTH_BYTES};
use crate::convert::{array_in, tensor_like};

/// The slots of each direction of a connection: what one server allows by default.
const SHARED_BYTES_MAX: u64 = 256 << 20;
/// Arrays of fewer bytes are sent through the socket.
const SHARED_BYTES_MIN: usize = 64 << 10;
/// The second byte of a frame whose parts are in shared memory.
const SHARED_VERSION: u8 = 2;

/// The slots of one connection, which its reader and its writer use.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    slots: Arc<Mutex<SlotMemory>>,
}

#[pymethods]
impl SharedMemory {
    /// Asks the server at the other end of a new connection.
    #[staticmethod]
    fn ask(descriptor: RawFd) -> io::Result<()> {
        shared::send_client_preamble(borrowed(descriptor), &client_preamble(SHARED_BYTES_MAX))
    }

    /// The memory that the server gives; `None` if it gives none. Raises `BlockingIOError` until
    /// the answer is there, and `ConnectionError` if the server does not know the question.
    #[staticmethod]
    #[pyo3(signature = (descriptor, *, trusted))]
    fn answered(descriptor: RawFd, trusted: bool) -> io::Result<Option<Self>> {
        let preamble = shared::receive_server_preamble::<PREAMBLE_BYTES>(borrowed(descriptor))?;
        let Preamble::With(channel, bytes) = preamble else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        let Some(bytes_max) = read_server_preamble(bytes) else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        let slots = channel.map(|channel| {
            let sent_max = bytes_max.min(SHARED_BYTES_MAX);
            SlotMemory::new(channel, sent_max, SHARED_BYTES_MAX, Side::Client, trusted)
        });
        Ok(slots.map(|slots| Self { slots: Arc::new(Mutex::new(slots)) }))
    }

    /// An array in a slot, without values yet; `None` if it is short, or no slot is free.
    fn empty<'py>(
        &self,
        shape: Vec<usize>,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, tensor) = (dtype.py(), tensor_like(dtype, shape)?);
        let Some(bytes @ SHARED_BYTES_MIN..) = tensor.bytes() else { return Ok(None) };
        let mut header = Vec::new();
        npy::write_header(&mut header, &tensor);
        let reserved = py.detach(|| self.lock().reserve(header.len(), bytes));
        reserved.map(|memory| array_in(py, &tensor, memory)).transpose()
    }

    /// The request with its parts in this memory; itself if it has none, or there is no room.
    fn place(&self, py: Python<'_>, request: Py<Request>) -> PyResult<Py<Request>> {
        request.get().check_decided()?;
        match py.detach(|| self.placed(request.get())) {
            Some(placed) => Py::new(py, placed),
            None => Ok(request),
        }
    }
}

impl SharedMemory {
    /// The request with its parts in this memory; `None` if it has none, or there is no room.
    pub(super) fn placed(&self, request: &Request) -> Option<Request> {
        let Frame { parts, .. } = request.frame.as_deref()?;
        let body = FrameBody::of(parts);
        let pairs = body.headers.iter().zip(&**parts);
        let pieces: Vec<_> = pairs.map(|(header, part)| [&header[..], &part.bytes[..]]).collect();
        // The next reply shows a server that has broken the rules.
        let places = place_parts(&mut *self.lock(), &pieces).ok()??;
        let document = request.data.get(request.document.clone())?;
        let mut frame = Vec::new();
        write_shared_head(&mut frame, document.len(), &places).ok()?;
        let frame_at = request.document.start - FRAME_HEAD_BYTES - LENGTH_BYTES * parts.len();
        let head = request.data.get(request.start..frame_at)?;
        let mut data = with_length(head, frame.len() + document.len())?;
        data.extend_from_slice(&frame);
        let start = data.len();
        data.extend_from_slice(document);
        let timeout = match request.timeout.is_empty() {
            true => 0..0,
            false => {
                let moved = |at: usize| at + start - request.document.start;
                moved(request.timeout.start)..moved(request.timeout.end)
            }
        };
        Some(Request {
            document: start..data.len(),
            data,
            start: 0,
            timeout,
            expected: request.expected.clone(),
            frame: None,
            is_compressed: false,
        })
    }

    /// The parts of a frame of the server, if they are in this memory.
    pub(super) fn take(&self, frame: &[u8], bytes_max: usize) -> Result<SharedParts, ClientFault> {
        if !frame.starts_with(&[FRAME_BYTE, SHARED_VERSION]) {
            return Ok(None);
        }
        let head = frame_head(frame, bytes_max)?.ok_or_else(|| fault_of(FrameError::Length))?;
        let Some(places) = head.places else { return Ok(None) };
        let parts = take_parts(Some(&mut *self.lock()), &places);
        Ok(Some(Arc::new(parts.map_err(fault_of)?)))
    }

    fn lock(&self) -> MutexGuard<'_, SlotMemory> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The head of an HTTP request, if there is one, with another length of its body.
fn with_length(head: &[u8], len: usize) -> Option<Vec<u8>> {
    const NAME: &[u8] = b"\r\nContent-Length: ";
    if head.is_empty() {
        return Some(Vec::new());
    }
    let at = memchr::memmem::rfind(head, NAME)? + NAME.len();
    let (front, rest) = head.split_at_checked(at)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some([front, len.to_string().as_bytes(), rest.get(digits..)?].concat())
}

fn borrowed<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller has the socket of this descriptor, which stays open during the call.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}
