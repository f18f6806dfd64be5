//! Memory that is shared with the kernel: the frames of a socket, and its rings.

use std::io;
use std::ptr::NonNull;

/// A frame of the largest Ethernet packet, and the kernel's room before it.
pub(super) const FRAME_BYTES: usize = 2048;
/// The kernel's room (`XDP_PACKET_HEADROOM`), which is not known to be less.
pub(super) const HEADROOM_BYTES: usize = 256;
/// Frames of a socket. Each ring has as many entries, so that none is ever full.
pub(super) const FRAMES: u32 = 2048;

/// Mapped memory, unmapped when it is dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is of no thread, and has one owner.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Memory for the frames of a socket.
    pub(super) fn frames() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(-1, 0, FRAMES as usize * FRAME_BYTES, flags)
    }

    /// What a descriptor has at `offset`.
    pub(super) fn shared(descriptor: libc::c_int, offset: u64, len: usize) -> io::Result<Self> {
        Self::new(descriptor, offset, len, libc::MAP_SHARED | libc::MAP_POPULATE)
    }

    fn new(descriptor: libc::c_int, offset: u64, len: usize, flags: i32) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel picks unused addresses.
        let start = unsafe {
            libc::mmap64(std::ptr::null_mut(), len, access, flags, descriptor, offset as _)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes from `start` to the end of their frame.
    ///
    /// # Safety
    /// The mapping is of frames, and the kernel does not have this one.
    pub(super) unsafe fn frame(&mut self, start: usize) -> &mut [u8] {
        let start = start.min(self.len);
        let len = (FRAME_BYTES - start % FRAME_BYTES).min(self.len - start);
        // SAFETY: within the mapping, whose memory is initialized, and not used by others.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(start), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the memory any more; the kernel keeps its pages by itself.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
