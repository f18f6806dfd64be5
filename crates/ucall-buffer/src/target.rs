//! Memory that incoming bytes are received into, without a copy on the way.

use std::any::Any;
use std::ptr::NonNull;

/// Memory with an owner, filled from the front up to its length.
///
/// It may have room to spare behind that, for bytes that come along with the last ones: they are
/// taken in too, and never waited for.
///
/// The owner keeps the memory at its place until the target is taken apart, so an engine may hand
/// the unfilled rest to the kernel while the target itself moves.
pub struct Target {
    start: NonNull<u8>,
    filled: usize,
    len: usize,
    spare: usize,
    owner: Owner,
}

enum Owner {
    /// The vector's own bytes come first; `start` points behind them, into its spare capacity.
    Vec(Vec<u8>),
    Other(Box<dyn Any + Send>),
}

// SAFETY: the pointer names memory that the owner holds, and both kinds of owner are Send; a
// target is the only one that may touch the memory.
unsafe impl Send for Target {}

impl Target {
    /// A target of `len` bytes behind the present contents of `vec`. Memory is reserved at once
    /// and, when large, taken from the system only as bytes arrive.
    pub fn from_vec(vec: Vec<u8>, len: usize) -> Self {
        Self::with_spare(vec, len, 0)
    }

    /// As [`Target::from_vec`], with room for `spare` bytes more.
    pub fn with_spare(mut vec: Vec<u8>, len: usize, spare: usize) -> Self {
        vec.reserve_exact(len + spare);
        let start = NonNull::from(vec.spare_capacity_mut()).cast::<u8>();
        Self { start, filled: 0, len, spare, owner: Owner::Vec(vec) }
    }

    /// A target in memory that `owner` holds.
    ///
    /// # Safety
    /// `start` is valid for writes of `len` bytes, at that address, until `owner` is dropped, and
    /// nobody else reads or writes it before [`Target::into_owner`]. A `Box` of the memory itself
    /// does not hold it so: it counts as its only user whenever it is moved.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send>) -> Self {
        Self { start, filled: 0, len, spare: 0, owner: Owner::Other(owner) }
    }

    /// Bytes received so far.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that there is room for, the spare ones included.
    pub fn room(&self) -> usize {
        self.len + self.spare - self.filled
    }

    /// Whether nothing is missing any more.
    pub fn is_full(&self) -> bool {
        self.filled >= self.len
    }

    /// The address of the unfilled rest, valid for writes of [`Target::room`] bytes.
    pub fn rest(&mut self) -> NonNull<u8> {
        // SAFETY: filled <= len + spare, and start is valid for so many bytes.
        unsafe { self.start.add(self.filled) }
    }

    /// Counts bytes that were written to the front of [`Target::rest`].
    ///
    /// # Safety
    /// `count` bytes from `rest()` on have been written.
    pub unsafe fn advance(&mut self, count: usize) {
        assert!(count <= self.room(), "a target was filled past its end");
        self.filled += count;
    }

    /// Copies as much of `bytes` as there is room for; returns how much that was.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        // SAFETY: rest() is valid for room() >= count bytes and only we may write there;
        // `bytes` is a live borrow and so lies elsewhere.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.rest().as_ptr(), count);
            self.advance(count);
        }
        count
    }

    /// The vector, its old contents followed by what was received; `None` for memory of another
    /// kind.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self.owner {
            Owner::Vec(mut vec) => {
                // SAFETY: len + spare bytes were reserved behind the contents, and the first
                // `filled` of them have been written.
                unsafe { vec.set_len(vec.len() + self.filled) };
                Some(vec)
            }
            Owner::Other(_) => None,
        }
    }

    /// The owner given to [`Target::from_raw`]; `None` for a vector.
    pub fn into_owner(self) -> Option<Box<dyn Any + Send>> {
        match self.owner {
            Owner::Vec(_) => None,
            Owner::Other(owner) => Some(owner),
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Target({} of {} bytes)", self.filled, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_behind_the_contents_of_a_vector() {
        let mut target = Target::from_vec(b"head:".to_vec(), 6);
        assert_eq!(target.write(b"abc"), 3);
        let mut moved = Box::new(target);
        assert_eq!(moved.write(b"defgh"), 3);
        assert!(moved.is_full());
        assert_eq!(moved.into_vec().unwrap(), b"head:abcdef");
    }

    #[test]
    fn a_half_filled_vector_shows_only_what_came() {
        let mut target = Target::from_vec(Vec::new(), 1 << 30);
        target.write(b"x");
        assert_eq!(target.into_vec().unwrap(), b"x");
    }

    #[test]
    fn spare_room_is_used_and_not_waited_for() {
        let mut target = Target::with_spare(b"1".to_vec(), 3, 2);
        assert_eq!(target.write(b"23"), 2);
        assert!(!target.is_full());
        assert_eq!(target.room(), 3);
        assert_eq!(target.write(b"456789"), 3);
        assert!(target.is_full());
        assert_eq!(target.into_vec().unwrap(), b"123456");
    }

    #[test]
    fn gives_the_owner_back() {
        let mut memory = vec![0u8; 4];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the vector holds 4 bytes and is handed over as the owner.
        let mut target = unsafe { Target::from_raw(start, 4, Box::new(memory)) };
        target.write(b"1234");
        let memory = target.into_owner().unwrap().downcast::<Vec<u8>>().unwrap();
        assert_eq!(&*memory, b"1234");
    }
}
