//! Rewrites the file of a store without its free pages.
//!
//! The copy replaces the file after the disk has it, so a crash leaves the one or the other. The
//! hard part are the other processes: one with the earlier file open would write to a file that has
//! no name. So compaction takes `write.lock`, which a process needs to open the store, refuses if
//! another process has LMDB's lock file locked, and keeps `write.lock` to its end. LMDB's lock file
//! stays where it is: the next process that opens the store is the only one, and resets it.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use heed::CompactionOption;

use crate::database::{open_env, sync_directory, wait_until_closed};
use crate::error::StoreError;
use crate::lock_file;
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
    let lock_file = lock_file::open(path)?;
    lock_file::reserve(&lock_file, path)?;
    if !lock_file::lock_unused(&lock_file)? {
        return Err(StoreError::Failed("another process has it open".to_owned()));
    }
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
