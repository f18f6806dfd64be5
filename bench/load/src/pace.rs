//! A timer for the next request of an open loop, as an event of the same poll.
//!
//! The timeout of a poll has whole milliseconds; a kernel timer has nanoseconds.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timer that ends a poll.
pub struct Pace(OwnedFd);

impl Pace {
    /// An unset timer, whose event has this token.
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// Makes the next poll end at that time. A time in the past counts as one nanosecond, because
    /// zero would stop the timer.
    pub fn set(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let it_value = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos().max(1)),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }
}
