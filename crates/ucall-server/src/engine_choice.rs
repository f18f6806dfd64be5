//! Makes a worker on the engine that a program chooses when it runs.

use std::io;
use std::sync::Arc;

use ucall_engine::EngineKind;
use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};

use crate::any_worker::AnyWorker;
use crate::config::WorkerConfig;
use crate::handler::Handler;
use crate::procedures::Procedures;
use crate::worker::Worker;

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

impl<H: Handler + 'static> dyn AnyWorker<H> {
    /// A worker on this engine for the current thread, with the default queue depth unless one is
    /// given. posix has no queue: it makes each operation as a system call at once.
    ///
    /// # Errors
    /// The engine's.
    pub fn new(
        engine: EngineKind,
        handler: H,
        procedures: Arc<Procedures<H::Procedure>>,
        config: WorkerConfig,
        queue_depth: Option<u16>,
    ) -> io::Result<Box<Self>> {
        Ok(match engine {
            EngineKind::Posix => {
                let _ = queue_depth;
                Box::new(Worker::new(Posix::new()?, handler, procedures, config))
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
                Box::new(Worker::new(engine, handler, procedures, config))
            }
        })
    }
}
