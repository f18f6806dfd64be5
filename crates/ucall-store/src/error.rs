//! Why an operation on a store fails.

use std::fmt;
use std::io::{self, ErrorKind};

use ucall_proto::RpcError;

/// Why an operation on a store fails.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The caller's fault: what was expected, and of which param.
    Invalid(String),
    /// The store's or the system's fault. Nothing was written; but if the disk failed at the end of
    /// a commit, and the system crashes after that, the write may be there.
    Failed(String),
}

impl StoreError {
    pub(crate) fn invalid(expected: impl Into<String>) -> Self {
        Self::Invalid(expected.into())
    }

    /// The error of an operation, as that of its batch.
    pub(crate) fn within_batch(self, index: usize) -> Self {
        match self {
            Self::Invalid(text) => Self::Invalid(format!("operations[{index}].{text}")),
            failed @ Self::Failed(_) => failed,
        }
    }

    /// The error of opening a file, for which so many addresses are reserved.
    pub(crate) fn of_opening(error: heed::Error, map_bytes: usize) -> Self {
        // Linux lacks memory for too many addresses, valgrind finds their number invalid.
        let is_too_large = |error: &io::Error| {
            matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidInput)
        };
        match error {
            heed::Error::Io(error) if is_too_large(&error) => Self::Failed(format!(
                "{map_bytes} bytes of addresses cannot be reserved ({error}): \
                 set a smaller max_bytes"
            )),
            error => error.into(),
        }
    }

    /// The error for a caller.
    pub(crate) fn to_rpc(&self) -> RpcError {
        match self {
            Self::Invalid(expected) => {
                RpcError::new(RpcError::INVALID_PARAMS, "Invalid params").expected(expected)
            }
            Self::Failed(reason) => {
                RpcError::new(RpcError::INTERNAL_ERROR, "The store failed").expected(reason)
            }
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Invalid(text) | Self::Failed(text)) = self;
        formatter.write_str(text)
    }
}

impl std::error::Error for StoreError {}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Failed(match is_of_disk(&error) {
            true => format!("the disk is full or fails: {error}"),
            false => error.to_string(),
        })
    }
}

impl From<heed::Error> for StoreError {
    fn from(error: heed::Error) -> Self {
        Self::Failed(match error {
            heed::Error::Io(error) => return error.into(),
            heed::Error::Mdb(heed::MdbError::MapFull) => {
                "the store has grown to max_bytes".to_owned()
            }
            heed::Error::Mdb(heed::MdbError::MapResized) => {
                "another process has a larger max_bytes: open the store with that".to_owned()
            }
            heed::Error::Mdb(heed::MdbError::ReadersFull) => {
                "too many threads read the store at once".to_owned()
            }
            heed::Error::Mdb(heed::MdbError::Panic) => {
                "the disk has failed within a commit: start this process again".to_owned()
            }
            other => other.to_string(),
        })
    }
}

/// LMDB reports a write that the disk has taken in part as EIO.
fn is_of_disk(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        || error.raw_os_error() == Some(EIO)
}
