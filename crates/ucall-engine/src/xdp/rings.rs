//! The rings that an XDP socket shares with the kernel. Each has one side that produces entries and
//! one that consumes them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::umem::Mapping;

/// Of entries `T`, of which either all are produced here, or all are consumed here.
pub(super) struct Ring<T> {
    memory: Mapping,
    offsets: libc::xdp_ring_offset,
    entries: u32,
    /// Our own index.
    own: u32,
    /// The kernel's index as it was read last.
    other: u32,
    kind: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `entries`, a power of two, that `page_offset` stands for.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Self> {
        let len = offsets.desc as usize + entries as usize * size_of::<T>();
        let memory = Mapping::shared(socket.as_raw_fd(), page_offset, len)?;
        Ok(Self { memory, offsets, entries, own: 0, other: 0, kind: PhantomData })
    }

    /// Produces an entry. The ring has room: it has an entry for each frame.
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the entry is within the mapping, and the kernel reads it only after the store.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        self.index(self.offsets.producer).store(self.own, Ordering::Release);
    }

    /// Consumes an entry.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own == self.other {
            self.other = self.index(self.offsets.producer).load(Ordering::Acquire);
        }
        if self.own == self.other {
            return None;
        }
        // SAFETY: the entry is within the mapping, and the kernel has written it before it moved
        // its index.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        self.index(self.offsets.consumer).store(self.own, Ordering::Release);
        Some(entry)
    }

    /// Whether the kernel has not consumed all entries.
    pub(super) fn has_unread(&self) -> bool {
        self.index(self.offsets.consumer).load(Ordering::Acquire) != self.own
    }

    /// Whether the kernel consumes entries only after a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self.index(self.offsets.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & (self.entries - 1)) as usize * size_of::<T>();
        // SAFETY: `map` has mapped memory for as many entries after the offset.
        unsafe { self.memory.start().add(self.offsets.desc as usize + place).cast() }
    }

    fn index(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel has an aligned number at this offset within the mapping, which it
        // changes atomically.
        unsafe { AtomicU32::from_ptr(self.memory.start().add(offset as usize).cast()) }
    }
}
