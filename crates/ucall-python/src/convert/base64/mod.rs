//! Bytes as base64 (RFC 4648 §4: the standard alphabet, with padding, and nothing else).
//!
//! Of a call that carries bytes this is the largest part, so the kernels are those of a library:
//! simdutf where it was measured, else base64-simd. Both are told exactly how much memory there is,
//! and take no text that is not the one form that its bytes have.

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[path = "simdutf.rs"]
mod kernels;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
#[path = "portable.rs"]
mod kernels;

use pyo3::prelude::*;

use crate::ffi::{self, Memory};

/// Bytes of a group, and characters that one is written as.
pub(super) const GROUP_BYTES: usize = 3;
const GROUP_CHARACTERS: usize = 4;

/// Decodes straight into a new object; `None` when the text is no base64.
pub(super) fn decode<'py>(
    py: Python<'py>,
    memory: Memory,
    text: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(len) = decoded_len(text) else { return Ok(None) };
    ffi::memory_filled(py, memory, len, |target| kernels::decode(text, target))
}

/// Appends the text of `bytes`, without quotes.
pub(super) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = encoded_len(bytes.len());
    out.reserve(len);
    kernels::encode(bytes, out);
}

/// How long the text of that many bytes is.
pub(super) fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(GROUP_BYTES).saturating_mul(GROUP_CHARACTERS)
}

/// How many bytes a text means, if it is base64: its end tells.
fn decoded_len(text: &[u8]) -> Option<usize> {
    let padding = match text {
        [.., b'=', b'='] => 2,
        [.., b'='] => 1,
        _ => 0,
    };
    let bytes = text.len() / GROUP_CHARACTERS * GROUP_BYTES;
    text.len().is_multiple_of(GROUP_CHARACTERS).then(|| bytes - padding)
}
