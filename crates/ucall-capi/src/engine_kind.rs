//! Chooses the engine of a server, and creates workers on it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Engine, EngineChoice, Listener};
use ucall_server::{Counters, Procedures, Worker, WorkerConfig};

use crate::callback::Callback;
use crate::callback_handler::CallbackHandler;
use crate::log::Log;
use crate::turn_control::TurnControl;

/// Slots of a ring's table beyond the connections, so that a new connection gets one before the
/// longest idle connection is closed for it.
#[cfg(target_os = "linux")]
const RESERVED_SOCKETS: usize = 256;

/// `ucall_engine_t`.
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
    /// Chooses by the number in the configuration. `AUTO` takes io_uring if available, and
    /// otherwise logs why not.
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
            return Err(format!("engine: io_uring is unavailable: {unavailable}"));
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

    /// A worker on this engine, for this thread.
    pub(crate) fn worker(
        self,
        handler: CallbackHandler,
        procedures: Arc<Procedures<Callback>>,
        config: WorkerConfig,
        queue_depth: u16,
    ) -> io::Result<Box<dyn DynWorker>> {
        Ok(match self {
            Self::Posix => {
                // posix has no queue: it makes each operation as a system call at once.
                let _ = queue_depth;
                Box::new(Worker::new(Posix::new()?, handler, procedures, config))
            }
            #[cfg(target_os = "linux")]
            Self::Uring(features) => {
                let sockets = config.connections_max.saturating_add(RESERVED_SOCKETS);
                let size = uring::Config {
                    queue_depth: queue_depth.into(),
                    sockets_max: u32::try_from(sockets).unwrap_or(u32::MAX),
                };
                Box::new(Worker::new(Uring::new(size, features)?, handler, procedures, config))
            }
        })
    }
}

/// How many turns a thread takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunMode {
    OneTurn,
    /// All turns until the server is stopped.
    UntilStopped,
}

/// A worker on any engine.
pub(crate) trait DynWorker {
    fn listen(&mut self, listener: Listener) -> io::Result<()>;
    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    /// Takes turns; `false` when the server was stopped.
    fn run(&mut self, mode: RunMode, control: &TurnControl) -> io::Result<bool>;
    /// Shuts the worker down after its last turn.
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

    /// The loop is behind the trait so that turns are inlined into it.
    fn run(&mut self, mode: RunMode, control: &TurnControl) -> io::Result<bool> {
        let has_figures = control.log.has_figures();
        loop {
            let turn = self.turn(has_figures.then(|| control.log.next_line_at()))?;
            if has_figures {
                control.write_line_if_due();
            }
            if turn.stopped || control.stop.is_requested() {
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
