//! `ucall._core`: the CPython edge.
//!
//! A worker's thread stays attached to the interpreter through a whole turn and lets go of it only
//! around a wait. A call goes from the text of its params straight to Python arguments
//! (`arguments`, on top of `convert`), through the fast call protocol (`ffi`), and its result
//! straight into the reply. What is cold (signatures, threads, signals) is in `python/ucall/`.
//!
//! In a subinterpreter the import fails with ImportError: a worker assumes that there is one
//! interpreter, and pyo3 keeps Python objects in process-wide state. A free-threaded Python takes
//! its lock up when this is imported, and where it was told not to, the import fails as well: much
//! here assumes that one thread runs Python code at a time.

mod arguments;
mod auth;
mod batch;
mod calls;
mod client;
mod clock;
mod context;
mod convert;
mod deferred;
mod detach;
mod engine;
mod errors;
mod ffi;
mod handler;
mod interpreter_shutdown;
mod job_input;
mod log;
mod loop_driver;
mod loop_queues;
mod options;
mod pool;
mod procedure;
mod queue;
mod report;
mod run;
mod server;
mod shared_counters;
mod signals;
mod suspended_workers;
mod tasks;
mod thread_bound;
mod tls;
mod unix_socket;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// The engine room of the package `ucall`, which wraps it; not for direct use.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use crate::client::{ClientConnection, Reply, ReplyReader, Request, RequestWriter, peek};
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::convert::Pieces;
    #[pymodule_export]
    use crate::errors::Unwritable;
    #[pymodule_export]
    use crate::loop_driver::LoopDriver;
    #[pymodule_export]
    use crate::loop_queues::{Handle, LoopQueues};
    #[pymodule_export]
    use crate::queue::{
        Block, Message, PickleLoader, QueueCore, QueueLink, QueueLog, Receipt, check_shared_memory,
        system_certificates,
    };
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::shared_counters::SharedCounters;
    #[pymodule_export]
    use crate::tls::{Certificate, PyTls};
    #[pymodule_export]
    use crate::unix_socket::UnixSocket;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        if !ffi::is_main_interpreter(py) {
            return Err(PyImportError::new_err("ucall cannot be used in a subinterpreter"));
        }
        if !has_lock(py)? {
            let mode = "ucall needs the GIL: leave out -X gil=0 and PYTHON_GIL=0";
            return Err(PyImportError::new_err(mode));
        }
        interpreter_shutdown::install_exit_hook(py)
    }

    /// Whether one thread of the interpreter runs at a time.
    fn has_lock(py: Python<'_>) -> PyResult<bool> {
        let ask = py.import("sys")?.getattr_opt("_is_gil_enabled")?;
        ask.map_or(Ok(true), |ask| ask.call0()?.is_truthy())
    }
}
