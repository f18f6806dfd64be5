//! A worker on the engine that a program chooses when it runs.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Engine, EngineKind, Listener, Waker};

use crate::config::WorkerConfig;
use crate::counters::Counters;
use crate::handler::Handler;
use crate::mailbox::Mailbox;
use crate::procedures::Procedures;
use crate::publisher::Publisher;
use crate::worker::{Turn, Worker};

/// Slots of a ring's table beyond the connections, so that a new connection gets one before the
/// longest idle connection is evicted for it.
#[cfg(target_os = "linux")]
const RESERVED_SOCKETS: usize = 256;

/// Descriptors that are left to the rest of the process.
const RESERVED_DESCRIPTORS: u64 = 64;

/// The sockets that the process's limit on descriptors allows. Raises the limit first.
pub fn sockets_allowed() -> usize {
    let descriptors = ucall_engine::raise_descriptor_limit().saturating_sub(RESERVED_DESCRIPTORS);
    usize::try_from(descriptors).unwrap_or(usize::MAX).max(1)
}

/// A [`Worker`] on any engine; its methods are those of [`Worker`].
pub enum AnyWorker<H: Handler> {
    /// On the posix engine.
    Posix(Box<Worker<Posix, H>>),
    /// On io_uring.
    #[cfg(target_os = "linux")]
    Uring(Box<Worker<Uring, H>>),
}

macro_rules! call {
    ($any:expr, $worker:ident => $call:expr) => {
        match $any {
            AnyWorker::Posix($worker) => $call,
            #[cfg(target_os = "linux")]
            AnyWorker::Uring($worker) => $call,
        }
    };
}

#[expect(missing_docs, reason = "`Worker` documents its methods")]
impl<H: Handler> AnyWorker<H> {
    /// A worker on this engine for the current thread, with the default queue depth unless one is
    /// given. posix has no queue: it makes each operation as a system call at once.
    pub fn new(
        engine: EngineKind,
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: WorkerConfig,
        queue_depth: Option<u16>,
    ) -> io::Result<Self> {
        Ok(match engine {
            EngineKind::Posix => {
                let _ = queue_depth;
                Self::Posix(Box::new(Worker::new(Posix::new()?, handler, procedures, config)))
            }
            #[cfg(target_os = "linux")]
            EngineKind::Uring(features) => {
                let sockets = config.connections_max.saturating_add(RESERVED_SOCKETS);
                let default = uring::Config::default();
                let size = uring::Config {
                    queue_depth: queue_depth.map_or(default.queue_depth, u32::from),
                    sockets_max: u32::try_from(sockets).unwrap_or(u32::MAX),
                };
                let engine = Uring::new(size, features)?;
                Self::Uring(Box::new(Worker::new(engine, handler, procedures, config)))
            }
        })
    }

    pub fn listen(&mut self, listener: Listener) -> io::Result<()> {
        call!(self, worker => worker.listen(listener))
    }

    pub fn listen_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        call!(self, worker => worker.listen_datagrams(socket).map(drop))
    }

    pub fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        call!(self, worker => worker.watch_signals(descriptor))
    }

    pub fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        call!(self, worker => worker.watch_loop(descriptor))
    }

    pub fn unwatch_loop(&mut self) {
        call!(self, worker => worker.unwatch_loop());
    }

    pub fn submit(&mut self) -> io::Result<bool> {
        call!(self, worker => worker.submit())
    }

    pub fn prepare_to_wait(&mut self) -> bool {
        call!(self, worker => worker.prepare_to_wait())
    }

    pub fn deadline(&self) -> Option<Instant> {
        call!(self, worker => worker.deadline())
    }

    /// The engine's descriptor, which is readable when a turn is due.
    pub fn descriptor(&self) -> RawFd {
        call!(self, worker => worker.engine().as_fd().as_raw_fd())
    }

    /// A handle that ends the wait of a turn from another thread.
    pub fn waker(&self) -> Waker {
        call!(self, worker => worker.engine().waker())
    }

    #[inline]
    pub fn turn(&mut self, deadline: Option<Instant>) -> io::Result<Turn> {
        call!(self, worker => worker.turn(deadline))
    }

    #[inline]
    pub fn turns(
        &mut self,
        deadline: impl FnMut() -> Option<Instant>,
        is_last: impl FnMut(&Turn) -> bool,
    ) -> io::Result<Turn> {
        call!(self, worker => worker.turns(deadline, is_last))
    }

    pub fn shut_down(&mut self) -> io::Result<()> {
        call!(self, worker => worker.shut_down())
    }

    pub fn handler_mut(&mut self) -> &mut H {
        call!(self, worker => worker.handler_mut())
    }

    pub fn mailbox(&self) -> Mailbox {
        call!(self, worker => worker.mailbox())
    }

    pub fn publisher(&self) -> Arc<Publisher> {
        call!(self, worker => worker.publisher())
    }

    pub fn counters(&self) -> Arc<Counters> {
        call!(self, worker => worker.counters())
    }

    pub fn set_counters(&mut self, counters: Arc<Counters>) {
        call!(self, worker => worker.set_counters(counters));
    }
}
