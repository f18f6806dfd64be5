//! Clocks: one that costs next to nothing, for durations that are no shorter than some
//! milliseconds, and Python's own.

use std::time::Duration;

/// A moment, on the clock that the kernel advances with its own ticks.
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
        // SAFETY: writes to the place that it is given, or nowhere.
        unsafe { libc::clock_gettime(CLOCK, &mut time) };
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    #[inline]
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
