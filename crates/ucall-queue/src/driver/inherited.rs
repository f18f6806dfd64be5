//! The sockets of a communicator, for a child that is forked off and does not want them.
//!
//! A child has copies of its parent's descriptors, and keeps connections open that the parent has
//! left, or whose process was killed: no peer would hear of that, and an address would stay taken.
//! So a child closes its copies, which ends nothing for the parent. It has no threads but the one
//! that forked, and what it finds may have changed while it came to be; so nobody waits for the
//! lock, and a descriptor is closed only if the socket behind it is still the one that was noted.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use rustix::fs::fstat;

/// All of them, by the number of the file behind each.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    files: Mutex<HashMap<RawFd, u64>>,
}

/// Has a descriptor among them for as long as it lives.
#[derive(Debug)]
pub(super) struct SocketGuard {
    all: Arc<InheritedSockets>,
    descriptor: RawFd,
}

impl InheritedSockets {
    pub(super) fn register(self: &Arc<Self>, descriptor: BorrowedFd<'_>) -> SocketGuard {
        let all = self.clone();
        let guard = SocketGuard { all, descriptor: descriptor.as_raw_fd() };
        if let Ok(found) = fstat(descriptor) {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            files.insert(guard.descriptor, found.st_ino);
        }
        guard
    }

    /// All of them, and the numbers of their files. None while another thread is at it, which in a
    /// child there may not be.
    pub(super) fn list(&self) -> Vec<(RawFd, u64)> {
        let files = self.files.try_lock();
        files.map(|files| files.iter().map(|(&fd, &file)| (fd, file)).collect()).unwrap_or_default()
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let mut files = self.all.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&self.descriptor);
    }
}
