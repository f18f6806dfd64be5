//! The entries of a store as lines of JSON, which another store loads, and a check of all entries.
//!
//! A line is `{"key":…,"value":…}` with the text of the value as it is stored, or `bytes` in its
//! place, and `expires_at_ms` if the entry expires. A dump is of one moment. It has no versions:
//! those of the store that loads it are its own.

use std::str;

use ucall_proto::json::validate;

use crate::entry::StoredValue;
use crate::error::StoreError;
use crate::operation::Operation;
use crate::store::OpenStore;
use crate::{params, reply};

/// The bytes after which lines are written.
const PIECE_BYTES: usize = 1 << 20;

/// What [`OpenStore::check`] has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// The entries, without those that have expired.
    pub entries: u64,
    /// The keys of damaged entries, and what is wrong with them.
    pub damaged: Vec<(Vec<u8>, &'static str)>,
}

impl OpenStore {
    /// Calls `write` with the lines of all entries, as of one moment, until it returns `false`.
    ///
    /// # Errors
    /// The system's, and that of a damaged entry.
    pub fn dump(&self, mut write: impl FnMut(&[u8]) -> bool) -> Result<(), StoreError> {
        let (snapshot, now, mut lines) =
            (self.database.snapshot()?, self.database.now_ms(), Vec::new());
        for entry in self.database.entries.iter(&snapshot)? {
            let (key, stored) = entry?;
            let damaged = || {
                let key = String::from_utf8_lossy(key);
                StoreError::Failed(format!("the entry of {key:?} is damaged"))
            };
            let entry = StoredValue::decode(stored).ok_or_else(damaged)?;
            if entry.has_expired(now) {
                continue;
            }
            reply::write_dumped(&mut lines, key, &entry);
            if lines.len() >= PIECE_BYTES {
                if !write(&lines) {
                    return Ok(());
                }
                lines.clear();
            }
        }
        write(&lines);
        Ok(())
    }

    /// Puts the entries of lines that [`OpenStore::dump`] has written, all or none. `first` is the
    /// number of the first one.
    ///
    /// # Errors
    /// For a line that is no entry, or past a limit, with its number; and the system's.
    pub fn load(&self, lines: &[u8], first: usize) -> Result<(), StoreError> {
        let mut puts = Vec::new();
        for (line, number) in lines.split(|byte| *byte == b'\n').zip(first..) {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let put = self.read_line(line).map_err(|error| {
                let expected = "expected an entry of a dump";
                StoreError::invalid(format!("line {number}: {expected}: {error}"))
            })?;
            puts.push(put);
        }
        self.write(Operation::Batch(puts)).map(drop)
    }

    fn read_line(&self, line: &[u8]) -> Result<Operation, StoreError> {
        let invalid = |_| StoreError::invalid("it is not JSON");
        validate(line, usize::MAX).map_err(invalid)?;
        let put = params::dumped(line)?;
        put.validate(&self.options)?;
        Ok(put)
    }

    /// Reads every entry, and what the store has to find it when it expires.
    ///
    /// # Errors
    /// The system's.
    pub fn check(&self) -> Result<CheckReport, StoreError> {
        let (snapshot, now) = (self.database.snapshot()?, self.database.now_ms());
        let (mut report, mut expiring) = (CheckReport::default(), 0);
        for entry in self.database.entries.iter(&snapshot)? {
            let (key, stored) = entry?;
            let damage = match StoredValue::decode(stored) {
                None => Some("its header is damaged"),
                Some(entry) => {
                    report.entries += u64::from(!entry.has_expired(now));
                    expiring += u64::from(entry.expires_at != 0);
                    match self.database.has_expiry(&snapshot, key, &entry)? {
                        true => damage_of(&entry),
                        false => Some("its expiry is not in the table of expiries"),
                    }
                }
            };
            report.damaged.extend(damage.map(|damage| (key.to_vec(), damage)));
        }
        if self.database.expiries_len(&snapshot)? != expiring {
            report.damaged.push((Vec::new(), "the table of expiries has other keys"));
        }
        Ok(report)
    }
}

/// What is wrong with the value of an entry.
fn damage_of(entry: &StoredValue<'_>) -> Option<&'static str> {
    if !entry.is_json {
        return None;
    }
    match validate(entry.bytes, usize::MAX) {
        Err(_) => Some("its value is not JSON"),
        Ok(()) if memchr::memchr2(b'\n', b'\r', entry.bytes).is_some() => {
            Some("its value has line breaks")
        }
        Ok(()) => None,
    }
}
