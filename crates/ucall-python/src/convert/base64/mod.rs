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

use std::mem::MaybeUninit;

use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::ffi::{self, BytesType};
use lengths::{GROUP_BYTES, GROUP_CHARACTERS};
pub(super) use lengths::{decoded_len, encoded_len};

/// Decodes straight into a new object; `None` if the text is not base64.
pub(super) fn decode<'py>(
    py: Python<'py>,
    memory: BytesType,
    text: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(len) = decoded_len(text) else { return Ok(None) };
    ffi::memory_filled(py, memory, len, |target| kernels::decode(text, target))
}

/// Decodes into all of `target`. Returns whether the text is base64 of that length.
pub(super) fn decode_into(text: &[u8], target: &mut [MaybeUninit<u8>]) -> bool {
    match decoded_len(text) {
        Some(0) => target.is_empty(),
        Some(len) => len == target.len() && kernels::decode(text, target),
        None => false,
    }
}

/// The first bytes of a text, decoded before the rest.
pub(super) struct Start {
    bytes: SmallVec<[u8; START_BYTES]>,
    characters: usize,
}

/// A start of this length needs no memory of its own.
pub(super) const START_BYTES: usize = 192;

impl Start {
    /// Decodes at least `wanted` bytes, if the text has as many; `None` if it is not base64.
    pub(super) fn decode(text: &[u8], wanted: usize) -> Option<Self> {
        let characters = wanted.div_ceil(GROUP_BYTES).saturating_mul(GROUP_CHARACTERS);
        let (start, rest) = text.split_at(characters.min(text.len()));
        // Only the end of the whole text may be padded.
        if !rest.is_empty() && start.ends_with(b"=") {
            return None;
        }
        let mut bytes = SmallVec::from_elem(0, decoded_len(start)?);
        decode_into(start, ffi::as_uninit(&mut bytes))
            .then_some(Self { bytes, characters: start.len() })
    }

    /// The decoded bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The text that is left, a whole one by itself.
    pub(super) fn rest<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.characters..).unwrap_or_default()
    }
}

/// Appends the text of `bytes`, without quotes.
pub(super) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = encoded_len(bytes.len());
    out.reserve(len);
    kernels::encode(bytes, out);
}

/// Appends the text of two pieces of memory as if they were one.
pub(crate) fn encode_both(out: &mut Vec<u8>, first: &[u8], second: &[u8]) {
    let (whole, left) = first.split_at(first.len() - first.len() % GROUP_BYTES);
    encode(out, whole);
    let wanted = if left.is_empty() { 0 } else { GROUP_BYTES - left.len() };
    let (head, tail) = second.split_at(wanted.min(second.len()));
    if !left.is_empty() {
        encode(out, &[left, head].concat());
    }
    encode(out, tail);
}
