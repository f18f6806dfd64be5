//! What a write does, in a transaction that its caller commits.

use ucall_proto::json::{Reader, ValueKind};

use crate::database::Writer;
use crate::entry::Value;
use crate::error::StoreError;
use crate::options::StoreOptions;

/// When an entry expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// Never.
    Never,
    /// So many milliseconds after it is written.
    AfterMs(u64),
    /// At this time, in milliseconds since 1970.
    AtMs(u64),
}

impl Expiry {
    /// After a time to live in milliseconds, if there is one.
    pub fn after(ttl_ms: Option<u64>) -> Self {
        ttl_ms.map_or(Self::Never, Self::AfterMs)
    }

    /// In milliseconds since 1970, within the integers of JSON; 0 for never.
    fn time(self, now: u64) -> u64 {
        match self {
            Self::Never => 0,
            Self::AfterMs(ttl) => now.saturating_add(ttl).min(i64::MAX as u64),
            Self::AtMs(time) => time.clamp(1, i64::MAX as u64),
        }
    }
}

/// One write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sets the value of a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Value,
        /// When it expires.
        expiry: Expiry,
        /// Only if the key has this version; 0 if it is absent.
        version: Option<u64>,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Adds to the integer of a key; an absent key has 0. Its expiry stays.
    Increment {
        /// The key.
        key: Vec<u8>,
        /// What to add.
        by: i64,
    },
    /// Runs all of them, or none if one fails or finds another version.
    Batch(Vec<Operation>),
    /// Has changes logged for the watchers of this process.
    Watch,
    /// Ends that, if there are none left.
    Unwatch,
}

/// What an [`Operation`] has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The new version of the key; of [`Operation::Watch`] the last one before.
    Version(u64),
    /// The key has another version, and nothing was written.
    OtherVersion,
    /// Whether there was such a key.
    Deleted(bool),
    /// The new value of the key.
    Number(i64),
    /// The outcomes of a batch.
    Batch(Vec<Outcome>),
}

impl Operation {
    /// Runs the operation. After an error of the kind [`StoreError::Failed`] the transaction must
    /// be dropped; other errors have written nothing.
    pub(crate) fn apply(&self, writer: &mut Writer<'_>) -> Result<Outcome, StoreError> {
        match self {
            Self::Put { key, value, expiry, version } => {
                if let Some(expected) = *version
                    && expected != writer.get(key)?.map_or(0, |value| value.version)
                {
                    return Ok(Outcome::OtherVersion);
                }
                let expires_at = expiry.time(writer.now);
                Ok(Outcome::Version(writer.put(key, value, expires_at)?))
            }
            Self::Delete { key } => Ok(Outcome::Deleted(writer.delete(key)?)),
            Self::Increment { key, by } => increment(writer, key, *by),
            Self::Batch(operations) => writer.nested(|writer| run_all(operations, writer)),
            Self::Watch => Ok(Outcome::Version(writer.add_watcher())),
            Self::Unwatch => {
                writer.remove_watcher();
                Ok(Outcome::Deleted(true))
            }
        }
    }

    /// Refuses keys and values past their limits.
    pub(crate) fn validate(&self, options: &StoreOptions) -> Result<(), StoreError> {
        match self {
            Self::Put { key, value, .. } => {
                check_key("key", key)?;
                let (len, max) = (value.bytes().len(), options.value_bytes_max);
                if len > max {
                    let expected = format!("value: expected at most {max} bytes, got {len}");
                    return Err(StoreError::invalid(expected + " (max_value_bytes)"));
                }
                Ok(())
            }
            Self::Delete { key } | Self::Increment { key, .. } => check_key("key", key),
            Self::Batch(operations) => {
                operations.iter().enumerate().try_for_each(|(index, operation)| {
                    operation.validate(options).map_err(|error| error.within_batch(index))
                })
            }
            Self::Watch | Self::Unwatch => Ok(()),
        }
    }

    /// The memory that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.bytes().len(),
            Self::Delete { key } | Self::Increment { key, .. } => key.len(),
            Self::Batch(operations) => operations.iter().map(Self::held_bytes).sum(),
            Self::Watch | Self::Unwatch => 0,
        }
    }
}

fn increment(writer: &mut Writer<'_>, key: &[u8], by: i64) -> Result<Outcome, StoreError> {
    let (before, expires_at) = match writer.get(key)? {
        None => (Some(0), 0),
        Some(value) => {
            let is_number = value.is_json && Reader::new(value.bytes).kind() == ValueKind::Number;
            let integer = is_number.then(|| Reader::new(value.bytes).number().as_i64()).flatten();
            (integer, value.expires_at)
        }
    };
    let expected = "key: expected the key of an integer";
    let before = before.ok_or_else(|| StoreError::invalid(expected))?;
    let sum = before.checked_add(by).ok_or_else(|| {
        StoreError::invalid(format!("by: expected a sum of 64 bits; the value is {before}"))
    })?;
    writer.put(key, &Value::Json(sum.to_string().into_bytes()), expires_at)?;
    Ok(Outcome::Number(sum))
}

/// The outcomes, and whether to keep what was written.
fn run_all(
    operations: &[Operation],
    writer: &mut Writer<'_>,
) -> Result<(Outcome, bool), StoreError> {
    let mut outcomes = Vec::with_capacity(operations.len());
    for (index, operation) in operations.iter().enumerate() {
        match operation.apply(writer) {
            Ok(Outcome::OtherVersion) => return Ok((Outcome::OtherVersion, false)),
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => return Err(error.within_batch(index)),
        }
    }
    Ok((Outcome::Batch(outcomes), true))
}

/// The limit of LMDB.
const KEY_BYTES_MAX: usize = 511;

/// Refuses a key that is empty or too long.
pub(crate) fn check_key(param: &str, key: &[u8]) -> Result<(), StoreError> {
    match key.len() {
        1..=KEY_BYTES_MAX => Ok(()),
        len => Err(StoreError::invalid(format!(
            "{param}: expected 1 to {KEY_BYTES_MAX} bytes, got {len}"
        ))),
    }
}
