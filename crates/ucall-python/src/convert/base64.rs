//! Bytes as base64 (RFC 4648 §4: the standard alphabet, with padding).

use base64_simd::{Out, STANDARD};
use pyo3::prelude::*;

use crate::ffi::{self, Memory};

/// Decodes straight into a new object; `None` when the text is no base64.
pub(super) fn decode<'py>(
    py: Python<'py>,
    memory: Memory,
    text: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Ok(len) = STANDARD.decoded_length(text) else { return Ok(None) };
    ffi::memory_filled(py, memory, len, |target| {
        STANDARD.decode(text, Out::from_uninit_slice(target)).is_ok_and(|out| out.len() == len)
    })
}

/// Appends the text of `bytes`, without quotes.
pub(super) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    STANDARD.encode_append(bytes, out);
}

/// How long the text of that many bytes is.
pub(super) fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3).saturating_mul(4)
}
