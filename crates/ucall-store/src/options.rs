//! The options of a store.

use ucall_server::EngineClock;

/// The size of the map is a multiple of the page size of any system.
const MAP_STEP: usize = 64 << 10;
/// What a full file has for the copies of pages that a deletion changes.
const DELETION_BYTES: usize = 1 << 20;

/// When a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// After the disk has it (`fdatasync`).
    #[default]
    Commit,
    /// After other processes can read it. A crash of the process loses nothing, but one of the
    /// system may lose writes and damage the file.
    None,
}

/// The options of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreOptions {
    /// The size up to which its file grows, which is reserved in the address space.
    pub bytes_max: usize,
    /// The bytes of one value.
    pub value_bytes_max: usize,
    /// The bytes of changes that are kept for watchers.
    pub watch_bytes_max: usize,
    /// When a write is answered.
    pub durability: Durability,
    /// Whether it is only read, as on a read-only volume.
    pub is_read_only: bool,
    /// The clock by which entries expire.
    pub clock: EngineClock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            bytes_max: 64 << 30,
            value_bytes_max: 16 << 20,
            watch_bytes_max: 64 << 20,
            durability: Durability::Commit,
            is_read_only: false,
            clock: EngineClock::default(),
        }
    }
}

impl StoreOptions {
    /// The bytes that entries may use.
    pub(crate) fn used_bytes_max(&self) -> usize {
        self.bytes_max.max(1 << 20)
    }

    pub(crate) fn map_bytes(&self) -> usize {
        (self.used_bytes_max() + DELETION_BYTES).next_multiple_of(MAP_STEP)
    }
}
