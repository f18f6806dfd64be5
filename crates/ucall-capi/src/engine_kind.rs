//! Which engine a server gets, and workers on it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Engine, EngineChoice, Listener};
use ucall_server::{Counters, Procedures, Worker, WorkerConfig};

use crate::callback_handler::{Callback, CallbackHandler};
use crate::log::Log;
use crate::server::Server;

/// Places of a ring's table beyond the connections, so that newcomers find one before the longest
/// idle connection is closed for them.
#[cfg(target_os = "linux")]
const RESERVED_SOCKETS: usize = 256;

/// `ucall_engine_t`: `UCALL_ENGINE_AUTO` and its neighbours.
pub(crate) const AUTO: u32 = 0;
pub(crate) const POSIX: u32 = 1;
pub(crate) const URING: u32 = 2;

/// The engine that was chosen when the server was made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineKind {
    Posix,
    #[cfg(target_os = "linux")]
    Uring(uring::Features),
}

impl EngineKind {
    /// Chooses by the number in the configuration. "Auto" takes io_uring where it may, and says in
    /// the log where it may not.
    pub(crate) fn choose(number: u32, log: &Log) -> Result<Self, String> {
        match number {
            POSIX => return Ok(Self::Posix),
            AUTO | URING => {}
            _ => return Err(format!("engine: {number} is no ucall_engine_t")),
        }
        let unavailable = match EngineChoice::probe() {
            #[cfg(target_os = "linux")]
            EngineChoice::Uring(features) => return Ok(Self::Uring(features)),
            EngineChoice::Posix(unavailable) => unavailable,
        };
        if number == URING {
            return Err(format!("engine: io_uring cannot be used here: {unavailable}"));
        }
        log.warn(&format!("running on the posix engine: {unavailable}"));
        Ok(Self::Posix)
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Posix => POSIX,
            #[cfg(target_os = "linux")]
            Self::Uring(_) => URING,
        }
    }

    /// A worker of this kind, to be driven by this thread.
    pub(crate) fn worker(
        self,
        handler: CallbackHandler,
        procedures: Arc<Procedures<Callback>>,
        config: WorkerConfig,
        queue_depth: u16,
    ) -> io::Result<Box<dyn DynWorker>> {
        Ok(match self {
            Self::Posix => {
                // Nothing is queued here: every operation goes to the system at once.
                let _ = queue_depth;
                Box::new(worker(Posix::new()?, handler, procedures, config))
            }
            #[cfg(target_os = "linux")]
            Self::Uring(features) => {
                let sockets = config.connections_max.saturating_add(RESERVED_SOCKETS);
                let size = uring::Config {
                    queue_depth: queue_depth.into(),
                    sockets_max: u32::try_from(sockets).unwrap_or(u32::MAX),
                };
                Box::new(worker(Uring::new(size, features)?, handler, procedures, config))
            }
        })
    }
}

fn worker<E: Engine>(
    engine: E,
    handler: CallbackHandler,
    procedures: Arc<Procedures<Callback>>,
    config: WorkerConfig,
) -> Worker<E, CallbackHandler> {
    let mut worker = Worker::new(engine, handler, procedures, config);
    worker.handler_mut().deferred_calls.mailbox = Some(worker.mailbox());
    worker
}

/// How far a thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunMode {
    OneTurn,
    /// Until the server is stopped.
    UntilStopped,
}

/// A worker on any engine.
pub(crate) trait DynWorker {
    fn listen(&mut self, listener: Listener) -> io::Result<()>;
    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    /// Drives `server`, whose worker it is; `false` when that was stopped.
    fn run(&mut self, mode: RunMode, server: &Server) -> io::Result<bool>;
    /// What is due behind the last turn.
    fn shut_down(&mut self) -> io::Result<()>;
    fn counters(&self) -> Arc<Counters>;
}

impl<E: Engine> DynWorker for Worker<E, CallbackHandler> {
    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.listen(listener)
    }

    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_signals(descriptor)
    }

    /// The turns are counted here, behind the trait, so that they can be inlined.
    fn run(&mut self, mode: RunMode, server: &Server) -> io::Result<bool> {
        loop {
            let turn = self.turn(server.deadline())?;
            if !server.should_continue(&turn) {
                return Ok(false);
            }
            if mode == RunMode::OneTurn {
                return Ok(true);
            }
        }
    }

    fn shut_down(&mut self) -> io::Result<()> {
        self.shut_down()
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters()
    }
}
