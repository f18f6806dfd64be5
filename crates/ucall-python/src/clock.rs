//! A clock that is cheap to read, for durations of some milliseconds and longer.

use std::time::Duration;

/// A moment on a clock that advances with the kernel's ticks.
#[derive(Clone, Copy)]
pub(crate) struct CoarseTime(Duration);

#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

impl CoarseTime {
    #[inline]
    pub(crate) fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `time` only.
        unsafe { libc::clock_gettime(CLOCK, &mut time) };
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    #[inline]
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
