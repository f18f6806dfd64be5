//! The limit on open descriptors.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        let now = raise_descriptor_limit();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), now);
        assert_eq!(raise_descriptor_limit(), now);
    }
}
