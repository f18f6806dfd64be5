//! The C edge: what `include/ucall/ucall.h` declares.
//!
//! | room | holds |
//! |---|---|
//! | `exports/` | the functions of the header: null checks, the panic boundary, outputs last |
//! | `config`, `engine_kind` | what a server is told, and the engine it gets |
//! | `server`, `stop` | a server, its threads, and how they end |
//! | `log`, `descriptor` | what a server writes, and how that cannot harm it |
//! | `callback_handler`, `call`, `params` | one call: the callback, its params and its reply |
//! | `deferred_calls` | the calls that are answered later |
//!
//! The hard part is who may touch what: a thread's worker is made, driven and dropped by that
//! thread alone; a live call borrows from its worker and ends with its callback; a deferred call
//! owns all that it refers to and reaches its worker through the mailbox, which outlives it.

mod arena;
mod boundary;
mod call;
mod callback_handler;
mod config;
mod deferred_calls;
mod descriptor;
mod engine_kind;
mod exports;
mod log;
mod params;
mod pointer;
mod server;
mod stop;

pub use config::Config;
pub use exports::*;
