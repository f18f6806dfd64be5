//! `ucall._core`: the CPython edge.
//!
//! A worker's thread detaches from the interpreter for its waits, and attaches again when a turn
//! first needs Python (`attachment`). A call's params are read from their text straight into Python
//! arguments (`arguments`, on top of `convert`), the function is called by the vectorcall protocol
//! (`ffi`), and its result is written straight into the reply. Signatures, processes and settings
//! are in `python/ucall/`.
//!
//! The import fails with ImportError in a subinterpreter, because a worker assumes one interpreter
//! and pyo3 keeps Python objects in process-wide state. A free-threaded Python enables its lock
//! when this is imported. Where `-X gil=0` forbids that, the import fails too, because much here
//! assumes that one thread runs Python code at a time.

mod access;
mod arguments;
mod asgi;
mod asyncio;
mod attachment;
mod auth;
mod awaited_call;
mod background;
mod batch;
mod batch_inputs;
mod batch_results;
mod batch_sizes;
mod batch_texts;
mod bind;
mod broker_calls;
mod callbacks;
mod calls;
mod client;
#[cfg(any(feature = "queue", feature = "relay"))]
mod client_tls;
mod clock;
mod context;
mod contexts;
mod convert;
mod deferral;
mod engine;
mod errors;
mod features;
mod ffi;
mod functions;
mod handler;
mod health;
mod hook_options;
mod hooks;
mod http_route;
mod identity;
mod in_process;
mod inference;
mod interpreter_shutdown;
mod invalid_params;
mod job_input;
mod job_queue;
mod keys;
mod listen_address;
mod listener;
mod listening_socket;
mod lock_release;
mod lock_request;
mod log;
mod mcp;
mod mcp_tools;
mod metrics;
mod mounting;
mod options;
mod origin;
mod outcomes;
mod pool;
mod procedure;
mod process_batches;
#[cfg(feature = "queue")]
mod queue;
mod read_ahead;
#[cfg(feature = "relay")]
mod relay;
mod report;
mod request_body;
mod request_texts;
mod routing;
mod running_context;
mod server;
mod server_hooks;
mod server_state;
mod server_stats;
mod server_worker;
mod session;
mod shared_counters;
mod signals;
mod stdio;
#[cfg(feature = "store")]
mod store;
mod streams;
mod thread_bound;
mod timing;
mod tls;
mod udp;
mod waiting_limit;
mod worker_peers;
mod worker_report;
mod xdp;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// The core of the package `ucall`, not for direct use.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use crate::asyncio::loop_driver::LoopDriver;
    #[pymodule_export]
    use crate::broker_calls::BrokerCalls;
    #[pymodule_export]
    use crate::client::{
        ClientConnection, CodingSupport, FrameRefused, FrameSupport, Notification, Reply,
        ReplyReader, Request, RequestWriter, SharedMemory, Undecided, client_frame, peek,
        receive_datagrams, send_datagrams,
    };
    #[pymodule_export]
    use crate::context::Context;
    #[pymodule_export]
    use crate::convert::{ArrayLike, ArrayResults, ArrayType, decode_array, encode_array};
    #[pymodule_export]
    use crate::errors::Unwritable;
    #[cfg(feature = "queue")]
    #[pymodule_export]
    use crate::ffi::bytes_view;
    #[pymodule_export]
    use crate::health::readiness;
    #[pymodule_export]
    use crate::hooks::HookedCall;
    #[pymodule_export]
    use crate::http_route::{HttpRequest, json_text};
    #[pymodule_export]
    use crate::in_process::{adopt, make_context, set_binds};
    #[pymodule_export]
    use crate::inference::{inference_readiness, insert_inference, set_models};
    #[pymodule_export]
    use crate::keys::Keys;
    #[pymodule_export]
    use crate::listener::{set_listener, set_listeners};
    #[pymodule_export]
    use crate::listening_socket::ListeningSocket;
    #[pymodule_export]
    use crate::mcp_tools::set_tools;
    #[pymodule_export]
    use crate::mounting::insert_mount;
    #[pymodule_export]
    use crate::options::default_limits;
    #[pymodule_export]
    use crate::outcomes::DoneCallback;
    #[pymodule_export]
    use crate::process_batches::{BatchProcesses, ProcessFunction, refuse_worker, run_batches};
    #[cfg(feature = "queue")]
    #[pymodule_export]
    use crate::queue::{
        Block, Message, PickleLoader, QueueCore, QueueLink, QueueLog, QueueTunnel, Receipt,
        check_shared_memory, system_certificates,
    };
    #[cfg(feature = "relay")]
    #[pymodule_export]
    use crate::relay::{RelayStatus, insert_relay};
    #[pymodule_export]
    use crate::request_body::BodyReceiver;
    #[pymodule_export]
    use crate::routing::insert_route;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::server_hooks::{set_error_finder, set_native_hooks, set_unknown_hooks};
    #[pymodule_export]
    use crate::server_stats::{count_loaded_model, metrics_text, seed_batches};
    #[pymodule_export]
    use crate::session::Connection;
    #[pymodule_export]
    use crate::shared_counters::SharedCounters;
    #[pymodule_export]
    use crate::stdio::{Lines, ReplyLines};
    #[cfg(feature = "store")]
    #[pymodule_export]
    use crate::store::{PyStore, insert_store};
    #[pymodule_export]
    use crate::streams::{EndType, ItemSink, Slot, Slots, progress_text};
    #[pymodule_export]
    use crate::tls::{Certificate, PyTls};
    #[pymodule_export]
    use crate::xdp::{PyXdpProgram, hand_over_xdp};

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
        module.add("VERSION", python_version())?;
        module.add("END", Bound::new(py, EndType)?)?;
        features::add_to(module)?;
        interpreter_shutdown::install_exit_hook(py)
    }

    /// The version in Python's spelling (PEP 440), which maturin gives the package: 1.0.0a1 for
    /// 1.0.0-alpha.1.
    fn python_version() -> String {
        let version = env!("CARGO_PKG_VERSION");
        version.replace("-alpha.", "a").replace("-beta.", "b").replace("-rc.", "rc")
    }

    /// Whether the interpreter's lock is enabled.
    fn has_lock(py: Python<'_>) -> PyResult<bool> {
        let ask = py.import("sys")?.getattr_opt("_is_gil_enabled")?;
        ask.map_or(Ok(true), |ask| ask.call0()?.is_truthy())
    }
}
