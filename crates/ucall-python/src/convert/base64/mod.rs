//! Bytes as base64 (RFC 4648 §4: the standard alphabet, with padding, and nothing else).
//!
//! Base64 is the largest cost of a call that carries bytes, so libraries do it: simdutf where it
//! was measured, else base64-simd. Both write within the given memory, and accept only the one
//! canonical text of given bytes.

mod lengths;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[path = "simdutf.rs"]
mod kernels;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
#[path = "portable.rs"]
mod kernels;

use pyo3::prelude::*;

use crate::ffi::{self, BytesType};
pub(super) use lengths::{GROUP_BYTES, encoded_len};

/// Decodes straight into a new object; `None` if the text is not base64.
pub(super) fn decode<'py>(
    py: Python<'py>,
    memory: BytesType,
    text: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(len) = lengths::decoded_len(text) else { return Ok(None) };
    ffi::memory_filled(py, memory, len, |target| kernels::decode(text, target))
}

/// Appends the text of `bytes`, without quotes.
pub(super) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = encoded_len(bytes.len());
    out.reserve(len);
    kernels::encode(bytes, out);
}
