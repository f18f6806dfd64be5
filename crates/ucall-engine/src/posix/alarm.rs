//! The alarm of [`Until`]: a timer that the poll watches, where the system has such; elsewhere each
//! wait has its own timeout.

use std::io;
use std::time::{Duration, Instant};

use crate::until::Until;

pub(super) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: std::os::fd::OwnedFd,
    /// `None` when it is not set, or has rung.
    rings_at: Option<Instant>,
}

impl Alarm {
    /// How long a poll for a wait until `deadline` may last; sets the alarm if that pays.
    #[inline]
    pub(super) fn timeout(
        &mut self,
        deadline: Option<Instant>,
        calls: &mut u64,
    ) -> io::Result<Option<Duration>> {
        match Until::of(deadline, self.rings_at) {
            Until::Now => Ok(Some(Duration::ZERO)),
            Until::After(left) => Ok(Some(left)),
            Until::Alarm => Ok(None),
            Until::NewAlarm(left) => self.set(deadline, left, calls),
        }
    }

    pub(super) fn has_rung(&mut self) {
        self.rings_at = None;
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

    use super::{Alarm, Duration, Instant, io};

    impl Alarm {
        pub(in super::super) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self { timer, rings_at: None })
        }

        /// Sets it once. What it held of a ring before, which nobody reads, goes with that.
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
            self.rings_at = deadline;
            Ok(None)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use mio::{Registry, Token};

    use super::{Alarm, Duration, Instant, io};

    impl Alarm {
        pub(in super::super) fn new(_registry: &Registry, _token: Token) -> io::Result<Self> {
            Ok(Self { rings_at: None })
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
