//! Base64 by simdutf, which uses the widest instructions of the machine, up to AVX-512.

use std::mem::MaybeUninit;

use simdutf::{Base64Options, ErrorCode, LastChunkHandlingOptions};

/// Decodes `text` into all of `target`. Returns whether it is valid.
pub(super) fn decode(text: &[u8], target: &mut [MaybeUninit<u8>]) -> bool {
    let (start, len) = (text.as_ptr(), text.len());
    // SAFETY: reads the end of the text.
    let room = unsafe { simdutf::maximal_binary_length_from_base64(start, len) };
    if room > target.len() {
        return false;
    }
    // SAFETY: the text is valid for reads, and the target for writes of the requested length. The
    // target is a unique borrow, so they do not overlap.
    let decoded = unsafe {
        simdutf::base64_to_binary(
            start,
            len,
            target.as_mut_ptr().cast(),
            Base64Options::Default,
            LastChunkHandlingOptions::Strict,
        )
    };
    // simdutf skips white space, after which fewer bytes result than the text's length implies.
    decoded.error == ErrorCode::Success && decoded.count == target.len()
}

/// Appends to `out`, which has the capacity.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let room = out.spare_capacity_mut();
    assert!(simdutf::base64_length_from_binary(bytes.len(), Base64Options::Default) <= room.len());
    // SAFETY: the capacity was reserved for the length that is written; `out` is a unique borrow,
    // so it does not overlap with the bytes. The written part is initialised.
    unsafe {
        let to = room.as_mut_ptr().cast();
        let written =
            simdutf::binary_to_base64(bytes.as_ptr(), bytes.len(), to, Base64Options::Default);
        out.set_len(out.len() + written);
    }
}
