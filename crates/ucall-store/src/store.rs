//! A store of this process: opened once, shared by all that use its path.

use std::collections::HashMap;
use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf, absolute};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};

use crate::committer::{Committer, MAINTENANCE_INTERVAL, ReplySink, Written};
use crate::compaction::compact;
use crate::data_file::identity;
use crate::database::{Database, Snapshot, corrupt};
use crate::entry::{StoredValue, Value};
use crate::error::StoreError;
use crate::operation::{Operation, check_key};
use crate::options::StoreOptions;

/// Entries that have expired, and that one scan steps over.
const SKIPPED_MAX: usize = 10_000;

/// A store that each process opens when it first needs it, so after any fork.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    options: StoreOptions,
    opened: Mutex<Option<Arc<OpenStore>>>,
}

impl Store {
    /// The store in the directory `path`, also if the process changes its directory before it opens
    /// the store, as daemon(3) does.
    pub fn new(path: PathBuf, options: StoreOptions) -> Self {
        let path = absolute(&path).unwrap_or(path);
        Self { path, options, opened: Mutex::default() }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the store in this process, unless it is open.
    ///
    /// # Errors
    /// The system's, and those of a store that is open with other options, or that was opened
    /// before this process was forked.
    pub fn open(&self) -> Result<Arc<OpenStore>, StoreError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() {
            *opened = Some(OpenStore::of_path(&self.path, &self.options)?);
        }
        let store = opened.clone().ok_or_else(corrupt)?;
        store.check_process()?;
        Ok(store)
    }

    /// Rewrites the file without its free pages. Returns its bytes before and after. A process that
    /// opens the store waits until then.
    ///
    /// # Errors
    /// The system's, and that of a store that a process has open; the store is as before.
    pub fn compact(&self) -> Result<(u64, u64), StoreError> {
        // No thread of this process opens it meanwhile.
        let mut open = lock_open();
        match find_open(open.get_or_insert_default(), &self.path)? {
            Some(_) => Err(StoreError::Failed("this process has it open".to_owned())),
            None => compact(&self.path),
        }
    }

    /// Closes the store once its other users are done with it.
    pub fn close(&self) {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(inherited) = opened.filter(|opened| opened.check_process().is_err()) {
            // Its thread and its locks are the parent's.
            std::mem::forget(inherited);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

/// An open store.
pub struct OpenStore {
    // Dropped first: it ends with its last write.
    committer: Committer,
    pub(crate) database: Arc<Database>,
    pub(crate) options: StoreOptions,
    /// The process that has opened it.
    process: u32,
}

/// A value and its version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// Counts the writes of the store.
    pub version: u64,
}

/// Which entries a scan returns, in the order of their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// With keys that begin so.
    pub prefix: Vec<u8>,
    /// From this key on.
    pub start: Option<Vec<u8>>,
    /// Before this key.
    pub end: Option<Vec<u8>>,
    /// After this key: the cursor of the page before.
    pub cursor: Option<Vec<u8>>,
    /// The number of entries.
    pub limit: usize,
}

/// The entries of one scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanPage {
    /// The keys and their entries.
    pub entries: Vec<(Vec<u8>, Entry)>,
    /// For the next page; `None` after the last one.
    pub cursor: Option<Vec<u8>>,
}

/// The stores that this process has open, by their paths.
type OpenStores = HashMap<PathBuf, Weak<OpenStore>>;

fn lock_open() -> MutexGuard<'static, Option<OpenStores>> {
    static OPEN: Mutex<Option<OpenStores>> = Mutex::new(None);
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store that this process has open at that path, also if its directory was removed.
fn find_open(open: &OpenStores, path: &Path) -> Result<Option<Arc<OpenStore>>, StoreError> {
    if let Some(store) = open.get(&resolved(path)).and_then(Weak::upgrade) {
        return Ok(Some(store));
    }
    // A file that closes ends this process's locks of it, whatever its name.
    let Ok(file) = fs::metadata(path.join("data.mdb")).map(|file| identity(&file)) else {
        return Ok(None);
    };
    let is_same = |store: &Weak<OpenStore>| {
        store.upgrade().is_some_and(|store| store.database.file.identity() == file)
    };
    match open.iter().find(|(_, store)| is_same(store)) {
        None => Ok(None),
        Some((other, _)) => Err(StoreError::Failed(format!(
            "cannot open the store {}: this process has it open as {}",
            path.display(),
            other.display()
        ))),
    }
}

/// A path without symbolic links, also of a directory that does not exist.
fn resolved(path: &Path) -> PathBuf {
    let above = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(above).unwrap_or_else(|| path.to_owned())
}

impl Scan {
    /// The most entries of one scan.
    pub const LIMIT_MAX: usize = 10_000;
    /// The bytes of values after which a scan ends early.
    pub const BYTES_MAX: usize = 1 << 20;

    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let start = self.start.as_deref().unwrap_or_default().max(&self.prefix);
        let from = match self.cursor.as_deref() {
            Some(cursor) if cursor >= start && !cursor.is_empty() => Bound::Excluded(cursor),
            _ if start.is_empty() => Bound::Unbounded,
            _ => Bound::Included(start),
        };
        let to = self.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        (from, to)
    }
}

impl OpenStore {
    /// The store of this process with that path.
    fn of_path(path: &Path, options: &StoreOptions) -> Result<Arc<Self>, StoreError> {
        let mut open = lock_open();
        let open = open.get_or_insert_default();
        if let Some(store) = find_open(open, path)? {
            store.check_process()?;
            store.database.file.check()?;
            return match store.options == *options {
                true => Ok(store),
                false => Err(StoreError::Failed(format!(
                    "the store {} is open already, with other options",
                    path.display()
                ))),
            };
        }
        let database = Arc::new(Database::open(path, options)?);
        let committer = Committer::start(database.clone(), MAINTENANCE_INTERVAL)?;
        let (options, process) = (options.clone(), process::id());
        let store = Arc::new(Self { committer, database, options, process });
        open.insert(path.canonicalize()?, Arc::downgrade(&store));
        Ok(store)
    }

    pub(crate) fn check_process(&self) -> Result<(), StoreError> {
        match self.process == process::id() {
            true => Ok(()),
            false => Err(StoreError::Failed(
                "the store was opened before this process was forked: close it before the fork"
                    .into(),
            )),
        }
    }

    /// The options it was opened with.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The entry of a key.
    ///
    /// # Errors
    /// For a key that is too long, and the system's.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        check_key("key", key)?;
        let snapshot = self.database.snapshot()?;
        Ok(self.database.get(&snapshot, key, self.database.now_ms())?.map(Entry::from))
    }

    /// The next entries in the order of their keys.
    ///
    /// # Errors
    /// For a limit out of range, and the system's.
    pub fn scan(&self, scan: &Scan) -> Result<ScanPage, StoreError> {
        let (mut entries, snapshot) = (Vec::new(), self.database.snapshot()?);
        let cursor = self.scan_with(&snapshot, scan, |key, value| {
            entries.push((key.to_vec(), Entry::from(value)));
        })?;
        Ok(ScanPage { entries, cursor })
    }

    /// Calls `visit` with each entry of a scan; returns its cursor.
    pub(crate) fn scan_with(
        &self,
        snapshot: &Snapshot,
        scan: &Scan,
        mut visit: impl FnMut(&[u8], StoredValue<'_>),
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if !(1..=Scan::LIMIT_MAX).contains(&scan.limit) {
            let max = Scan::LIMIT_MAX;
            return Err(StoreError::invalid(format!("limit: expected 1 to {max}")));
        }
        let (now, bounds) = (self.database.now_ms(), scan.bounds());
        if is_empty(bounds) {
            return Ok(None);
        }
        let (mut visited, mut skipped, mut bytes) = (0, 0, 0);
        let mut last = None;
        for entry in self.database.entries.range(snapshot, &bounds)? {
            let (key, stored) = entry?;
            if !key.starts_with(&scan.prefix) {
                return Ok(None);
            }
            if visited == scan.limit || skipped == SKIPPED_MAX || bytes > Scan::BYTES_MAX {
                return Ok(last.map(<[u8]>::to_vec));
            }
            last = Some(key);
            let value = StoredValue::decode(stored).ok_or_else(corrupt)?;
            if value.has_expired(now) {
                skipped += 1;
                continue;
            }
            visited += 1;
            bytes += value.bytes.len();
            visit(key, value);
        }
        Ok(None)
    }

    /// Has valid operations run in this order. `reply` is called with their outcomes, on another
    /// thread, once they are durable.
    pub(crate) fn submit(&self, operations: Vec<Operation>, reply: ReplySink) {
        self.committer.submit(operations, reply);
    }

    /// Runs an operation, and waits until it is durable.
    ///
    /// # Errors
    /// Those of the operation, and the system's.
    pub fn write(&self, operation: Operation) -> Written {
        operation.validate(&self.options)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let reply = move |mut written: Vec<Written>| drop(sender.send(written.pop()));
        self.submit(vec![operation], Box::new(reply));
        let written = receiver.recv().ok().flatten();
        written.unwrap_or_else(|| Err(StoreError::Failed("its thread has failed".to_owned())))
    }

    /// Waits until the disk has all writes; for [`Durability::None`].
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.database.file.check()?;
        self.database.sync()
    }
}

impl std::fmt::Debug for OpenStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OpenStore").field("options", &self.options).finish_non_exhaustive()
    }
}

impl From<StoredValue<'_>> for Entry {
    fn from(stored: StoredValue<'_>) -> Self {
        let kind = if stored.is_json { Value::Json } else { Value::Bytes };
        Self { value: kind(stored.bytes.to_vec()), version: stored.version }
    }
}

/// Whether no key is within the bounds. LMDB's ranges are for others.
fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
        (Bound::Unbounded, Bound::Excluded(to)) => to.is_empty(),
        _ => false,
    }
}
