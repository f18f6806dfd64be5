//! One payload on its way out, as submissions take it.

use io_uring::{opcode, squeue};
use ucall_buffer::Payload;

use super::file::{File, OPERATION_BYTES_MAX};
use super::memory::StableBox;
use super::message_header::MessageHeader;

/// A failed peer is an error, not a signal. A send completes after a part of its bytes if the
/// socket has room for no more, which shows its progress.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL;
/// Sends all bytes, or completes with fewer: a send that would have to wait ends.
const SKIP_SUCCESS_SEND_FLAGS: i32 = SEND_FLAGS | libc::MSG_WAITALL | libc::MSG_DONTWAIT;

/// A payload on its way out.
pub(super) struct Sending {
    pub(super) payload: Payload,
    pub(super) sent: usize,
    /// Present when the payload has several parts.
    pub(super) message: Option<StableBox<MessageHeader>>,
    /// Submitted such that it ends while it is submitted, and completes only if it fails.
    pub(super) skip_success: bool,
}

impl Sending {
    /// The rest of a contiguous payload, up to the size of one submission.
    #[inline(always)]
    pub(super) fn entry(&mut self, file: &File) -> squeue::Entry {
        let rest = self.payload.head().get(self.sent..).unwrap_or_default();
        let (start, len) = (rest.as_ptr(), rest.len().min(OPERATION_BYTES_MAX));
        self.piece_entry(file, start, len)
    }

    /// The rest of a payload of several parts. `cached` has message headers to reuse.
    pub(super) fn parts_entry(
        &mut self,
        file: &File,
        cached: &mut Vec<StableBox<MessageHeader>>,
    ) -> squeue::Entry {
        let mut slices = self.payload.slices_from(self.sent);
        let first = slices.next().unwrap_or(&[]);
        let (start, len) = (first.as_ptr(), first.len().min(OPERATION_BYTES_MAX));
        if slices.next().is_none() {
            drop(slices);
            return self.piece_entry(file, start, len);
        }
        drop(slices);
        let message =
            self.message.get_or_insert_with(|| cached.pop().unwrap_or_else(MessageHeader::new));
        let (header, len) = message.as_mut().outgoing(self.payload.slices_from(self.sent));
        let (message_flags, flags) = self.flags(file, len);
        let entry = opcode::SendMsg::new(file.descriptor(), header);
        entry.flags(message_flags as u32).build().flags(flags)
    }

    #[inline(always)]
    pub(super) fn piece_entry(
        &mut self,
        file: &File,
        start: *const u8,
        len: usize,
    ) -> squeue::Entry {
        let (message_flags, flags) = self.flags(file, len);
        let entry = opcode::Send::new(file.descriptor(), start, len as u32);
        entry.flags(message_flags).build().flags(flags)
    }

    /// The flags for a submission of this many bytes. One that leaves bytes for the next needs its
    /// completion.
    #[inline(always)]
    pub(super) fn flags(&mut self, file: &File, len: usize) -> (i32, squeue::Flags) {
        self.skip_success &= self.sent + len == self.payload.len();
        match self.skip_success {
            true => (SKIP_SUCCESS_SEND_FLAGS, file.flags() | squeue::Flags::SKIP_SUCCESS),
            false => (SEND_FLAGS, file.flags()),
        }
    }

    /// Whether it is silent, and of one part.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.skip_success && self.message.is_none()
    }
}
