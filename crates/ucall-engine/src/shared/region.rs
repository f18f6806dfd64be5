//! Memory behind a descriptor, which another process may have, too.
//!
//! It comes from `memfd_create` and is sealed, so that it can neither shrink nor grow: a process
//! that has mapped it can read all of it, whatever the other side does. Memory that is also sealed
//! against writes never changes; the kernel sets that seal only if no process can write.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use ucall_buffer::SharedMemoryError;

use super::copy::copy_bytes;

/// The most mappings of one process: a quarter of Linux's default (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 16 * 1024;
/// Longer mappings are not populated with pages at once.
const POPULATED_BYTES_MAX: usize = 64 << 20;
/// The file system of memory from `memfd_create`. That of huge pages is another: a read may find
/// those missing.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// The use of memory after its first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryUse {
    /// It holds this message for good.
    Once,
    /// It is written again for other messages, perhaps by its receiver, too.
    Reused,
    /// It is written again by its maker alone.
    OneWriter,
}

/// New memory of this many bytes, without seals.
pub fn create(bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = match fs::memfd_create(c"ucall", flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag, which later versions may require.
        Err(Errno::INVAL) => fs::memfd_create(c"ucall", flags)?,
        created => created?,
    };
    fs::ftruncate(&memory, bytes)?;
    Ok(memory)
}

/// Allocates all pages now: a lack of memory is an error here, and a crash later.
pub fn allocate(memory: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    fs::fallocate(memory, FallocateFlags::empty(), 0, bytes)
}

/// Writes all of it.
pub fn write(memory: BorrowedFd<'_>, at: u64, mut bytes: &[u8]) -> io::Result<()> {
    let mut at = at;
    while !bytes.is_empty() {
        let written = match io::pwrite(memory, bytes, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Err(Errno::INTR) => continue,
            written => written?,
        };
        at += written as u64;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Sets the seals that this use requires.
pub fn seal(memory: BorrowedFd<'_>, memory_use: MemoryUse) -> io::Result<()> {
    fs::fcntl_add_seals(memory, wanted_seals(memory_use))
}

fn wanted_seals(memory_use: MemoryUse) -> SealFlags {
    match memory_use {
        MemoryUse::Once => FIXED_SIZE | SealFlags::WRITE,
        MemoryUse::Reused => FIXED_SIZE,
        MemoryUse::OneWriter => FIXED_SIZE | SealFlags::FUTURE_WRITE,
    }
}

/// Checks memory of a peer; returns its length if it may be mapped.
pub fn check(memory: BorrowedFd<'_>, memory_use: MemoryUse) -> Result<u64, SharedMemoryError> {
    let wrong = |_| SharedMemoryError::Invalid;
    let seals = fs::fcntl_get_seals(memory).map_err(wrong)?;
    let kind = fs::fstatfs(memory).map_err(wrong)?.f_type;
    let found = fs::fstat(memory).map_err(wrong)?;
    let length = u64::try_from(found.st_size).map_err(|_| SharedMemoryError::Invalid)?;
    let allocated = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
    // A read of a missing page would allocate it in this process.
    let is_whole = length > 0 && allocated >= length;
    #[allow(clippy::unnecessary_cast, reason = "its type differs between architectures")]
    let is_memory = kind as i64 == TMPFS_MAGIC;
    match seals.contains(wanted_seals(memory_use)) && is_memory && is_whole {
        true => Ok(length),
        false => Err(SharedMemoryError::Invalid),
    }
}

/// Memory of a descriptor, mapped into this process.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address and a length, and belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: shared references only read, through `as_ptr`, under the rules stated there.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory for reading, of which [`check`] has found at least this many bytes.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn to_read(
        memory: BorrowedFd<'_>,
        bytes: usize,
        memory_use: MemoryUse,
    ) -> io::Result<Self> {
        // Linux before 6.7 makes no shared mapping of memory that is sealed against writes. A
        // private mapping has the same pages, because no process writes.
        let kind = match memory_use {
            MemoryUse::Once => MapFlags::PRIVATE,
            MemoryUse::Reused | MemoryUse::OneWriter => MapFlags::SHARED,
        };
        Self::map(memory, bytes, ProtFlags::READ, kind)
    }

    /// Maps memory that is used again for writing, our own or that of which [`check`] has found at
    /// least this many bytes.
    ///
    /// # Errors
    /// The system has no memory for it, or its owner has sealed it against writes.
    pub fn to_write(memory: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::map(memory, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    fn map(
        memory: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        kind: MapFlags,
    ) -> io::Result<Self> {
        if MAPPINGS.fetch_add(1, Ordering::Relaxed) >= MAPPINGS_MAX {
            MAPPINGS.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::NOMEM);
        }
        let is_short = bytes <= POPULATED_BYTES_MAX;
        let flags = if is_short { kind | MapFlags::POPULATE } else { kind };
        // SAFETY: the kernel picks the address, so no other mapping is replaced.
        let mapped = unsafe { mmap(null_mut(), bytes, protection, flags, memory.as_fd(), 0) };
        let start = mapped.and_then(|start| NonNull::new(start.cast()).ok_or(Errno::NOMEM));
        match start {
            Ok(start) => Ok(Self { start, bytes }),
            Err(error) => {
                MAPPINGS.fetch_sub(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Its address. All of it is readable for as long as the mapping exists; whether it can change
    /// depends on its seals.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a copy of this many bytes at `at`; `false` if they are not within the mapping, or
    /// `copy` has no capacity for them.
    pub fn read(&self, at: u64, bytes: usize, copy: &mut Vec<u8>) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        let is_within = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if !is_within || copy.capacity() - copy.len() < bytes {
            return false;
        }
        let filled = copy.len();
        // SAFETY: the bytes are within the mapping, and `copy` has capacity for them after
        // `filled`. A peer may write to them meanwhile: then the copy has old and new bytes, and no
        // byte is read twice.
        unsafe {
            let end = copy.as_mut_ptr().add(filled);
            copy_bytes(self.start.as_ptr().add(at), end, bytes);
            copy.set_len(filled + bytes);
        }
        true
    }

    /// Writes bytes at `at` to memory that was mapped for writing; `false` if they do not fit.
    pub fn write(&self, at: u64, bytes: &[u8]) -> bool {
        let Ok(at) = usize::try_from(at) else { return false };
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.bytes) {
            return false;
        }
        // SAFETY: the range is within the mapping, which is writable. Who calls this has the slot:
        // nothing else of this process writes to the range or relies on what it has.
        unsafe { copy_bytes(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
        true
    }

    /// Where bytes are within the mapping, if all of them are.
    pub fn position_of(&self, bytes: &[u8]) -> Option<usize> {
        let at = (bytes.as_ptr() as usize).checked_sub(self.start.as_ptr() as usize)?;
        let end = at.checked_add(bytes.len())?;
        (!bytes.is_empty() && end <= self.bytes).then_some(at)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and every reader owns the mapping. An error
        // would mean that it is not mapped, and has no remedy.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most bytes of all slots of this process that are of one kind, and those in use. With many
/// peers, each has fewer or none.
#[derive(Debug)]
pub struct Quota {
    used: AtomicU64,
    bytes_max: u64,
}

impl Quota {
    /// A quota of this many bytes.
    pub const fn new(bytes_max: u64) -> Self {
        Self { used: AtomicU64::new(0), bytes_max }
    }

    /// A share of this many bytes, if they are left.
    pub fn take(&'static self, bytes: u64) -> Option<QuotaShare> {
        let share = QuotaShare { quota: self, bytes };
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        (before.saturating_add(bytes) <= self.bytes_max).then_some(share)
    }
}

/// A share of a quota, which is returned when it is dropped.
#[derive(Debug)]
pub struct QuotaShare {
    quota: &'static Quota,
    bytes: u64,
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether less than half of all mappings are in use.
pub fn has_room() -> bool {
    MAPPINGS.load(Ordering::Relaxed) < MAPPINGS_MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_shared_by_all_slots_and_returned() {
        static QUOTA: Quota = Quota::new(128);
        let most = QUOTA.take(127).unwrap();
        assert!(QUOTA.take(2).is_none());
        let last = QUOTA.take(1).unwrap();
        assert!(QUOTA.take(1).is_none());
        drop(most);
        assert!(QUOTA.take(128).is_none(), "one byte is still in use");
        drop(last);
        assert!(QUOTA.take(128).is_some());
    }
}
