//! How a thread waits for its link and for other threads.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ucall_engine::{WakeFlag, Wanted, wait_for_any};

use super::link::ProcessLink;

/// Waits for a link, and is woken by other threads.
#[derive(Debug)]
pub(super) struct Waiter {
    wake: Arc<WakeFlag>,
    /// Can be read when the thread was woken.
    woken: UnixStream,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        // If its buffer is full, there is enough to read.
        let wake = Arc::new(WakeFlag::new(move || drop((&waker).write(&[0]))));
        Ok(Self { wake, woken })
    }

    /// What wakes the thread.
    pub(super) fn wake(&self) -> &Arc<WakeFlag> {
        &self.wake
    }

    /// Waits until there may be something to do, or for as long as that. Returns whether `exit` can
    /// be read.
    pub(super) fn wait(
        &self,
        link: &ProcessLink,
        exit: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> io::Result<bool> {
        if !self.wake.prepare_to_sleep() {
            return Ok(false);
        }
        let wanted = |descriptor, writable| Wanted { descriptor, writable };
        let socket = wanted(link.socket(), link.has_output());
        let woken = wanted(self.woken.as_fd(), false);
        let (is_woken, has_ended) = match exit {
            Some(exit) => {
                let ready = wait_for_any([socket, woken, wanted(exit, false)], timeout)?;
                (ready[1], ready[2])
            }
            None => (wait_for_any([socket, woken], timeout)?[1], false),
        };
        self.wake.clear_sleeping();
        if is_woken {
            let _ = (&self.woken).read(&mut [0; 64]);
        }
        Ok(has_ended)
    }
}
