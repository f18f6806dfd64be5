//! Copies between memory that is shared and other memory.

/// Long copies write past the caches, which the bytes would not fit into beside what they are
/// copied from: that saves reading the target first. Short ones are faster to read in the caches.
const STREAMED_BYTES_MIN: usize = 8 << 20;

/// Copies bytes, which a peer may write to meanwhile: each is read once.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
pub(super) unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as promised by the caller.
    unsafe {
        match len {
            STREAMED_BYTES_MIN.. => stream_bytes(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// The same.
///
/// # Safety
/// As of [`copy_bytes`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// The same without reading the lines of the target into the caches.
///
/// # Safety
/// As of [`copy_bytes`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_bytes(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LANES: usize = 4;
    const LINE: usize = LANES * size_of::<__m128i>();
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let rest = len - head - lines * LINE;
    // SAFETY: the three ranges make up that of the caller. The lines of the target are aligned, and
    // the fence orders these writes before all later ones.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let lanes: [__m128i; LANES] =
                std::array::from_fn(|lane| _mm_loadu_si128(source.add(lane)));
            for (lane, value) in lanes.into_iter().enumerate() {
                _mm_stream_si128(target.add(lane), value);
            }
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(from.add(len - rest), to.add(len - rest), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_bytes_are_the_same_at_every_alignment() {
        let from: Vec<u8> = (0..=250).cycle().take(1000).collect();
        for start in [0, 1, 63, 64] {
            for len in [0, 1, 63, 64, 65, 127, 128, 500, 900] {
                let mut to = vec![255; 1100];
                // SAFETY: both have more bytes than that, and do not overlap.
                unsafe { stream_bytes(from.as_ptr().add(7), to.as_mut_ptr().add(start), len) };
                assert_eq!(to[start..start + len], from[7..7 + len]);
                let others = to[..start].iter().chain(&to[start + len..]);
                assert!(others.into_iter().all(|&byte| byte == 255), "{start}, {len}");
            }
        }
    }
}
