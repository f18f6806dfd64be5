//! LMDB's lock file: its space, and the processes that have it locked.
//!
//! LMDB sets its length, and writes to its map: on a full disk that ends the process (SIGBUS). So
//! its space is reserved before LMDB opens it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use crate::error::StoreError;
use crate::write_lock::WriteLock;

/// Snapshots at once, of all processes.
pub(crate) const READERS_MAX: u32 = 1024;
/// At least the bytes of the file: its head, and a slot of a cache line for each snapshot.
const BYTES: u64 = READERS_MAX as u64 * 64 + 4096;

/// Reserves the space of the file. Fails if a process of another PID namespace has the store open:
/// neither could tell which readers of the other have died.
pub(crate) fn prepare(path: &Path, write_lock: &WriteLock) -> Result<(), StoreError> {
    let file = open(path)?;
    reserve(&file, path)?;
    let Some(namespace) = pid_namespace() else { return Ok(()) };
    if lock_unused(&file)? {
        return Ok(write_lock.set_text(&namespace)?);
    }
    let others = write_lock.text()?;
    match others.is_empty() || others == namespace {
        true => Ok(()),
        false => Err(StoreError::Failed(
            "a process of another PID namespace has it open, such as one of another container"
                .into(),
        )),
    }
}

/// Opens the file in the directory `path`, which is made if there is none. Closing it ends the
/// locks that this process has of it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path.join("lock.mdb"))
}

/// Locks the file, of which each process that has the store open has a shared lock; `false` if
/// there is such a process. LMDB replaces this lock by its own when this process opens the store.
pub(crate) fn lock_unused(file: &File) -> io::Result<bool> {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reserves the space of the file, without a change of its length.
pub(crate) fn reserve(file: &File, path: &Path) -> Result<(), StoreError> {
    reserve_space(file).map_err(|error| {
        let path = path.join("lock.mdb");
        StoreError::Failed(format!("{}: {}", path.display(), StoreError::from(error)))
    })
}

#[cfg(target_os = "linux")]
fn reserve_space(file: &File) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, BYTES) {
        // Some file systems cannot reserve space.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        reserved => Ok(reserved?),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve_space(_file: &File) -> io::Result<()> {
    Ok(())
}

/// The PID namespace of this process, if the system has them.
fn pid_namespace() -> Option<String> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino().to_string())
}

/// Whether a file cannot be written because its file system is read-only.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ReadOnlyFilesystem
}
