//! Which engine this machine gets.

use std::fmt;
use std::io;

#[cfg(target_os = "linux")]
use crate::uring;

/// The best engine that this machine allows.
#[derive(Debug)]
pub enum EngineChoice {
    /// io_uring, with these features.
    #[cfg(target_os = "linux")]
    Uring(uring::Features),
    /// Readiness polling, and why it is not io_uring.
    Posix(UringUnavailable),
}

impl EngineChoice {
    /// Probes the kernel by a few system calls. Probe once per process.
    pub fn probe() -> Self {
        #[cfg(target_os = "linux")]
        return match uring::Features::probe() {
            Ok(features) => EngineChoice::Uring(features),
            Err(unavailable) => EngineChoice::Posix(unavailable),
        };
        #[cfg(not(target_os = "linux"))]
        EngineChoice::Posix(UringUnavailable::new(
            "io_uring exists on Linux only",
            io::ErrorKind::Unsupported.into(),
        ))
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
