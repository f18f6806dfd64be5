//! Clocks for the durations of calls and waits.

/// A monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock(libc::clockid_t);

/// A moment on a clock, in nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Moment(u64);

impl Clock {
    /// Advances with the kernel's ticks, of some milliseconds, and is cheap to read.
    #[cfg(target_os = "linux")]
    pub(crate) const COARSE: Self = Self(libc::CLOCK_MONOTONIC_COARSE);
    #[cfg(not(target_os = "linux"))]
    pub(crate) const COARSE: Self = Self::PRECISE;

    pub(crate) const PRECISE: Self = Self(libc::CLOCK_MONOTONIC);

    #[inline]
    pub(crate) fn now(self) -> Moment {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `time` only.
        unsafe { libc::clock_gettime(self.0, &mut time) };
        Moment(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

impl Moment {
    #[inline]
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
