//! What this kernel's io_uring has, as a value.

use std::io;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode};

use crate::UringUnavailable;

/// The features that the engine uses beyond its minimum, Linux 5.19 (buffer rings, direct
/// descriptors, multishot accept, `COOP_TASKRUN`). Remove features to imitate an older kernel, but
/// never add any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// One receive operation reports until it is cancelled (6.0).
    pub multishot_receive: bool,
    /// The kernel relies on one thread submitting (6.0).
    pub single_issuer: bool,
    /// Completions are processed only while we wait (6.1). A poll on the ring's descriptor then
    /// never wakes up: remove the feature to run inside another event loop.
    pub defer_taskrun: bool,
    /// A send that fails halfway reports the bytes that were sent (6.1).
    pub partial_sends: bool,
    /// A direct descriptor can be made an ordinary one (6.8).
    pub install_descriptor: bool,
}

impl Features {
    const NONE: Self = Self {
        multishot_receive: false,
        single_issuer: false,
        defer_taskrun: false,
        partial_sends: false,
        install_descriptor: false,
    };

    /// Probes the kernel. It rejects unknown set-up flags with EINVAL, so trying them from the
    /// newest on reveals its age, even where distributions have backported features.
    pub fn probe() -> Result<Self, UringUnavailable> {
        for version in [(6, 1), (6, 0), (5, 19)] {
            let features = Self { install_descriptor: false, ..Self::of_release(version) };
            match wait_for_memory(|| features.ring(2, 4)) {
                Ok(ring) => return Ok(features.with_operations(&ring)),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(explain(error)),
            }
        }
        Err(UringUnavailable::new(
            "this kernel's io_uring is older than Linux 5.19",
            io::ErrorKind::Unsupported.into(),
        ))
    }

    /// These features without those that this (major, minor) version of Linux lacks.
    pub fn as_of(self, version: (u16, u16)) -> Self {
        let had = Self::of_release(version);
        Self {
            multishot_receive: self.multishot_receive && had.multishot_receive,
            single_issuer: self.single_issuer && had.single_issuer,
            defer_taskrun: self.defer_taskrun && had.defer_taskrun,
            partial_sends: self.partial_sends && had.partial_sends,
            install_descriptor: self.install_descriptor && had.install_descriptor,
        }
    }

    /// The features of each release (io_uring_setup(2), io_uring_enter(2)).
    fn of_release(version: (u16, u16)) -> Self {
        Self {
            multishot_receive: version >= (6, 0),
            single_issuer: version >= (6, 0),
            defer_taskrun: version >= (6, 1),
            partial_sends: version >= (6, 1),
            install_descriptor: version >= (6, 8),
        }
    }

    fn with_operations(self, ring: &IoUring) -> Self {
        let mut probe = Probe::new();
        let probed = ring.submitter().register_probe(&mut probe).is_ok();
        let install_descriptor = probed && probe.is_supported(opcode::FixedFdInstall::CODE);
        Self { install_descriptor, ..self }
    }

    /// Whether the kernel holds work back until we enter it for completions.
    pub(super) fn defers_taskrun(self) -> bool {
        self.defer_taskrun && self.single_issuer
    }

    /// A ring set up with these features.
    pub(super) fn ring(self, submissions: u32, completions: u32) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).setup_clamp().setup_submit_all().dontfork();
        if self.single_issuer {
            builder.setup_single_issuer();
        }
        if self.defers_taskrun() {
            // Without the flag for pending task work: the kernel sets it from another core, in the
            // cache line of both queues' tails.
            builder.setup_defer_taskrun();
        } else {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        builder.build(submissions)
    }
}

impl Default for Features {
    /// Those of the floor, Linux 5.19.
    fn default() -> Self {
        Self::NONE
    }
}

/// Makes a ring, or buffers of one. Retries for a second where they are above the limit on locked
/// memory: the kernel releases that of earlier rings after their end, mostly within 100 ms.
pub(super) fn wait_for_memory<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..100 {
        match make() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                thread::sleep(Duration::from_millis(10));
            }
            made => return made,
        }
    }
    make()
}

pub(super) fn explain(error: io::Error) -> UringUnavailable {
    let reason = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is refused here: a container or sysctl kernel.io_uring_disabled forbids it"
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring",
        Some(libc::ENOMEM) => {
            "no memory for an io_uring: raise the limit on locked memory (ulimit -l)"
        }
        Some(libc::EMFILE | libc::ENFILE) => "no descriptor left for an io_uring",
        _ => "io_uring cannot be set up",
    };
    UringUnavailable::new(reason, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_only_remove_features() {
        let all = Features::of_release((6, 10));
        assert_eq!(all.as_of((5, 19)), Features::default());
        assert!(all.as_of((6, 0)).multishot_receive && !all.as_of((6, 0)).defer_taskrun);
        assert!(all.as_of((6, 1)).defer_taskrun && !all.as_of((6, 1)).install_descriptor);
        assert_eq!(all.as_of((7, 0)), all);
        assert_eq!(Features::default().as_of((6, 10)), Features::default());
    }

    #[test]
    fn an_unavailable_ring_has_a_readable_reason() {
        let refused = explain(io::Error::from_raw_os_error(libc::EPERM));
        assert!(refused.to_string().contains("kernel.io_uring_disabled"), "{refused}");
        assert_eq!(io::Error::from(refused).kind(), io::ErrorKind::PermissionDenied);
    }
}
