//! Bytes in several pieces of memory, written as one value.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::base64::GROUP_BYTES;
use super::{ConversionFault, base64};
use crate::ffi;

/// Consecutive pieces of memory: the header of a `.npy` and the items of an array.
///
/// Returned in place of an object that JSON does not have, they are written as one base64 text
/// without being joined. Each piece must be a contiguous buffer.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: Py<PyTuple>,
}

#[pymethods]
impl Pieces {
    #[new]
    #[pyo3(signature = (*pieces))]
    fn new(pieces: Py<PyTuple>) -> Self {
        Self { pieces }
    }
}

impl Pieces {
    /// The number of bytes in all pieces.
    pub(super) fn len(&self, py: Python<'_>) -> PyResult<usize> {
        let pieces = self.pieces.bind(py).iter();
        pieces.map(|piece| ffi::with_buffer(&piece, <[u8]>::len)).sum()
    }

    /// Appends the base64 of all pieces, without quotes.
    pub(super) fn encode(&self, py: Python<'_>, out: &mut Vec<u8>) -> Result<(), ConversionFault> {
        let mut group = Group::default();
        for piece in self.pieces.bind(py) {
            ffi::with_buffer(&piece, |bytes| group.append(out, bytes))?;
        }
        group.end(out);
        Ok(())
    }
}

/// The bytes of a group of base64 that spans two pieces.
#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
}

impl Group {
    fn append(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        let wanted = (GROUP_BYTES - self.bytes.len()) % GROUP_BYTES;
        let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
        self.bytes.extend_from_slice(head);
        if self.bytes.len() == GROUP_BYTES {
            self.end(out);
        }
        let (whole, tail) = rest.split_at(rest.len() - rest.len() % GROUP_BYTES);
        base64::encode(out, whole);
        self.bytes.extend_from_slice(tail);
    }

    /// Only the last group may be shorter than three bytes; it is padded.
    fn end(&mut self, out: &mut Vec<u8>) {
        base64::encode(out, &self.bytes);
        self.bytes.clear();
    }
}
