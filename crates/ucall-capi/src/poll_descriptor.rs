//! One descriptor for a program's event loop, readable when a turn of its worker is due.
//!
//! It watches the engine's descriptor, and a timer for what is due without an event: the deadlines
//! of connections and calls, and what the last turn has left to do.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

pub(crate) struct PollDescriptor {
    poll: OwnedFd,
    timer: OwnedFd,
}

#[cfg(target_os = "linux")]
impl PollDescriptor {
    /// A descriptor that watches the engine's, and is readable until the first turn.
    pub(crate) fn new(engine: RawFd) -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: these calls take no pointers.
        let (poll, timer) = unsafe {
            (
                libc::epoll_create1(libc::EPOLL_CLOEXEC),
                libc::timerfd_create(libc::CLOCK_MONOTONIC, flags),
            )
        };
        let made = Self { poll: owned(poll)?, timer: owned(timer)? };
        made.watch(engine)?;
        made.watch(made.timer.as_raw_fd())?;
        made.arm(Some(Instant::now()))?;
        Ok(made)
    }

    fn watch(&self, descriptor: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let (poll, add) = (self.poll.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: the event is readable.
        checked(unsafe { libc::epoll_ctl(poll, add, descriptor, &raw mut event) })
    }

    /// Makes it readable at that time even without an event; `None`: never.
    pub(crate) fn arm(&self, at: Option<Instant>) -> io::Result<()> {
        // A timer of zero would be disarmed.
        let left =
            |at: Instant| at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let left = at.map_or(Duration::ZERO, left);
        let it_value = libc::timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let it_interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = libc::itimerspec { it_interval, it_value };
        let timer = self.timer.as_raw_fd();
        // SAFETY: the time is readable.
        checked(unsafe { libc::timerfd_settime(timer, 0, &raw const time, ptr::null_mut()) })
    }
}

#[cfg(not(target_os = "linux"))]
impl PollDescriptor {
    pub(crate) fn new(_engine: RawFd) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn arm(&self, _at: Option<Instant>) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for PollDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

#[cfg(target_os = "linux")]
fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    checked(descriptor)?;
    // SAFETY: a system call has opened it just now.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(target_os = "linux")]
fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn is_readable(descriptor: &impl AsRawFd, timeout_ms: i32) -> bool {
        let fd = descriptor.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is readable and writable.
        unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
    }

    #[test]
    fn it_is_readable_when_the_engine_is_or_a_time_has_come() {
        let (reader, writer) = io::pipe().unwrap();
        let poll = PollDescriptor::new(reader.as_raw_fd()).unwrap();
        assert!(is_readable(&poll, -1), "until the first turn");
        poll.arm(None).unwrap();
        assert!(!is_readable(&poll, 0));
        poll.arm(Some(Instant::now() + Duration::from_secs(3600))).unwrap();
        assert!(!is_readable(&poll, 0));
        poll.arm(Some(Instant::now() + Duration::from_millis(1))).unwrap();
        assert!(is_readable(&poll, -1));
        poll.arm(None).unwrap();
        io::Write::write_all(&mut &writer, b"x").unwrap();
        assert!(is_readable(&poll, -1));
    }
}
