//! Files that are read again once they have changed.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Tells whether any of some files is another one than before, by what the file system says.
#[derive(Debug)]
pub struct FileChangeDetector {
    paths: Vec<PathBuf>,
    seen: Mutex<Vec<Option<FileStamp>>>,
}

/// What changes when a file does.
type FileStamp = (u64, u64, i64, i64);

impl FileChangeDetector {
    /// Begins to watch; to be called before the files are read.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = Mutex::new(paths.iter().map(|path| stamp(path)).collect());
        Self { paths, seen }
    }

    /// Whether one has changed since this was asked last. Of several threads that ask, one is told.
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
