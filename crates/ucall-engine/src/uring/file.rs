//! Open files as submissions name them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue;
use io_uring::types::Fd;

/// One operation moves at most this much: its result has 31 bits.
pub(super) const OPERATION_BYTES_MAX: usize = 1 << 30;

/// An open file as submissions name it.
pub(super) enum File {
    /// A slot in the ring's file table.
    Direct(u32),
    Plain(OwnedFd),
}

impl File {
    pub(super) fn descriptor(&self) -> Fd {
        match self {
            File::Direct(index) => Fd(*index as i32),
            File::Plain(descriptor) => Fd(descriptor.as_raw_fd()),
        }
    }

    pub(super) fn flags(&self) -> squeue::Flags {
        match self {
            File::Direct(_) => squeue::Flags::FIXED_FILE,
            File::Plain(_) => squeue::Flags::empty(),
        }
    }
}

/// Whether to retry an operation that ended with this error, unless we have cancelled it.
pub(super) fn is_transient(error: &io::Error) -> bool {
    let transient = [libc::EINTR, libc::EAGAIN, libc::ECANCELED];
    error.raw_os_error().is_some_and(|errno| transient.contains(&errno))
}
