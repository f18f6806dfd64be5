//! Joins protocol and engine: procedures, dispatch and the worker's turn.
//!
//! Knows sockets only through [`ucall_engine::Engine`], bytes only through
//! [`ucall_proto::Connection`], and languages only through [`Handler`].

mod closing;
mod config;
mod connections;
mod counters;
mod dispatch;
mod drain;
mod floods;
mod handler;
mod mailbox;
mod outbox;
mod output;
mod procedures;
mod starved;
mod sweep;
mod sync;
mod tls;
mod watched;
mod worker;

pub use config::Config;
pub use counters::{Counters, Page as CounterPage, Stats};
pub use handler::{CallId, Caller, Handler};
pub use mailbox::{Mailbox, Message};
pub use procedures::Procedures;
pub use tls::{IdentityFiles, Tls, TlsFiles, TlsFilesError};
pub use ucall_proto::{Drain, MemoryBudget, Reservation};
pub use watched::Watched;
pub use worker::{Turn, Worker};
