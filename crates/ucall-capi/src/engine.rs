//! The engine of a server, as `ucall_engine_t` numbers it.

use ucall_engine::{EngineKind, UringUnavailable};

use crate::boundary::{Error, ErrorCode};
use crate::log::Log;

pub(crate) const AUTO: u32 = 0;
pub(crate) const POSIX: u32 = 1;
pub(crate) const URING: u32 = 2;

/// The engine of that number. `AUTO` takes io_uring if available, and otherwise logs why not.
pub(crate) fn choose(number: u32, log: &Log) -> Result<EngineKind, Error> {
    match number {
        POSIX => return Ok(EngineKind::Posix),
        AUTO | URING => {}
        _ => return Err(format!("engine: {number} is no ucall_engine_t").into()),
    }
    match probe_uring() {
        Ok(uring) => Ok(uring),
        Err(unavailable) if number == URING => {
            let text = format!("engine: io_uring is unavailable: {unavailable}");
            Err(Error::new(ErrorCode::Engine, text))
        }
        Err(unavailable) => {
            log.warn(&format!("running on the posix engine: {unavailable}"));
            Ok(EngineKind::Posix)
        }
    }
}

/// Probes on a thread of its own: closing a ring interrupts the next system call of its thread.
fn probe_uring() -> Result<EngineKind, UringUnavailable> {
    match std::thread::Builder::new().spawn(EngineKind::probe_uring) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => EngineKind::probe_uring(),
    }
}

pub(crate) fn number(engine: EngineKind) -> u32 {
    match engine {
        EngineKind::Posix => POSIX,
        #[cfg(target_os = "linux")]
        EngineKind::Uring(_) => URING,
    }
}
