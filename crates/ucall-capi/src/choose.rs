//! Which engine a server gets, and workers on it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Choice, Engine, Listener};
use ucall_server::{Config, Counters, Procedures, Worker};

use crate::desk::{Callback, Desk};
use crate::log::Log;
use crate::server::Server;

/// Places of a ring's table beyond the connections, so that newcomers find one before the longest
/// idle connection is closed for them.
#[cfg(target_os = "linux")]
const SPARE_SOCKETS: usize = 256;

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
        let refused = match Choice::probe() {
            #[cfg(target_os = "linux")]
            Choice::Uring(features) => return Ok(Self::Uring(features)),
            Choice::Posix(refused) => refused,
        };
        if number == URING {
            return Err(format!("engine: io_uring cannot be used here: {refused}"));
        }
        log.complain(&format!("running on the posix engine: {refused}"));
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
        desk: Desk,
        procedures: Arc<Procedures<Callback>>,
        config: Config,
        queue_depth: u16,
    ) -> io::Result<Box<dyn Drive>> {
        Ok(match self {
            Self::Posix => {
                // Nothing is queued here: every operation goes to the system at once.
                let _ = queue_depth;
                Box::new(worker(Posix::new()?, desk, procedures, config))
            }
            #[cfg(target_os = "linux")]
            Self::Uring(features) => {
                let sockets = config.connections_max.saturating_add(SPARE_SOCKETS);
                let size = uring::Config {
                    queue_depth: queue_depth.into(),
                    sockets_max: u32::try_from(sockets).unwrap_or(u32::MAX),
                };
                Box::new(worker(Uring::new(size, features)?, desk, procedures, config))
            }
        })
    }
}

fn worker<E: Engine>(
    engine: E,
    desk: Desk,
    procedures: Arc<Procedures<Callback>>,
    config: Config,
) -> Worker<E, Desk> {
    let mut worker = Worker::new(engine, desk, procedures, config);
    worker.handler_mut().ledger.mailbox = Some(worker.mailbox());
    worker
}

/// How far a thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Far {
    OneTurn,
    /// Until the server is stopped.
    ToTheEnd,
}

/// A worker on any engine.
pub(crate) trait Drive {
    fn listen(&mut self, listener: Listener) -> io::Result<()>;
    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
    /// Drives `server`, whose worker it is; `false` when that was stopped.
    fn go(&mut self, far: Far, server: &Server) -> io::Result<bool>;
    /// What is due behind the last turn.
    fn end(&mut self) -> io::Result<()>;
    fn counters(&self) -> Arc<Counters>;
}

impl<E: Engine> Drive for Worker<E, Desk> {
    fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.listen(listener)
    }

    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.watch_signals(descriptor)
    }

    /// The turns are counted here, behind the trait, so that they can be inlined.
    fn go(&mut self, far: Far, server: &Server) -> io::Result<bool> {
        loop {
            let turn = self.turn(server.deadline())?;
            if !server.goes_on(&turn) {
                return Ok(false);
            }
            if far == Far::OneTurn {
                return Ok(true);
            }
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.end()
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters()
    }
}
