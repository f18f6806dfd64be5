//! The buffers that the kernel receives into: a ring of them, shared by all streams, and one for
//! each datagram socket.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

use super::memory::Mapping;

/// The group of the buffers of streams.
pub(super) const GROUP: u16 = 0;

/// The ring is at the start of the mapping, in whole pages of any size in use.
const RING_BYTES: usize = 64 * 1024;
/// What the buffers of streams hold.
const STREAM_BUFFER_BYTES: usize = 16 * 1024;

/// The buffers of streams: a power of two that is mostly enough for the arrivals between two waits.
/// A socket without a buffer receives in the next turn.
pub(super) type StreamBuffers = Buffers<256, STREAM_BUFFER_BYTES>;

/// Buffers of one size.
pub(super) struct Buffers<const COUNT: u16, const BUFFER_BYTES: usize> {
    mapping: Mapping,
    /// The number of returned buffers, over all rounds.
    tail: u16,
    /// How many of these were published to the kernel.
    published: u16,
}

impl<const COUNT: u16, const BUFFER_BYTES: usize> Buffers<COUNT, BUFFER_BYTES> {
    const FITS: () = assert!(RING_BYTES > COUNT as usize * size_of::<BufRingEntry>());

    /// Makes the buffers of a group, and gives all of them to the kernel.
    pub(super) fn new(submitter: &Submitter<'_>, group: u16) -> io::Result<Self> {
        const { Self::FITS };
        // A child keeps its copy of the buffers: the function that has forked may still read
        // params.
        let mapping = Mapping::new(RING_BYTES + COUNT as usize * BUFFER_BYTES, RING_BYTES)?;
        let address = mapping.start().as_ptr() as u64;
        // SAFETY: the ring is at the start of the mapping, which lives until the engine has drained
        // its operations, or for ever.
        unsafe { submitter.register_buf_ring_with_flags(address, COUNT, group, 0)? };
        let mut buffers = Self { mapping, tail: 0, published: 0 };
        for buffer in 0..COUNT {
            buffers.recycle(buffer);
        }
        buffers.publish();
        Ok(buffers)
    }

    /// The address of a byte that may be overwritten while the mapping lives, and is never read.
    pub(super) fn peek_byte(&self) -> *mut u8 {
        // SAFETY: the ring's part of the mapping is larger than the ring; this is its last byte.
        unsafe { self.mapping.start().add(RING_BYTES - 1) }.as_ptr()
    }

    /// The bytes of a buffer that the kernel has filled and that was not returned since.
    pub(super) fn bytes(&mut self, buffer: u16, start: u32, len: u32) -> &mut [u8] {
        let (start, len) = (start as usize, len as usize);
        assert!(buffer < COUNT && start + len <= BUFFER_BYTES, "the kernel overran a buffer");
        // SAFETY: the range is within the buffer, which is within the mapping, was initialised by
        // the kernel, and is ours until it is returned; `&mut self` excludes other borrows.
        unsafe {
            let bytes = self.mapping.start().add(Self::offset(buffer) + start);
            std::slice::from_raw_parts_mut(bytes.as_ptr(), len)
        }
    }

    /// Returns a buffer to the kernel, which sees it after [`Buffers::publish`].
    pub(super) fn recycle(&mut self, buffer: u16) {
        let address = self.mapping.start().as_ptr() as u64 + Self::offset(buffer) as u64;
        let ring = self.mapping.start().cast::<BufRingEntry>();
        // SAFETY: the index is less than COUNT, so the entry is within the ring; the kernel reads
        // it only after the tail has passed it.
        let entry = unsafe { &mut *ring.add((self.tail % COUNT) as usize).as_ptr() };
        entry.set_addr(address);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the returned buffers to the kernel.
    pub(super) fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        self.published = self.tail;
        let ring = self.mapping.start().cast::<BufRingEntry>();
        // SAFETY: the tail is within the first entry, is aligned, and lives as long as the mapping;
        // the kernel only reads it.
        let tail = unsafe { &*BufRingEntry::tail(ring.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }

    const fn offset(buffer: u16) -> usize {
        RING_BYTES + buffer as usize * BUFFER_BYTES
    }

    /// Keeps the memory mapped for ever.
    pub(super) fn leak(self) {
        std::mem::forget(self);
    }
}
