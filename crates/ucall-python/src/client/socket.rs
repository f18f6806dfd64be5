//! A connected socket in blocking mode, used by system calls.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::request::Request;

/// Pieces of memory that are sent by one system call.
const PIECES_MAX: usize = 64;

/// The time at which a call gives up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// A deadline after a duration; `None` for no deadline.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// The time left for poll(2); -1 without a deadline.
    fn left_ms(self) -> libc::c_int {
        self.0.map_or(-1, |end| whole_ms(end.saturating_duration_since(Instant::now())))
    }
}

/// Milliseconds, rounded up.
fn whole_ms(duration: Duration) -> libc::c_int {
    duration.as_micros().div_ceil(1000).try_into().unwrap_or(libc::c_int::MAX)
}

/// The duration of an argument from Python.
pub(super) fn duration(seconds: f64) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => Ok(duration),
        Err(_) => Err(PyValueError::new_err("timeout: expected seconds, 0 or more")),
    }
}

/// Waits until a socket is readable; `false` after the timeout.
pub(super) fn poll_in(descriptor: RawFd, timeout: Duration) -> io::Result<bool> {
    poll(descriptor, libc::POLLIN, whole_ms(timeout)).map(|returned| returned != 0)
}

/// The events that a descriptor has, after a wait for one of some; 0 after the timeout.
fn poll(
    descriptor: RawFd,
    events: libc::c_short,
    timeout_ms: libc::c_int,
) -> io::Result<libc::c_short> {
    let mut watched = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one entry, alive through the call.
    match unsafe { libc::poll(&raw mut watched, 1, timeout_ms) } {
        0.. => Ok(watched.revents),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The state of an idle connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdleState {
    Quiet,
    /// The first byte of data that no request asked for.
    Bytes(u8),
    Closed,
}

/// Peeks at the socket without waiting.
pub(super) fn peek_idle(descriptor: RawFd) -> IdleState {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: buffer and length are one byte; the system refuses an invalid descriptor.
    match unsafe { libc::recv(descriptor, (&raw mut byte).cast(), 1, flags) } {
        1 => IdleState::Bytes(byte),
        0 => IdleState::Closed,
        _ => match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => IdleState::Quiet,
            _ => IdleState::Closed,
        },
    }
}

/// The directions in which a socket is ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) readable: bool,
}

/// A socket that this owns.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: OwnedFd,
    /// The longest wait of a blocking receive, as the system was last told.
    receive_timeout: Option<Duration>,
}

impl Socket {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, receive_timeout: None }
    }

    pub(super) fn peek(&self) -> IdleState {
        peek_idle(self.descriptor.as_raw_fd())
    }

    /// Sends what the system takes without waiting.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: pointer and length are of one slice, which outlives the call.
        let sent = unsafe {
            libc::send(self.descriptor.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Sends what the system takes without waiting of a request in several pieces of memory, of
    /// which `sent` bytes were sent.
    pub(super) fn send_pieces(&self, request: &Request, sent: usize) -> io::Result<usize> {
        let pieces = request.pieces();
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, sent);
        // SAFETY: all fields of it may be zero.
        let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
        // An `IoSlice` is a `iovec`.
        message.msg_iov = rest.as_mut_ptr().cast();
        message.msg_iovlen = rest.len().min(PIECES_MAX) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pieces are memory of the request, which outlives the call; the system only
        // reads it.
        let sent = unsafe { libc::sendmsg(self.descriptor.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Appends up to `bytes_max` bytes; 0 at the end. Waits for the first of them for the receive
    /// timeout, or with `at_once` not at all.
    pub(super) fn receive(
        &self,
        target: &mut Vec<u8>,
        bytes_max: usize,
        at_once: bool,
    ) -> io::Result<usize> {
        target.reserve(bytes_max.min(RECEIVE_BYTES_MIN));
        let buffer = target.spare_capacity_mut();
        let len = bytes_max.min(buffer.len());
        let flags = if at_once { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the pointer leads to `len` bytes of spare capacity of the vector.
        let received = unsafe {
            libc::recv(self.descriptor.as_raw_fd(), buffer.as_mut_ptr().cast(), len, flags)
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the system wrote that many bytes after the present ones, within the capacity.
        unsafe { target.set_len(target.len() + received) };
        Ok(received)
    }

    /// Sets the receive timeout of the socket, unless it is set already.
    pub(super) fn set_receive_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.receive_timeout == timeout {
            return Ok(());
        }
        // Zero would mean no timeout.
        let wait = timeout.map_or(Duration::ZERO, |timeout| timeout.max(Duration::from_micros(1)));
        let value = libc::timeval {
            tv_sec: wait.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_usec: wait.subsec_micros() as libc::suseconds_t,
        };
        // SAFETY: the option takes a timeval; pointer and size are those of one.
        let state = unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const value).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if state != 0 {
            return Err(io::Error::last_os_error());
        }
        self.receive_timeout = timeout;
        Ok(())
    }

    /// Waits until the socket is readable, or also until it is writable. After the deadline it does
    /// not poll at all, or a peer that keeps sending could keep a call forever.
    pub(super) fn wait(&self, to_send: bool, deadline: Deadline) -> io::Result<Ready> {
        if deadline.is_over() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let events = if to_send { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        match poll(self.descriptor.as_raw_fd(), events, deadline.left_ms())? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            returned => Ok(Ready { readable: returned & !libc::POLLOUT != 0 }),
        }
    }
}

/// Reserves room for a receive of unknown length.
const RECEIVE_BYTES_MIN: usize = 16 * 1024;
