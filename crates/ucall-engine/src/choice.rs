//! The engines that a program can choose from.

use std::fmt;
use std::io;

use crate::engine::Engine;
use crate::posix::Posix;
#[cfg(target_os = "linux")]
use crate::uring;

/// An engine that this machine allows.
#[derive(Clone, Copy, Debug)]
pub enum EngineKind {
    /// Readiness polling.
    Posix,
    /// io_uring, with these features.
    #[cfg(target_os = "linux")]
    Uring(uring::Features),
}

impl EngineKind {
    /// io_uring, or why this machine refuses it. Probes the kernel by a few system calls.
    pub fn probe_uring() -> Result<Self, UringUnavailable> {
        #[cfg(target_os = "linux")]
        return uring::Features::probe().map(Self::Uring);
        #[cfg(not(target_os = "linux"))]
        Err(UringUnavailable::new(
            "io_uring exists on Linux only",
            io::ErrorKind::Unsupported.into(),
        ))
    }

    /// [`Engine::NAME`] of the engine.
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => Posix::NAME,
            #[cfg(target_os = "linux")]
            Self::Uring(_) => uring::Uring::NAME,
        }
    }

    /// The engine for a worker within a program's event loop: a ring under `defer_taskrun` does not
    /// wake a thread that polls its descriptor.
    pub fn for_embedded_loop(self) -> Self {
        match self {
            Self::Posix => Self::Posix,
            #[cfg(target_os = "linux")]
            Self::Uring(features) => {
                Self::Uring(uring::Features { defer_taskrun: false, ..features })
            }
        }
    }
}

/// Why io_uring cannot be used here, in words.
#[derive(Debug)]
pub struct UringUnavailable {
    reason: &'static str,
    error: io::Error,
}

impl UringUnavailable {
    pub(crate) const fn new(reason: &'static str, error: io::Error) -> Self {
        Self { reason, error }
    }
}

impl fmt::Display for UringUnavailable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.reason, self.error)
    }
}

impl std::error::Error for UringUnavailable {}

impl From<UringUnavailable> for io::Error {
    fn from(unavailable: UringUnavailable) -> Self {
        io::Error::new(unavailable.error.kind(), unavailable)
    }
}
