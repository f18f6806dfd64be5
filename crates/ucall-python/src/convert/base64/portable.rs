//! By base64-simd, all of it Rust, where simdutf was not tried: it would need a C++ compiler for
//! every machine that we compile for.

use std::mem::MaybeUninit;

use base64_simd::{Out, STANDARD};

/// Decodes `text` into all of `target`; whether it could.
pub(super) fn decode(text: &[u8], target: &mut [MaybeUninit<u8>]) -> bool {
    let len = target.len();
    STANDARD.decode(text, Out::from_uninit_slice(target)).is_ok_and(|out| out.len() == len)
}

/// Appends to `out`, which has room for it.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    STANDARD.encode_append(bytes, out);
}
