//! Base64 by base64-simd, in Rust, for targets where simdutf was not measured: simdutf needs a C++
//! compiler.

use std::mem::MaybeUninit;

use base64_simd::{Out, STANDARD};

/// Decodes `text` into all of `target`. Returns whether it is valid.
pub(super) fn decode(text: &[u8], target: &mut [MaybeUninit<u8>]) -> bool {
    let len = target.len();
    STANDARD.decode(text, Out::from_uninit_slice(target)).is_ok_and(|out| out.len() == len)
}

/// Appends to `out`, which has the capacity.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    STANDARD.encode_append(bytes, out);
}
