//! A message header with its parts, at a stable address.

use super::memory::StableBox;

/// Parts of one send; the kernel's maximum (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

pub(super) struct MessageHeader {
    header: libc::msghdr,
    parts: Vec<libc::iovec>,
}

impl MessageHeader {
    pub(super) fn new() -> StableBox<Self> {
        // SAFETY: a header of zeros is a valid one: no name, no parts, no control data.
        let header = unsafe { std::mem::zeroed() };
        StableBox::new(Box::new(Self { header, parts: Vec::new() }))
    }

    /// Sets the parts to send. Returns the number of bytes, because there may be more slices than
    /// one send takes. The slices must keep their addresses until they are sent.
    pub(super) fn outgoing<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> (*const libc::msghdr, usize) {
        let part = |slice: &[u8]| libc::iovec {
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        };
        self.parts.clear();
        self.parts.extend(slices.take(PARTS_MAX).map(part));
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len() as _;
        let bytes = self.parts.iter().map(|part| part.iov_len).sum();
        (&raw const self.header, bytes)
    }
}
