//! The kernel timer of [`WaitTimeout`]: a timerfd that the poll watches. On systems without one
//! each wait has its own timeout.

use std::io;
use std::time::{Duration, Instant};

use crate::wait_timeout::WaitTimeout;

pub(super) struct DeadlineTimer {
    #[cfg(target_os = "linux")]
    timer: std::os::fd::OwnedFd,
    /// `None` when it is not set, or has expired.
    expires_at: Option<Instant>,
}

impl DeadlineTimer {
    /// How long a poll for a wait until `deadline` may last; sets the timer if that pays.
    #[inline]
    pub(super) fn timeout(
        &mut self,
        deadline: Option<Instant>,
        calls: &mut u64,
    ) -> io::Result<Option<Duration>> {
        match WaitTimeout::new(deadline, self.expires_at) {
            WaitTimeout::Now => Ok(Some(Duration::ZERO)),
            WaitTimeout::After(left) => Ok(Some(left)),
            WaitTimeout::Timer => Ok(None),
            WaitTimeout::NewTimer(left) => self.set(deadline, left, calls),
        }
    }

    pub(super) fn mark_expired(&mut self) {
        self.expires_at = None;
    }
}

#[cfg(target_os = "linux")]
mod timer {
    use std::os::fd::AsRawFd;

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use super::{DeadlineTimer, Duration, Instant, io};

    impl DeadlineTimer {
        pub(in super::super) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self { timer, expires_at: None })
        }

        /// Sets it once. That also discards an expiration that was not read.
        #[cold]
        pub(super) fn set(
            &mut self,
            deadline: Option<Instant>,
            left: Duration,
            calls: &mut u64,
        ) -> io::Result<Option<Duration>> {
            let once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value = Timespec::try_from(left).map_err(io::Error::other)?;
            let spec = Itimerspec { it_interval: once, it_value };
            *calls += 1;
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
            self.expires_at = deadline;
            Ok(None)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use mio::{Registry, Token};

    use super::{DeadlineTimer, Duration, Instant, io};

    impl DeadlineTimer {
        pub(in super::super) fn new(_registry: &Registry, _token: Token) -> io::Result<Self> {
            Ok(Self { expires_at: None })
        }

        pub(super) fn set(
            &mut self,
            _deadline: Option<Instant>,
            left: Duration,
            _calls: &mut u64,
        ) -> io::Result<Option<Duration>> {
            Ok(Some(left))
        }
    }
}
