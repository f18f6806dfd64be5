//! The stop signal of a server, for any thread and for signal handlers.
//!
//! It has a flag, and a pipe that every worker watches. A request to stop writes one byte, which is
//! never read, so the pipe wakes all workers until they have stopped. A request to drain sets the
//! flag alone.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPED: u8 = 2;

/// Stops a server.
#[derive(Debug)]
pub(crate) struct StopSignal {
    state: AtomicU8,
    /// How long a drain may last, in milliseconds.
    drain_ms: AtomicU64,
    reader: PipeReader,
    writer: PipeWriter,
}

impl StopSignal {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let (state, drain_ms) = (AtomicU8::new(RUNNING), AtomicU64::new(0));
        Ok(Self { state, drain_ms, reader, writer })
    }

    /// Requests the stop. Async-signal-safe: one atomic exchange and one write(2), which cannot
    /// block because the pipe is empty. It restores `errno`.
    pub(crate) fn request(&self) {
        if self.state.swap(STOPPED, Ordering::SeqCst) == STOPPED {
            return;
        }
        let byte = 1u8;
        keep_errno(|| {
            // SAFETY: one byte is readable, and the descriptor is ours and open.
            unsafe { libc::write(self.writer.as_raw_fd(), (&raw const byte).cast(), 1) };
        });
    }

    /// Requests a drain, unless there is a request already. Async-signal-safe.
    pub(crate) fn request_drain(&self, timeout_ms: u64) {
        if self.state.load(Ordering::SeqCst) == RUNNING {
            self.drain_ms.store(timeout_ms, Ordering::SeqCst);
            let (running, draining, order) = (RUNNING, DRAINING, Ordering::SeqCst);
            // A stop that was requested meanwhile takes precedence.
            let _ = self.state.compare_exchange(running, draining, order, order);
        }
    }

    /// Whether a stop is requested.
    pub(crate) fn is_requested(&self) -> bool {
        self.state.load(Ordering::SeqCst) == STOPPED
    }

    /// Whether a stop or a drain is requested.
    pub(crate) fn is_ending(&self) -> bool {
        self.state.load(Ordering::SeqCst) != RUNNING
    }

    /// How long a drain may last.
    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_millis(self.drain_ms.load(Ordering::SeqCst))
    }

    /// Readable after a request.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Runs a part of a signal handler, which must not change `errno`.
pub(crate) fn keep_errno(run: impl FnOnce()) {
    let errno = errno_location();
    // SAFETY: the address of errno is valid as long as this thread.
    let before = unsafe { errno.read() };
    run();
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

#[cfg(target_os = "linux")]
fn errno_location() -> *mut libc::c_int {
    // SAFETY: this function has no precondition.
    unsafe { libc::__errno_location() }
}

#[cfg(not(target_os = "linux"))]
fn errno_location() -> *mut libc::c_int {
    // SAFETY: this function has no precondition.
    unsafe { libc::__error() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn repeated_requests_write_once() {
        let stop = StopSignal::new().unwrap();
        assert!(!stop.is_requested());
        for _ in 0..100_000 {
            stop.request();
        }
        assert!(stop.is_requested());
        let StopSignal { mut reader, writer, .. } = stop;
        drop(writer);
        let mut written = Vec::new();
        reader.read_to_end(&mut written).unwrap();
        assert_eq!(written, [1]);
    }
}
