//! The limit on open descriptors.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Stands for an unlimited hard limit: macOS rejects higher ones.
const UNLIMITED_FALLBACK: u64 = 10_240;

/// Raises the process's soft limit on descriptors to the hard one, and returns the new soft limit.
/// If that fails, the limit stays unchanged; that is no error.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    let wanted = limit.maximum.unwrap_or(UNLIMITED_FALLBACK.max(soft));
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    if soft < wanted && setrlimit(Resource::Nofile, raised).is_ok() { wanted } else { soft }
}

/// Whether the error says that this process, or this machine, has no descriptor or memory left.
pub fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// The error for a descriptor past a limit of our own.
pub fn too_many_descriptors() -> io::Error {
    Errno::MFILE.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_no_failure_of_a_peer() {
        assert!(is_shortage(&too_many_descriptors()));
        assert!(!is_shortage(&Errno::CONNREFUSED.into()));
        assert!(!is_shortage(&io::ErrorKind::UnexpectedEof.into()));
    }

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        let now = raise_descriptor_limit();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), now);
        assert_eq!(raise_descriptor_limit(), now);
    }
}
