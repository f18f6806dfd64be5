//! The C API that `include/ucall/ucall.h` declares.
//!
//! | module | contents |
//! |---|---|
//! | `exports/` | the functions of the header: null checks, the panic boundary, outputs last |
//! | `config`, `engine` | the configuration of a server, and its engine |
//! | `server`, `turn_control`, `stop` | a server, its threads, and how they stop |
//! | `log`, `descriptor` | the log, and writes to the program's descriptor |
//! | `callback`, `callback_handler` | callbacks, and the handler that runs them for a worker |
//! | `call`, `params`, `pointer`, `arena` | one call: its params and its reply |
//! | `deferred` | the program's side of a deferred call |
//! | `channel` | messages to the connection of a call |
//!
//! The hard part is ownership. A thread creates, drives and drops its own worker. A live call
//! borrows from its worker and ends with its callback. A deferred call owns its data and replies
//! through the worker's queue of outcomes, which it keeps alive.

mod boundary;
mod call;
mod callback;
mod callback_handler;
mod channel;
mod config;
mod deferred;
mod descriptor;
mod engine;
mod exports;
mod log;
mod params;
mod pointer;
mod server;
mod stop;
mod stream;
mod turn_control;

pub use config::Config;
pub use exports::*;
