//! The lock that a process takes before LMDB's lock for writers.
//!
//! LMDB's is a robust mutex. If a process is killed after an unlock has woken it and before it
//! runs, that wake-up is lost, and other waiting processes may sleep forever. So processes wait for
//! a record lock of the file `write.lock`, which the kernel passes on whatever dies. Unlike other
//! locks of files, a forked child does not share it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use crate::error::StoreError;

const RETRY_INTERVAL: Duration = Duration::from_millis(1);

pub(crate) struct WriteLock(File);

/// Unlocks when it is dropped.
pub(crate) struct WriteGuard<'a>(&'a File);

impl WriteLock {
    /// Opens the file in the directory `path`, which is made if there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Ok(Self(options.open(path.join("write.lock"))?))
    }

    /// The text in the file.
    pub(crate) fn text(&self) -> io::Result<String> {
        let mut text = [0; 64];
        let len = self.0.read_at(&mut text, 0)?;
        Ok(String::from_utf8_lossy(text.get(..len).unwrap_or_default()).into_owned())
    }

    /// Replaces the text in the file, and leaves it empty if the disk is full.
    pub(crate) fn set_text(&self, text: &str) -> io::Result<()> {
        self.0.set_len(0)?;
        match self.0.write_all_at(text.as_bytes(), 0) {
            Ok(()) => Ok(()),
            Err(_) => self.0.set_len(0),
        }
    }

    /// Waits until no other process has the lock. The threads of this one do not wait here.
    pub(crate) fn lock(&self) -> Result<WriteGuard<'_>, StoreError> {
        loop {
            match fcntl_lock(&self.0, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(WriteGuard(&self.0)),
                Err(Errno::INTR) => {}
                // Two processes that share two stores; no thread holds one and waits for another.
                Err(Errno::DEADLK) => thread::sleep(RETRY_INTERVAL),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // Fails for no lock that is held.
        let _ = fcntl_lock(self.0, FlockOperation::Unlock);
    }
}
