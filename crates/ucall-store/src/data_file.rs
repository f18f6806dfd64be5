//! The file of a store: whether it is whole before its map is read, and still in its place.
//!
//! A read of the map past the end of the file ends the process (SIGBUS). The file may be shorter
//! than its last page without harm, because LMDB does not write pages that it has freed. So the
//! trees of a short file are walked by reads of the file, and each page of theirs must be in it.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::StoreError;

/// The device and the inode of a file.
pub(crate) type FileIdentity = (u64, u64);

pub(crate) fn identity(file: &Metadata) -> FileIdentity {
    (file.dev(), file.ino())
}

/// The file that a process has open.
pub(crate) struct DataFile {
    path: PathBuf,
    identity: FileIdentity,
    /// The length that it had last: it never becomes shorter while it is open.
    bytes: AtomicU64,
    /// What the last check has found.
    is_lost: AtomicBool,
}

impl DataFile {
    /// The file in the directory `path`.
    pub(crate) fn of(path: &Path) -> Result<Self, StoreError> {
        let path = path.join("data.mdb");
        let file = fs::metadata(&path)?;
        let (identity, bytes) = (identity(&file), AtomicU64::new(file.len()));
        Ok(Self { path, identity, bytes, is_lost: AtomicBool::new(false) })
    }

    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Fails if the file is not in its place any more, or shorter.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let reason = match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Some("removed"),
            // A folder that cannot be searched may hold it still.
            Err(error) => return Err(error.into()),
            Ok(file) if identity(&file) != self.identity => Some("replaced"),
            Ok(file) => {
                let is_shorter = file.len() < self.bytes.fetch_max(file.len(), Ordering::Relaxed);
                is_shorter.then_some("truncated")
            }
        };
        self.is_lost.store(reason.is_some(), Ordering::Relaxed);
        reason.map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    /// Fails if the last check has failed.
    #[inline]
    pub(crate) fn check_last(&self) -> Result<(), StoreError> {
        match self.is_lost.load(Ordering::Relaxed) {
            true => self.check(),
            false => Ok(()),
        }
    }

    #[cold]
    fn lost(&self, reason: &str) -> StoreError {
        let path = self.path.display();
        StoreError::Failed(format!(
            "{path} was {reason} while this process had it open: close the store, and open it again"
        ))
    }
}

/// Fails if the file in the directory `path` lacks pages that the store uses. `last_page` is the
/// highest page that it has had.
pub(crate) fn check_pages(path: &Path, last_page: u64) -> Result<(), StoreError> {
    let path = path.join("data.mdb");
    let file = File::open(&path)?;
    let bytes = file.metadata()?.len();
    let walk = Walk::begin(&file, bytes);
    let page_bytes = walk.as_ref().map_or(0, |walk| walk.page_bytes);
    if page_bytes != 0 && bytes / page_bytes > last_page {
        return Ok(());
    }
    match walk.and_then(Walk::run) {
        Some(()) => Ok(()),
        None => Err(StoreError::Failed(format!(
            "{} is damaged: it has {bytes} bytes, and lacks pages of the store",
            path.display()
        ))),
    }
}

const PAGE_HEAD_BYTES: usize = 16;
const META_BYTES: usize = 136;
const MAGIC: u32 = 0xBEEF_C0DE;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// The value of a node is the number of its first overflow page, or the root of a table.
const BIG: u16 = 1;
const TABLE: u16 = 2;
const NO_PAGE: u64 = u64::MAX;

/// A walk through all trees; `None` where a page is not in the file, or not one of a tree.
struct Walk<'a> {
    file: &'a File,
    page_bytes: u64,
    pages: u64,
    /// Pages that are still to be read.
    roots: Vec<u64>,
}

impl<'a> Walk<'a> {
    /// Starts with the newer of the two first pages.
    fn begin(file: &'a File, bytes: u64) -> Option<Self> {
        let mut first = [0; PAGE_HEAD_BYTES + META_BYTES];
        file.read_exact_at(&mut first, 0).ok()?;
        let page_bytes = u64::from(u32_at(&first, PAGE_HEAD_BYTES + 24)?);
        if !(512..=65_536).contains(&page_bytes) {
            return None;
        }
        let mut second = [0; PAGE_HEAD_BYTES + META_BYTES];
        file.read_exact_at(&mut second, page_bytes).ok()?;
        let version = |meta: &[u8]| u64_at(meta, PAGE_HEAD_BYTES + 128);
        let newer = if version(&second)? > version(&first)? { second } else { first };
        if u32_at(&newer, PAGE_HEAD_BYTES)? != MAGIC {
            return None;
        }
        // The tree of the free pages, and that of the tables.
        let roots = [64, 112].map(|at| u64_at(&newer, PAGE_HEAD_BYTES + at));
        let [free, tables] = roots;
        Some(Self { file, page_bytes, pages: bytes / page_bytes, roots: vec![free?, tables?] })
    }

    fn run(mut self) -> Option<()> {
        let mut page = vec![0; self.page_bytes as usize];
        let mut read = 0;
        while let Some(number) = self.roots.pop() {
            if number == NO_PAGE {
                continue;
            }
            read += 1;
            // Each page is in one tree, once.
            if number >= self.pages || read > self.pages {
                return None;
            }
            self.file.read_exact_at(&mut page, number * self.page_bytes).ok()?;
            self.visit(&page)?;
        }
        Some(())
    }

    fn visit(&mut self, page: &[u8]) -> Option<()> {
        let (flags, end) = (u16_at(page, 10)?, usize::from(u16_at(page, 12)?));
        for at in (PAGE_HEAD_BYTES..end).step_by(2) {
            let node = page.get(usize::from(u16_at(page, at)?)..)?;
            let (kind, key_bytes) = (u16_at(node, 4)?, usize::from(u16_at(node, 6)?));
            let low = u64::from(u32_at(node, 0)?);
            match flags {
                _ if flags & BRANCH != 0 => self.roots.push(low | u64::from(kind) << 32),
                _ if flags & LEAF == 0 => return None,
                _ if kind & TABLE != 0 => self.roots.push(u64_at(node, 8 + key_bytes + 40)?),
                _ if kind & BIG != 0 => {
                    let first = u64_at(node, 8 + key_bytes)?;
                    let pages = (PAGE_HEAD_BYTES as u64 + low).div_ceil(self.page_bytes);
                    if first.checked_add(pages)? > self.pages {
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
