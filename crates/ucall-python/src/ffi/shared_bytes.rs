//! Memory of Python objects that is sent from where it lies.

use bytes::Bytes;
use pyo3::prelude::*;

use super::DropAttached;

/// The memory of an object, which it keeps alive.
struct Shared {
    start: *const u8,
    len: usize,
    _object: DropAttached<Py<PyAny>>,
}

// SAFETY: the memory is only read, and the object is released by a thread that is attached.
unsafe impl Send for Shared {}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the object keeps the memory in place, and its maker has promised that nothing
        // writes to it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// Bytes that lie in the memory of an object, which is released when the last of them was sent.
/// They are those of a `bytes`, or of an array that does not change meanwhile.
pub(crate) fn shared_bytes(object: &Bound<'_, PyAny>, bytes: &[u8]) -> Bytes {
    let object = DropAttached::new(object.clone().unbind());
    Bytes::from_owner(Shared { start: bytes.as_ptr(), len: bytes.len(), _object: object })
}
