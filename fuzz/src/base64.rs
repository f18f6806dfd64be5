//! The base64 that params and results carry, by each of our kernels, against the `base64` crate.

use std::mem::MaybeUninit;

use ::base64::Engine;
use ::base64::engine::general_purpose::STANDARD as REFERENCE;

// They are the extension module's, which is no library that could be linked here.
#[path = "../../crates/ucall-python/src/convert/base64/lengths.rs"]
#[allow(dead_code, reason = "the rest is for the module that it belongs to")]
mod lengths;
#[path = "../../crates/ucall-python/src/convert/base64/portable.rs"]
mod portable;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[path = "../../crates/ucall-python/src/convert/base64/simdutf.rs"]
mod simdutf_kernels;

/// Checks that both implementations decode the same text and refuse the same, and that encoding
/// fills exactly the memory whose size was computed before.
///
/// # Panics
/// If they do not.
pub fn run(input: &[u8]) {
    let decoded = REFERENCE.decode(input).ok();
    let encoded = REFERENCE.encode(input);
    check(input, decoded.as_deref(), &encoded, portable::decode, portable::encode);
    #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
    check(input, decoded.as_deref(), &encoded, simdutf_kernels::decode, simdutf_kernels::encode);
}

fn check(
    input: &[u8],
    decoded: Option<&[u8]>,
    encoded: &str,
    decode: fn(&[u8], &mut [MaybeUninit<u8>]) -> bool,
    encode: fn(&[u8], &mut Vec<u8>),
) {
    let ours = lengths::decoded_len(input).and_then(|len| {
        let mut room = vec![MaybeUninit::new(0); len].into_boxed_slice();
        let is_whole = decode(input, &mut room);
        // SAFETY: the memory was zeroed, and the encoder writes initialised bytes.
        is_whole.then(|| unsafe { room.assume_init() })
    });
    assert_eq!(ours.as_deref(), decoded);
    assert_eq!(lengths::encoded_len(input.len()), encoded.len());
    let mut out = Vec::with_capacity(1 + encoded.len());
    out.push(b'"');
    encode(input, &mut out);
    assert_eq!(out.get(1..), Some(encoded.as_bytes()));
}
