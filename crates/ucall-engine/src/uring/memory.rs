//! Memory that the kernel reads or writes while an operation is submitted.

use std::io;
use std::ptr::NonNull;

/// A box that may be moved while the kernel writes to its contents, which `Box` forbids.
pub(super) struct StableBox<T: ?Sized>(NonNull<T>);

impl<T: ?Sized> StableBox<T> {
    pub(super) fn new(value: Box<T>) -> Self {
        Self(NonNull::from(Box::leak(value)))
    }

    /// The address for the kernel.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The value, while no operation that writes to it is in flight.
    pub(super) fn as_ref(&self) -> &T {
        // SAFETY: the pointer is of a box and is freed on drop only; `&self` excludes writers of
        // our own.
        unsafe { self.0.as_ref() }
    }

    /// The value, while no operation that uses it is in flight.
    pub(super) fn as_mut(&mut self) -> &mut T {
        // SAFETY: the pointer is of a box, is freed on drop only, and `&mut self` is the only way
        // to it.
        unsafe { self.0.as_mut() }
    }
}

impl<T: ?Sized> Drop for StableBox<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is of a box, and is not used after this.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Anonymous memory, zeroed and page-aligned; the system provides pages on first access.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes. The kernel pins the first `pinned` of them, whole pages, which a forked
    /// child does not have.
    pub(super) fn new(len: usize, pinned: usize) -> io::Result<Self> {
        // SAFETY: maps new memory at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { start, len };
        // SAFETY: the range is the start of the new mapping.
        match unsafe { libc::madvise(start.as_ptr().cast(), pinned, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us and is not used after this. It cannot fail.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
