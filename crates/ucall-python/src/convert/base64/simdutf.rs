//! By simdutf, which picks the widest instructions that the machine has, AVX-512 among them.

use std::mem::MaybeUninit;

use simdutf::{Base64Options, ErrorCode, LastChunkHandlingOptions};

/// Decodes `text` into all of `target`; whether it could.
pub(super) fn decode(text: &[u8], target: &mut [MaybeUninit<u8>]) -> bool {
    let (start, len) = (text.as_ptr(), text.len());
    // SAFETY: looks at the end of the text.
    let room = unsafe { simdutf::maximal_binary_length_from_base64(start, len) };
    if room > target.len() {
        return false;
    }
    // SAFETY: the text is valid for reads, the target for writes of the length that was asked for;
    // the target is a unique borrow, so they do not overlap.
    let decoded = unsafe {
        simdutf::base64_to_binary(
            start,
            len,
            target.as_mut_ptr().cast(),
            Base64Options::Default,
            LastChunkHandlingOptions::Strict,
        )
    };
    // White space is stepped over: with some, fewer bytes come out than the length of text means.
    decoded.error == ErrorCode::Success && decoded.count == target.len()
}

/// Appends to `out`, which has room for it.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let room = out.spare_capacity_mut();
    assert!(simdutf::base64_length_from_binary(bytes.len(), Base64Options::Default) <= room.len());
    // SAFETY: there is as much room as is written, which was asked for; `out` is a unique borrow,
    // so it does not overlap with the bytes. What was written is initialised.
    unsafe {
        let to = room.as_mut_ptr().cast();
        let written =
            simdutf::binary_to_base64(bytes.as_ptr(), bytes.len(), to, Base64Options::Default);
        out.set_len(out.len() + written);
    }
}
