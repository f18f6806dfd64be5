//! Which engine this machine gets.

use std::fmt;
use std::io;

#[cfg(target_os = "linux")]
use crate::uring;

/// The best engine that this machine allows.
#[derive(Debug)]
pub enum Choice {
    /// io_uring, with these features.
    #[cfg(target_os = "linux")]
    Uring(uring::Features),
    /// Readiness polling, and why it is not io_uring.
    Posix(Refused),
}

impl Choice {
    /// Looks what the kernel has. Costs a few system calls; look once a process.
    pub fn probe() -> Self {
        #[cfg(target_os = "linux")]
        return match uring::Features::probe() {
            Ok(features) => Choice::Uring(features),
            Err(refused) => Choice::Posix(refused),
        };
        #[cfg(not(target_os = "linux"))]
        Choice::Posix(Refused::new(
            "io_uring exists on Linux only",
            io::ErrorKind::Unsupported.into(),
        ))
    }
}

/// Why io_uring cannot be used here, in words.
#[derive(Debug)]
pub struct Refused {
    reason: &'static str,
    error: io::Error,
}

impl Refused {
    pub(crate) const fn new(reason: &'static str, error: io::Error) -> Self {
        Self { reason, error }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.reason, self.error)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        io::Error::new(refused.error.kind(), refused)
    }
}
