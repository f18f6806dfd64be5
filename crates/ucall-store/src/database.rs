//! The LMDB file of a store: its tables, and transactions on them.
//!
//! | table | key | value |
//! |---|---|---|
//! | `entries` | the key | the [`entry`](crate::entry) |
//! | `expiries` | when it expires and its version, big-endian | the key |
//! | `meta` | `format` or `version` | the format of the file, the last version that was given |

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heed::types::Bytes;
use heed::{
    CommitOrAbort, CompactionOption, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls,
};

use crate::entry::{StoredValue, Value, encode};
use crate::error::StoreError;
use crate::options::{Durability, StoreOptions};
use crate::write_lock::{WriteGuard, WriteLock};

type Table = heed::Database<'static, Bytes, Bytes>;
/// A snapshot of the store.
pub(crate) type Snapshot = RoTxn<'static, WithoutTls>;

/// Snapshots at once, of all processes.
const READERS_MAX: u32 = 1024;
/// The file is closed by the last user of an earlier store of this path.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
const FORMAT: &[u8] = b"1";

pub(crate) struct Database {
    // Dropped before the store can be opened again: a file that closes ends the process's locks.
    write_lock: WriteLock,
    env: Env<WithoutTls>,
    pub(crate) entries: Table,
    expiries: Table,
    meta: Table,
}

impl Database {
    /// Opens the store in the directory `path`, which is made if there is none.
    pub(crate) fn open(path: &Path, options: &StoreOptions) -> Result<Self, StoreError> {
        let fail = |error: StoreError| {
            StoreError::Failed(format!("cannot open the store {}: {error}", path.display()))
        };
        fs::create_dir_all(path).map_err(|error| fail(StoreError::Failed(error.to_string())))?;
        let write_lock = WriteLock::open(path).map_err(fail)?;
        let env = open_env(path, options).map_err(|error| fail(error.into()))?;
        let guard = write_lock.lock().map_err(fail)?;
        let [entries, expiries, meta] = open_tables(&env).map_err(|error| fail(error.into()))?;
        drop(guard);
        let database = Self { write_lock, env, entries, expiries, meta };
        database.check_format().map_err(fail)?;
        database.clear_stale_readers().map_err(fail)?;
        Ok(database)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let _guard = self.write_lock.lock()?;
        let mut transaction = self.env.write_txn()?;
        match self.meta.get(&transaction, b"format")? {
            Some(FORMAT) => Ok(()),
            Some(_) => Err(StoreError::Failed("a newer version of ucall has written it".into())),
            None => {
                self.meta.put(&mut transaction, b"format", FORMAT)?;
                Ok(transaction.commit()?)
            }
        }
    }

    /// Frees the slots of processes that have died in a read.
    pub(crate) fn clear_stale_readers(&self) -> Result<(), StoreError> {
        Ok(self.env.clear_stale_readers().map(drop)?)
    }

    /// The newest state.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Ok(self.env.clone().static_read_txn()?)
    }

    /// Whether nothing was committed since.
    #[inline]
    pub(crate) fn is_newest(&self, snapshot: &Snapshot) -> bool {
        self.env.info().last_txn_id == snapshot.id()
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
        let guard = Some(self.write_lock.lock()?);
        let transaction = self.env.write_txn()?;
        let version = match self.meta.get(&transaction, b"version")? {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().map_err(|_| corrupt())?),
            None => 0,
        };
        Ok(Writer { database: self, transaction, version, now: now_ms(), _guard: guard })
    }

    /// Copies the store to a new file without its free pages.
    pub(crate) fn copy_compact(&self, target: &Path) -> Result<(), StoreError> {
        Ok(self.env.copy_to_path(target, CompactionOption::Enabled).map(drop)?)
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
        let transaction = database.env.nested_write_txn(&mut self.transaction)?;
        let mut writer = Writer { database, transaction, version, now, _guard: None };
        let (value, is_kept) = work(&mut writer)?;
        if is_kept {
            let version = writer.version;
            writer.transaction.commit()?;
            self.version = version;
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
        Ok(self.version)
    }

    /// Removes a key; `false` if it was absent.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let was_present = self.get(key)?.is_some();
        self.remove_expiry(key)?;
        self.database.entries.delete(&mut self.transaction, key)?;
        Ok(was_present)
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
        }
        Ok(count)
    }

    /// Makes the writes durable, by the durability of the store.
    pub(crate) fn commit(mut self) -> Result<(), StoreError> {
        let version = self.version.to_le_bytes();
        self.database.meta.put(&mut self.transaction, b"version", &version)?;
        Ok(self.transaction.commit()?)
    }
}

fn open_env(path: &Path, options: &StoreOptions) -> Result<Env<WithoutTls>, heed::Error> {
    let mut settings = EnvOpenOptions::new().read_txn_without_tls();
    settings.map_size(options.map_bytes()).max_readers(READERS_MAX).max_dbs(3);
    if options.durability == Durability::None {
        // SAFETY: the documentation of this durability says that a crash of the system may damage
        // the file, and how to check it.
        unsafe { settings.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the documentation requires that no other program writes to the file. Other processes
    // with the same store take LMDB's locks.
    let open = || unsafe { settings.open(path) };
    match open() {
        Err(heed::Error::EnvAlreadyOpened) => {
            let closing = path.canonicalize().ok().and_then(heed::env_closing_event);
            if closing.is_some_and(|closing| !closing.wait_timeout(CLOSE_WAIT)) {
                return Err(heed::Error::EnvAlreadyOpened);
            }
            open()
        }
        opened => opened,
    }
}

fn open_tables(env: &Env<WithoutTls>) -> Result<[Table; 3], heed::Error> {
    let transaction = env.write_txn()?;
    let opened = env.create_databases_and_commit(transaction, |opener, transaction| {
        let mut open = |name| opener.create_database(transaction, Some(name));
        let tables = [open("entries")?, open("expiries")?, open("meta")?];
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
    })?;
    match opened {
        CommitOrAbort::Commit(tables) => Ok(tables),
        CommitOrAbort::Abort(()) => Err(io::Error::other("the tables were not committed").into()),
    }
}

fn expiry_key(expires_at: u64, version: u64) -> [u8; 16] {
    (u128::from(expires_at) << 64 | u128::from(version)).to_be_bytes()
}

pub(crate) fn corrupt() -> StoreError {
    StoreError::Failed("the file is damaged, or another program has written to it".to_owned())
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
