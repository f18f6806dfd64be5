//! Rewrites the file of a store without its free pages.
//!
//! The copy replaces the file after the disk has it, so a crash leaves the one or the other. The
//! hard part are the other processes: one with the earlier file open would write to a file that has
//! no name. So compaction takes `write.lock`, which a process needs to open the store, refuses if
//! another process has LMDB's lock file locked, and keeps `write.lock` to its end. LMDB's lock file
//! stays where it is: the next process that opens the store is the only one, and resets it.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use heed::CompactionOption;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use crate::database::{open_env, sync_directory, wait_until_closed};
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::write_lock::WriteLock;

/// Rewrites the file of the store in a directory. Returns its bytes before and after.
///
/// # Errors
/// The system's, and that of a store that a process has open; the store is as before.
pub(crate) fn compact(path: &Path) -> Result<(u64, u64), StoreError> {
    wait_until_closed(path)?;
    let write_lock = WriteLock::open(path)?;
    let _guard = write_lock.lock()?;
    let (file, copied) = (path.join("data.mdb"), path.join("data.mdb.compact"));
    let before = fs::metadata(&file)?;
    let _unused = lock_unused(path)?;
    let replaced = copy(path, &copied, &before).and_then(|after| {
        fs::rename(&copied, &file)?;
        sync_directory(path)?;
        Ok(after)
    });
    if replaced.is_err() {
        // There is none after most errors.
        let _ = fs::remove_file(&copied);
    }
    Ok((before.len(), replaced?))
}

/// Locks LMDB's lock file, of which each process that has the store open has a shared lock. LMDB
/// replaces this lock by its own when this process opens the store.
fn lock_unused(path: &Path) -> Result<File, StoreError> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path.join("lock.mdb"))?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::AGAIN | Errno::ACCESS) => {
            Err(StoreError::Failed("another process has it open".to_owned()))
        }
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Copies the store, with the owner and the mode of its file. Returns the bytes of the copy, which
/// the disk has.
fn copy(path: &Path, copied: &Path, original: &Metadata) -> Result<u64, StoreError> {
    let env = open_env(path, &StoreOptions::default())?;
    let file = env.copy_to_path(copied, CompactionOption::Enabled)?;
    env.prepare_for_closing().wait();
    file.set_permissions(original.permissions())?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (original.uid(), original.gid()) {
        fchown(&file, Some(original.uid()), Some(original.gid()))?;
    }
    file.sync_all()?;
    Ok(made.len())
}
