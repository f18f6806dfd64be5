//! The LMDB file of a store: its tables, and transactions on them.
//!
//! | table | key | value |
//! |---|---|---|
//! | `entries` | the key | the [`entry`](crate::entry) |
//! | `expiries` | when it expires and its version, big-endian | the key |
//! | `meta` | `format` | the format of the file |
//! | | `version` | the last version that was given |
//! | | `watch` | the bytes in `changes`, and the numbers of the processes that watch |
//! | `changes` | the version, big-endian | the [`change`](crate::change), while a process watches |

use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use rustix::io::{FdFlags, fcntl_setfd};
use ucall_server::EngineClock;

use crate::change::{Change, Event};
use crate::data_file::{DataFile, check_pages, identity};
use crate::entry::{StoredValue, Value, encode};
use crate::error::StoreError;
use crate::lock_file::{self, READERS_MAX};
use crate::options::{Durability, StoreOptions};
use crate::watchers::Watchers;
use crate::write_lock::{WriteGuard, WriteLock};

type Table = heed::Database<'static, Bytes, Bytes>;
/// A snapshot of the store.
pub(crate) type Snapshot = RoTxn<'static, WithoutTls>;

/// The file is closed by the last user of an earlier store of this path.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
const FORMAT: &[u8] = b"1";

pub(crate) struct Database {
    // Dropped before the store can be opened again: a file that closes ends the process's locks.
    write_lock: Option<WriteLock>,
    pub(crate) file: DataFile,
    env: Env<WithoutTls>,
    pub(crate) entries: Table,
    expiries: Table,
    meta: Table,
    changes: Table,
    /// The bytes that all tables may have.
    used_bytes_max: usize,
    /// The bytes that `changes` may have.
    watch_bytes_max: u64,
    is_read_only: bool,
    pub(crate) watchers: Watchers,
    clock: EngineClock,
}

impl Database {
    /// Opens the store in the directory `path`, which is made if there is none.
    pub(crate) fn open(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::open_locked(path, options).map_err(|error| {
            StoreError::Failed(format!("cannot open the store {}: {error}", path.display()))
        })
    }

    /// Holds the lock for writers from before LMDB opens its files, which
    /// [`compact`](crate::compaction::compact) may replace until then.
    fn open_locked(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        let is_read_only = options.is_read_only;
        if is_read_only {
            fs::metadata(path.join("data.mdb"))?;
        } else {
            make_directory(path)?;
        }
        wait_until_closed(path)?;
        let write_lock = match WriteLock::open(path) {
            // No process writes to it.
            Err(error) if is_read_only && lock_file::is_read_only(&error) => None,
            opened => Some(opened?),
        };
        let guard = write_lock.as_ref().map(WriteLock::lock).transpose()?;
        if let Some(write_lock) = &write_lock {
            lock_file::prepare(path, write_lock)?;
        }
        let env = open_env(path, options)?;
        let [entries, expiries, meta, changes] = match is_read_only {
            true => find_tables(&env)?,
            false => make_tables(&env)?,
        };
        check_format(&env, meta, is_read_only)?;
        let file = DataFile::of(path)?;
        if !is_read_only {
            sync_directory(path)?;
        }
        drop(guard);
        let (watch_bytes_max, watchers) = (options.watch_bytes_max as u64, Watchers::new(path));
        let used_bytes_max = options.used_bytes_max();
        let database = Self {
            write_lock,
            file,
            env,
            entries,
            expiries,
            meta,
            changes,
            used_bytes_max,
            watch_bytes_max,
            is_read_only,
            watchers,
            clock: options.clock.clone(),
        };
        database.clear_stale_readers()?;
        Ok(database)
    }

    /// Frees the slots of processes that have died in a read.
    pub(crate) fn clear_stale_readers(&self) -> Result<(), StoreError> {
        Ok(self.env.clear_stale_readers().map(drop)?)
    }

    /// Milliseconds since 1970. Processes share the times at which entries expire.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.unix_time().as_millis() as u64
    }

    /// The newest state.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.file.check_last()?;
        Ok(self.env.clone().static_read_txn()?)
    }

    /// The bytes of the pages of all tables.
    fn used_bytes(&self, snapshot: &RoTxn<'_, heed::AnyTls>) -> Result<usize, StoreError> {
        let mut bytes = 0;
        for table in [self.entries, self.expiries, self.meta, self.changes] {
            let stat = table.stat(snapshot)?;
            let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
            bytes += pages * stat.page_size as usize;
        }
        Ok(bytes)
    }

    /// Whether nothing was committed since.
    #[inline]
    pub(crate) fn is_newest(&self, snapshot: &Snapshot) -> bool {
        self.last_commit() == snapshot.id()
    }

    /// Counts the commits of all processes.
    #[inline]
    pub(crate) fn last_commit(&self) -> usize {
        self.env.info().last_txn_id
    }

    /// The last version that was given.
    pub(crate) fn version(&self, snapshot: &RoTxn<'_, heed::AnyTls>) -> Result<u64, StoreError> {
        match self.meta.get(snapshot, b"version")? {
            Some(bytes) => Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| corrupt())?)),
            None => Ok(0),
        }
    }

    /// Calls `visit` with the logged changes after a version, until it returns `false`.
    pub(crate) fn changes_after(
        &self,
        snapshot: &Snapshot,
        version: u64,
        mut visit: impl FnMut(u64, Change<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let from = (version + 1).to_be_bytes();
        for logged in
            self.changes.range(snapshot, &(Bound::Included(&from[..]), Bound::Unbounded))?
        {
            let (version, change) = logged?;
            let version = u64::from_be_bytes(version.try_into().map_err(|_| corrupt())?);
            if !visit(version, Change::decode(change).ok_or_else(corrupt)?) {
                break;
            }
        }
        Ok(())
    }

    /// When the next entry expires, in milliseconds since 1970.
    pub(crate) fn next_expiry(&self) -> Result<Option<u64>, StoreError> {
        let snapshot = self.snapshot()?;
        let Some((expiry, _)) = self.expiries.first(&snapshot)? else { return Ok(None) };
        let (expires_at, _) = expiry.split_first_chunk::<8>().ok_or_else(corrupt)?;
        Ok(Some(u64::from_be_bytes(*expires_at)))
    }

    /// Whether an entry is found when it expires, if it does.
    pub(crate) fn has_expiry(
        &self,
        snapshot: &Snapshot,
        key: &[u8],
        entry: &StoredValue<'_>,
    ) -> Result<bool, StoreError> {
        let expiry = expiry_key(entry.expires_at, entry.version);
        Ok(entry.expires_at == 0 || self.expiries.get(snapshot, &expiry)? == Some(key))
    }

    /// How many entries expire.
    pub(crate) fn expiries_len(&self, snapshot: &Snapshot) -> Result<u64, StoreError> {
        Ok(self.expiries.len(snapshot)?)
    }

    /// The value of a key, unless it has expired.
    pub(crate) fn get<'a>(
        &self,
        snapshot: &'a RoTxn<'_, heed::AnyTls>,
        key: &[u8],
        now: u64,
    ) -> Result<Option<StoredValue<'a>>, StoreError> {
        let Some(stored) = self.entries.get(snapshot, key)? else { return Ok(None) };
        let value = StoredValue::decode(stored).ok_or_else(corrupt)?;
        Ok((!value.has_expired(now)).then_some(value))
    }

    /// Begins to write. Waits for writers of other processes.
    pub(crate) fn write(&self) -> Result<Writer<'_>, StoreError> {
        let Some(write_lock) = self.write_lock.as_ref().filter(|_| !self.is_read_only) else {
            return Err(StoreError::Failed("it is open for reading only".to_owned()));
        };
        let guard = Some(write_lock.lock()?);
        // Before the map is read, which may be of pages that the file had.
        self.file.check()?;
        let transaction = self.env.write_txn()?;
        let version = self.version(&transaction)?;
        let mut log = match self.meta.get(&transaction, b"watch")? {
            Some(stored) => LogState::decode(stored).ok_or_else(corrupt)?,
            None => LogState::default(),
        };
        if log.is_used() {
            log.remove(&self.watchers.ended());
        }
        Ok(Writer { database: self, transaction, version, log, now: self.now_ms(), _guard: guard })
    }

    /// Waits until the disk has all that was committed.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        Ok(self.env.force_sync()?)
    }
}

/// A transaction that writes, and is dropped unless it is committed.
pub(crate) struct Writer<'a> {
    database: &'a Database,
    transaction: RwTxn<'a>,
    /// The last version that was given.
    version: u64,
    log: LogState,
    /// Milliseconds since 1970.
    pub(crate) now: u64,
    /// Dropped last; a nested transaction has none.
    _guard: Option<WriteGuard<'a>>,
}

impl Writer<'_> {
    /// Runs `work` in a transaction of its own within this one, which is kept if it returns `true`.
    pub(crate) fn nested<T>(
        &mut self,
        work: impl FnOnce(&mut Writer<'_>) -> Result<(T, bool), StoreError>,
    ) -> Result<T, StoreError> {
        let (database, version, now) = (self.database, self.version, self.now);
        let log = self.log.clone();
        let transaction = database.env.nested_write_txn(&mut self.transaction)?;
        let mut writer = Writer { database, transaction, version, log, now, _guard: None };
        let (value, is_kept) = work(&mut writer)?;
        if is_kept {
            let (version, log) = (writer.version, writer.log);
            writer.transaction.commit()?;
            (self.version, self.log) = (version, log);
        }
        Ok(value)
    }

    /// The value of a key, unless it has expired.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<StoredValue<'_>>, StoreError> {
        self.database.get(&self.transaction, key, self.now)
    }

    /// Sets the value of a key; returns its version. `expires_at` is 0 for never.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &Value,
        expires_at: u64,
    ) -> Result<u64, StoreError> {
        self.remove_expiry(key)?;
        self.version += 1;
        let stored = encode(value, self.version, expires_at);
        let Self { database, transaction, version, .. } = self;
        database.entries.put(transaction, key, &stored)?;
        if expires_at != 0 {
            database.expiries.put(transaction, &expiry_key(expires_at, *version), key)?;
        }
        if self.log.is_used() {
            self.log_change(&Change { key, event: value.into() })?;
        }
        Ok(self.version)
    }

    /// Removes a key; `false` if it was absent.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let was_present = self.get(key)?.is_some();
        self.remove_expiry(key)?;
        let had_entry = self.database.entries.delete(&mut self.transaction, key)?;
        if had_entry && self.log.is_used() {
            let event = if was_present { Event::Deleted } else { Event::Expired };
            self.version += 1;
            self.log_change(&Change { key, event })?;
        }
        Ok(was_present)
    }

    /// Logs what the last version is of.
    fn log_change(&mut self, change: &Change<'_>) -> Result<(), StoreError> {
        let (version, logged) = (self.version.to_be_bytes(), change.encode());
        self.log.bytes += (version.len() + logged.len()) as u64;
        self.log.is_changed = true;
        Ok(self.database.changes.put(&mut self.transaction, &version, &logged)?)
    }

    /// Has changes logged for this process from now on; returns the last version before.
    pub(crate) fn add_watcher(&mut self) -> u64 {
        let process = self.database.watchers.number();
        if !self.log.processes.contains(&process) {
            self.log.processes.push(process);
            self.log.is_changed = true;
        }
        self.version
    }

    /// Ends that, if this process watches no more.
    pub(crate) fn remove_watcher(&mut self) {
        let watchers = &self.database.watchers;
        if watchers.count() == 0 {
            self.log.remove(&[watchers.number()]);
        }
    }

    fn remove_expiry(&mut self, key: &[u8]) -> Result<(), StoreError> {
        let Self { database, transaction, .. } = self;
        let Some(stored) = database.entries.get(transaction, key)? else { return Ok(()) };
        let StoredValue { version, expires_at, .. } =
            StoredValue::decode(stored).ok_or_else(corrupt)?;
        if expires_at != 0 {
            database.expiries.delete(transaction, &expiry_key(expires_at, version))?;
        }
        Ok(())
    }

    /// Removes up to `count` entries that have expired; returns how many.
    pub(crate) fn remove_expired(&mut self, count: usize) -> Result<usize, StoreError> {
        for removed in 0..count {
            let Self { database, transaction, now, .. } = self;
            let Some((expiry, key)) = database.expiries.first(transaction)? else {
                return Ok(removed);
            };
            if expiry > &expiry_key(*now, u64::MAX)[..] {
                return Ok(removed);
            }
            let (expiry, key) = (expiry.to_vec(), key.to_vec());
            database.expiries.delete(transaction, &expiry)?;
            database.entries.delete(transaction, &key)?;
            if self.log.is_used() {
                self.version += 1;
                self.log_change(&Change { key: &key, event: Event::Expired })?;
            }
        }
        Ok(count)
    }

    /// Fails if the writes have made the tables larger, and larger than they may be.
    pub(crate) fn check_growth(&self) -> Result<(), StoreError> {
        let used = self.database.used_bytes(&self.transaction)?;
        if used <= self.database.used_bytes_max {
            return Ok(());
        }
        let committed = self.database.env.read_txn()?;
        match used > self.database.used_bytes(&committed)? {
            true => Err(heed::Error::Mdb(heed::MdbError::MapFull).into()),
            false => Ok(()),
        }
    }

    /// Makes the writes durable, by the durability of the store, and wakes watchers.
    pub(crate) fn commit(mut self) -> Result<(), StoreError> {
        let version = self.version.to_le_bytes();
        self.database.meta.put(&mut self.transaction, b"version", &version)?;
        if self.log.is_changed {
            self.trim_log()?;
        }
        let Self { database, transaction, log, .. } = self;
        transaction.commit()?;
        if log.is_changed {
            database.watchers.forget(&log.removed);
            database.watchers.wake(&log.processes);
        }
        Ok(())
    }

    /// Removes the oldest changes past the limit, or all if no process watches.
    fn trim_log(&mut self) -> Result<(), StoreError> {
        let Self { database, transaction, log, .. } = self;
        if !log.is_used() {
            database.changes.clear(transaction)?;
            log.bytes = 0;
        }
        let newest = self.version.to_be_bytes();
        while log.bytes > database.watch_bytes_max
            && let Some((version, change)) = database.changes.first(transaction)?
            && version != newest
        {
            let version: [u8; 8] = version.try_into().map_err(|_| corrupt())?;
            log.bytes = log.bytes.saturating_sub((version.len() + change.len()) as u64);
            database.changes.delete(transaction, &version)?;
        }
        Ok(database.meta.put(transaction, b"watch", &log.encode())?)
    }
}

/// The state of the log of changes.
#[derive(Clone, Default)]
struct LogState {
    bytes: u64,
    /// The numbers of the processes that watch.
    processes: Vec<u64>,
    /// Those that this transaction removes.
    removed: Vec<u64>,
    is_changed: bool,
}

impl LogState {
    /// Whether a process watches.
    #[inline]
    fn is_used(&self) -> bool {
        !self.processes.is_empty()
    }

    fn remove(&mut self, processes: &[u64]) {
        let before = self.processes.len();
        self.processes.retain(|process| !processes.contains(process));
        self.removed.extend_from_slice(processes);
        self.is_changed |= self.processes.len() < before;
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = std::iter::once(&self.bytes).chain(&self.processes);
        numbers.flat_map(|number| number.to_le_bytes()).collect()
    }

    fn decode(stored: &[u8]) -> Option<Self> {
        let (numbers, rest) = stored.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let (bytes, processes) = (numbers.next()?, numbers.collect());
        rest.is_empty().then_some(Self { bytes, processes, ..Self::default() })
    }
}

/// Makes a directory and those above it, unless there are such. The disk has them then.
fn make_directory(path: &Path) -> Result<(), StoreError> {
    let is_missing = |above: &&Path| !above.as_os_str().is_empty() && !above.exists();
    let made: Vec<_> = path.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(path)?;
    for directory in made {
        let above = directory.parent().filter(|above| !above.as_os_str().is_empty());
        sync_directory(above.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Waits until the disk has the names of the files in a directory.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    Ok(File::open(path)?.sync_all()?)
}

/// Waits until this process has closed the files of an earlier store of this path: a file that
/// closes ends the locks of the process.
pub(crate) fn wait_until_closed(path: &Path) -> Result<(), StoreError> {
    let closing = path.canonicalize().ok().and_then(heed::env_closing_event);
    match closing.is_none_or(|closing| closing.wait_timeout(CLOSE_WAIT)) {
        true => Ok(()),
        false => Err(heed::Error::EnvAlreadyOpened.into()),
    }
}

pub(crate) fn open_env(path: &Path, options: &StoreOptions) -> Result<Env<WithoutTls>, StoreError> {
    let mut settings = EnvOpenOptions::new().read_txn_without_tls();
    settings.map_size(options.map_bytes()).max_readers(READERS_MAX).max_dbs(4);
    if options.is_read_only {
        // SAFETY: the flag has no demands of its own.
        unsafe { settings.flags(EnvFlags::READ_ONLY) };
    } else if options.durability == Durability::None {
        // SAFETY: the documentation of this durability says that a crash of the system may damage
        // the file, and how to check it.
        unsafe { settings.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the documentation requires that no other program writes to the file. Other processes
    // with the same store take LMDB's locks.
    let opened = unsafe { settings.open(path) };
    let env = opened.map_err(|error| StoreError::of_opening(error, options.map_bytes()))?;
    close_on_exec(&path.join("data.mdb"))?;
    check_pages(path, env.info().last_page_number as u64)?;
    Ok(env)
}

/// Closes the file in programs that this process starts. LMDB opens it without that flag, and its
/// descriptor is known to LMDB alone.
fn close_on_exec(file: &Path) -> io::Result<()> {
    let file = identity(&fs::metadata(file)?);
    for entry in fs::read_dir("/dev/fd").into_iter().flatten().flatten() {
        let is_same = fs::metadata(entry.path()).is_ok_and(|other| identity(&other) == file);
        let name = entry.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.parse().ok()).filter(|_| is_same) {
            // SAFETY: if another thread closes the descriptor meanwhile, the call fails, or sets
            // the flag of another descriptor.
            let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
        }
    }
    Ok(())
}

fn find_tables(env: &Env<WithoutTls>) -> Result<[Table; 4], StoreError> {
    let missing = || StoreError::Failed("it has not the tables of a store".to_owned());
    let opened = env.open_databases_and_commit(env.read_txn()?, |opener, transaction| {
        let open = |name| opener.open_database(transaction, Some(name))?.ok_or_else(missing);
        let tables = [open("entries")?, open("expiries")?, open("meta")?, open("changes")?];
        Ok::<_, StoreError>(CommitOrAbort::<_, ()>::Commit(tables))
    })?;
    match opened {
        CommitOrAbort::Commit(tables) => Ok(tables),
        CommitOrAbort::Abort(()) => Err(missing()),
    }
}

fn make_tables(env: &Env<WithoutTls>) -> Result<[Table; 4], heed::Error> {
    let transaction = env.write_txn()?;
    let opened = env.create_databases_and_commit(transaction, |opener, transaction| {
        let mut open = |name| opener.create_database(transaction, Some(name));
        let tables = [open("entries")?, open("expiries")?, open("meta")?, open("changes")?];
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
    })?;
    match opened {
        CommitOrAbort::Commit(tables) => Ok(tables),
        CommitOrAbort::Abort(()) => Err(io::Error::other("the tables were not committed").into()),
    }
}

fn check_format(env: &Env<WithoutTls>, meta: Table, is_read_only: bool) -> Result<(), StoreError> {
    let snapshot = env.read_txn()?;
    match meta.get(&snapshot, b"format")? {
        Some(FORMAT) => Ok(()),
        Some(_) => Err(StoreError::Failed("a newer version of ucall has written it".into())),
        None if is_read_only => Err(corrupt()),
        None => {
            let mut transaction = env.write_txn()?;
            meta.put(&mut transaction, b"format", FORMAT)?;
            Ok(transaction.commit()?)
        }
    }
}

fn expiry_key(expires_at: u64, version: u64) -> [u8; 16] {
    (u128::from(expires_at) << 64 | u128::from(version)).to_be_bytes()
}

pub(crate) fn corrupt() -> StoreError {
    StoreError::Failed("the file is damaged, or another program has written to it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_past_the_limit_are_refused_until_others_end() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let database = Database::open(directory.path(), &StoreOptions::default()).expect("a store");
        let mut snapshots: Vec<_> =
            (0..READERS_MAX).map(|_| database.snapshot().expect("a snapshot")).collect();
        let refused = database.snapshot().err().expect("one too many");
        assert_eq!(refused.to_string(), "too many threads read the store at once");
        snapshots.pop();
        database.snapshot().expect("a snapshot");
    }
}
