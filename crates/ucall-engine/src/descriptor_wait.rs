//! Waits for a few descriptors, on a thread that has no engine.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// What to wait for at a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'fd> {
    /// The descriptor, which is waited for until it can be read or its other end is closed.
    pub descriptor: BorrowedFd<'fd>,
    /// Whether to wait until it can be written as well.
    pub writable: bool,
}

/// Waits until one of the descriptors is ready, or for this long. Returns which are ready; none if
/// the time is over or a signal has interrupted the wait.
///
/// # Errors
/// The system has no memory for it.
pub fn wait_for_any<const N: usize>(
    wanted: [Wanted<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let flags = |it: &Wanted<'_>| match it.writable {
        true => PollFlags::IN | PollFlags::OUT,
        false => PollFlags::IN,
    };
    let mut polled = wanted.map(|it| PollFd::from_borrowed_fd(it.descriptor, flags(&it)));
    let timeout = timeout.map(|it| Timespec {
        tv_sec: i64::try_from(it.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: it.subsec_nanos().into(),
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(polled.map(|it| !it.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn it_returns_which_descriptors_are_ready() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let idle = UnixStream::pair().unwrap();
        let wanted = |writable| {
            [
                Wanted { descriptor: other.as_fd(), writable },
                Wanted { descriptor: idle.0.as_fd(), writable: false },
            ]
        };
        assert_eq!(wait_for_any(wanted(false), Some(Duration::ZERO)).unwrap(), [false, false]);
        assert_eq!(wait_for_any(wanted(true), None).unwrap(), [true, false]);
        one.write_all(b"x").unwrap();
        assert_eq!(wait_for_any(wanted(false), None).unwrap(), [true, false]);
        drop(idle.1);
        assert_eq!(wait_for_any(wanted(false), None).unwrap(), [true, true]);
    }
}
