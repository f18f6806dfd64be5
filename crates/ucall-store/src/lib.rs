//! A durable key-value store, called as native procedures or from the process that serves it.
//!
//! | module | contents |
//! |---|---|
//! | `store` | a store of this process: opened once, shared by all that use its path |
//! | `options` | the options of a store |
//! | `database` | the LMDB file: its tables, one read or write at a time |
//! | `data_file` | whether the file is whole and in its place |
//! | `lock_file`, `write_lock` | the locks of processes |
//! | `change` | a change of one key, as it is logged for watchers |
//! | `watchers` | how a commit wakes the watchers of all processes |
//! | `entry` | a value as it is stored: its version, its expiry, its kind |
//! | `operation` | what a write does, in a transaction that its caller commits |
//! | `committer` | the thread that commits the writes of all workers together |
//! | `backup` | dumps and loads entries as lines of JSON, and checks them |
//! | `compaction` | rewrites the file without free pages |
//! | `watch` | streams of changes |
//! | `procedures`, `params`, `reply` | the native procedures, their params and their results |
//! | `descriptions` | what a procedure does, for programs that call it |
//!
//! The hard part is durability at speed: a write is answered after an fsync, which takes as long as
//! thousands of reads. So a worker passes the writes of a turn to the committer, which commits all
//! writes that wait in one transaction, and then sends their outcomes.

mod backup;
mod change;
mod committer;
mod compaction;
mod data_file;
mod database;
mod descriptions;
mod entry;
mod error;
mod lock_file;
mod operation;
mod options;
mod params;
mod procedures;
mod reply;
mod store;
mod watch;
mod watchers;
mod write_lock;

pub use backup::CheckReport;
pub use entry::Value;
pub use error::StoreError;
pub use operation::{Expiry, Operation, Outcome};
pub use options::{Durability, StoreOptions};
pub use procedures::StoreModule;
pub use store::{Entry, OpenStore, Scan, ScanPage, Store};
