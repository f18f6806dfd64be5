//! Memory that incoming bytes are received into, without a copy on the way.

use std::ptr::NonNull;

/// A vector that is filled after its contents, by a fixed number of bytes.
///
/// It may have extra room after these, for bytes that arrive together with the last ones: they are
/// received too, but never waited for.
///
/// The vector's memory keeps its address until the target is taken apart, so an engine may pass the
/// unfilled rest to the kernel while the target itself moves. It is as wide as one pointer: few
/// messages need one, and every connection has a field for it.
pub struct Target(Box<Contents>);

struct Contents {
    /// Never grown, so that its memory stays where it is.
    vec: Vec<u8>,
    filled: usize,
    len: usize,
    extra: usize,
}

impl Target {
    /// A target of `len` bytes after the present contents of `vec`. Memory is reserved at once. The
    /// system provides the pages of a large one only as bytes arrive.
    pub fn from_vec(vec: Vec<u8>, len: usize) -> Self {
        Self::with_extra(vec, len, 0)
    }

    /// Like [`Target::from_vec`], with room for `extra` more bytes.
    pub fn with_extra(mut vec: Vec<u8>, len: usize, extra: usize) -> Self {
        vec.reserve_exact(len + extra);
        Self(Box::new(Contents { vec, filled: 0, len, extra }))
    }

    /// Bytes received so far.
    pub fn filled(&self) -> usize {
        self.0.filled
    }

    /// The number of bytes that still fit, extra room included.
    pub fn room(&self) -> usize {
        self.0.len + self.0.extra - self.0.filled
    }

    /// Whether nothing is missing any more.
    pub fn is_full(&self) -> bool {
        self.0.filled >= self.0.len
    }

    /// The address of the unfilled rest, valid for writes of [`Target::room`] bytes.
    pub fn rest(&mut self) -> NonNull<u8> {
        NonNull::from(self.0.vec.spare_capacity_mut()).cast()
    }

    /// Counts bytes that were written at [`Target::rest`].
    ///
    /// # Safety
    /// `count` bytes from `rest()` on have been written.
    pub unsafe fn advance(&mut self, count: usize) {
        assert!(count <= self.room(), "a target was filled past its end");
        self.0.filled += count;
        // SAFETY: len + extra bytes were reserved after the contents, at most that many are filled,
        // and the caller has written these.
        unsafe { self.0.vec.set_len(self.0.vec.len() + count) };
    }

    /// Copies as many of `bytes` as fit; returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        // The bytes fit in the reserved memory, so the vector does not grow.
        self.0.vec.extend_from_slice(&bytes[..count]);
        self.0.filled += count;
        count
    }

    /// The vector: its old contents, followed by the received bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.0.vec
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Target({} of {} bytes)", self.0.filled, self.0.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_after_the_contents_of_a_vector() {
        let mut target = Target::from_vec(b"head:".to_vec(), 6);
        assert_eq!(target.write(b"abc"), 3);
        let mut moved = Box::new(target);
        assert_eq!(moved.write(b"defgh"), 3);
        assert!(moved.is_full());
        assert_eq!(moved.into_vec(), b"head:abcdef");
    }

    #[test]
    fn a_half_filled_vector_holds_only_received_bytes() {
        let mut target = Target::from_vec(Vec::new(), 1 << 30);
        target.write(b"x");
        assert_eq!(target.into_vec(), b"x");
    }

    #[test]
    fn extra_room_is_filled_and_not_required() {
        let mut target = Target::with_extra(b"1".to_vec(), 3, 2);
        assert_eq!(target.write(b"23"), 2);
        assert!(!target.is_full());
        assert_eq!(target.room(), 3);
        assert_eq!(target.write(b"456789"), 3);
        assert!(target.is_full());
        assert_eq!(target.into_vec(), b"123456");
    }
}
