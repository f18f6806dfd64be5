//! The C API that `include/ucall/ucall.h` declares.
//!
//! | module | contents |
//! |---|---|
//! | `exports/` | the functions of the header: null checks, the panic boundary, outputs last |
//! | `config`, `engine` | the configuration of a server, and its engine |
//! | `handles` | what the program has freed |
//! | `store` | the store of a server, and its options |
//! | `server`, `turn_control`, `stop` | a server, its threads, and how they stop |
//! | `poll_descriptor` | the descriptor by which a program's event loop waits |
//! | `metrics` | the metrics of calls, by thread |
//! | `log`, `descriptor` | the log, and writes to the program's descriptor |
//! | `callback`, `callback_handler` | callbacks, and the handler that runs them for a worker |
//! | `call`, `params`, `pointer` | one call: its params and its reply |
//! | `call_handle` | what the program has of a call, also after it has ended |
//! | `auth`, `peer` | who calls |
//! | `deferred` | the program's side of a deferred call |
//! | `value`, `items` | values of params, and iteration over them |
//! | `buffers`, `parted_params` | arrays and bytes, and params that refer to parts |
//! | `writer` | writes JSON text |
//! | `channel` | messages to the connection of a call |
//!
//! The hard part is ownership. A thread creates, drives and drops its own worker. A live call
//! borrows from its worker and ends with its callback. A deferred call owns its data and replies
//! through the worker's queue of outcomes, which it keeps alive.

mod auth;
mod boundary;
mod buffers;
mod call;
mod call_handle;
mod callback;
mod callback_handler;
mod channel;
mod config;
mod deferred;
mod descriptor;
mod engine;
mod exports;
mod handles;
mod held_buffer;
mod items;
mod log;
mod metrics;
mod params;
mod parted_params;
mod peer;
mod pointer;
mod poll_descriptor;
mod server;
mod stop;
#[cfg(feature = "store")]
mod store;
mod stream;
mod turn_control;
mod value;
mod writer;

pub use config::Config;
pub use exports::*;
#[cfg(feature = "store")]
pub use store::StoreConfig;
