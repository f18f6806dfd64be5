//! The engine that a server runs on.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Engine, EngineChoice, Listener};
use ucall_server::{Counters, Mailbox, Procedures, Turn, Worker, WorkerConfig};

use crate::handler::Interpreter;
use crate::log::Log;
use crate::procedure::Procedure;

/// Descriptors that are left to the rest of the process.
const RESERVED_DESCRIPTORS: u64 = 64;
/// Entries of a ring's table beyond the connections, so that new connections find one before the
/// longest idle connection is evicted.
const RESERVED_SOCKETS: usize = 256;

/// The engine that was chosen when the server was made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineKind {
    Posix,
    #[cfg(target_os = "linux")]
    Uring(uring::Features),
}

impl EngineKind {
    /// Chooses an engine by name. Where io_uring is refused, `"auto"` takes posix and logs that
    /// once, and `"uring"` raises `ucall.EngineError`.
    pub(crate) fn choose(py: Python<'_>, name: &str) -> PyResult<Self> {
        static LOGGED: AtomicBool = AtomicBool::new(false);
        match name {
            "posix" => return Ok(Self::Posix),
            "auto" | "uring" => {}
            _ => return Err(PyValueError::new_err(format!("unknown engine {name:?}"))),
        }
        let refused = match EngineChoice::probe() {
            #[cfg(target_os = "linux")]
            EngineChoice::Uring(features) => return Ok(Self::Uring(features)),
            EngineChoice::Posix(refused) => refused,
        };
        if name == "uring" {
            let error = py.import("ucall.errors")?.getattr("EngineError")?;
            let raised = error.call1((format!("io_uring cannot be used here: {refused}"),))?;
            return Err(PyErr::from_value(raised));
        }
        if !LOGGED.swap(true, Ordering::Relaxed) {
            let line = format!("running on the posix engine: {refused}");
            // The interpreter reports an interrupt again.
            let _ = Log::import(py)?.warning(py, &line);
        }
        Ok(Self::Posix)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Posix => Posix::NAME,
            #[cfg(target_os = "linux")]
            Self::Uring(_) => Uring::NAME,
        }
    }

    /// The engine for a worker within a program's event loop: a ring under `defer_taskrun` does not
    /// wake a thread that polls its descriptor.
    pub(crate) fn for_embedded_loop(self) -> Self {
        match self {
            Self::Posix => Self::Posix,
            #[cfg(target_os = "linux")]
            Self::Uring(features) => {
                Self::Uring(uring::Features { defer_taskrun: false, ..features })
            }
        }
    }

    /// Makes a worker of this kind for the current thread.
    pub(crate) fn worker(
        self,
        interpreter: Interpreter,
        procedures: Arc<Procedures<Arc<Procedure>>>,
        mut config: WorkerConfig,
    ) -> io::Result<Box<dyn DynWorker>> {
        let descriptors =
            ucall_engine::raise_descriptor_limit().saturating_sub(RESERVED_DESCRIPTORS);
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX).max(1);
        config.connections_max = config.connections_max.min(descriptors);
        Ok(match self {
            Self::Posix => Box::new(Worker::new(Posix::new()?, interpreter, procedures, config)),
            #[cfg(target_os = "linux")]
            Self::Uring(features) => {
                let sockets_max = config.connections_max.saturating_add(RESERVED_SOCKETS);
                let size = uring::Config {
                    sockets_max: u32::try_from(sockets_max).unwrap_or(u32::MAX),
                    ..uring::Config::default()
                };
                let engine = Uring::new(size, features)?;
                Box::new(Worker::new(engine, interpreter, procedures, config))
            }
        })
    }
}

/// A worker on any engine.
pub(crate) trait DynWorker {
    fn listen(&mut self, listener: Listener) -> io::Result<()>;
    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    fn unwatch_loop(&mut self);
    /// Prepares for a wait on [`DynWorker::descriptor`] by another event loop.
    fn prepare_to_wait(&mut self) -> bool;
    /// The time at which the next turn is due.
    fn deadline(&self) -> Option<Instant>;
    /// The descriptor that is readable when a turn is due.
    fn descriptor(&self) -> RawFd;
    /// Takes one turn, on a thread that is attached to the interpreter.
    fn turn(&mut self, py: Python<'_>, deadline: Option<Instant>) -> io::Result<Turn>;
    /// Runs what is due after the last turn, on a thread that is attached to the interpreter.
    fn shut_down(&mut self, py: Python<'_>) -> io::Result<()>;
    fn interpreter(&mut self) -> &mut Interpreter;
    fn mailbox(&self) -> Mailbox;
    fn counters(&self) -> Arc<Counters>;
    fn set_counters(&mut self, counters: Arc<Counters>);
}

impl<E: Engine + AsFd> DynWorker for Worker<E, Interpreter> {
    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.listen(listener)
    }

    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_signals(descriptor)
    }

    fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_loop(descriptor)
    }

    fn unwatch_loop(&mut self) {
        self.unwatch_loop();
    }

    fn prepare_to_wait(&mut self) -> bool {
        self.prepare_to_wait()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline()
    }

    fn descriptor(&self) -> RawFd {
        self.engine().as_fd().as_raw_fd()
    }

    fn turn(&mut self, _py: Python<'_>, deadline: Option<Instant>) -> io::Result<Turn> {
        self.turn(deadline)
    }

    fn shut_down(&mut self, _py: Python<'_>) -> io::Result<()> {
        self.shut_down()
    }

    fn interpreter(&mut self) -> &mut Interpreter {
        self.handler_mut()
    }

    fn mailbox(&self) -> Mailbox {
        self.mailbox()
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters()
    }

    fn set_counters(&mut self, counters: Arc<Counters>) {
        self.set_counters(counters);
    }
}
