//! The sockets of a communicator, for a forked child to close.
//!
//! A child has copies of its parent's descriptors. They would keep connections open that the parent
//! has closed, or that its death should end, and the address taken. So a child closes its copies,
//! which ends nothing for the parent. The parent's threads do not exist in the child and may have
//! held the lock at the fork, so the child does not wait for the lock, and it closes a descriptor
//! only if the inode is still the recorded one.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use rustix::fs::fstat;

/// The inode numbers of all sockets, by their descriptors.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    files: Mutex<HashMap<RawFd, u64>>,
}

/// Keeps a descriptor in the list until it is dropped.
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

    /// All sockets and their inode numbers. Empty if the list is locked.
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
