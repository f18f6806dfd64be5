//! Detects file changes by inode, size and modification time.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Detects whether any of some files has changed.
#[derive(Debug)]
pub struct FileChangeDetector {
    paths: Vec<PathBuf>,
    seen: Mutex<Vec<Option<FileStamp>>>,
}

/// The inode, size and modification time of a file; one of them changes with the file.
type FileStamp = (u64, u64, i64, i64);

impl FileChangeDetector {
    /// Records the files as they are. Call this before reading them, so that no change is missed.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = Mutex::new(paths.iter().map(|path| stamp(path)).collect());
        Self { paths, seen }
    }

    /// Whether a file has changed since the last call. Of several threads that call at once, one
    /// gets `true`.
    pub fn has_changed(&self) -> bool {
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return false,
        };
        let stamps: Vec<_> = self.paths.iter().map(|path| stamp(path)).collect();
        let has_changed = *seen != stamps;
        *seen = stamps;
        has_changed
    }
}

fn stamp(path: &Path) -> Option<FileStamp> {
    let of = |data: Metadata| (data.ino(), data.len(), data.mtime(), data.mtime_nsec());
    fs::metadata(path).ok().map(of)
}
