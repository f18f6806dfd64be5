//! Listening sockets, with errors as Python programs expect them.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use ucall_engine::{Address, Bound, Listener};

/// Binds and listens. The error has the number that Python programs check.
pub(crate) fn bind(address: &Address) -> PyResult<Bound> {
    address.bind(false).map_err(to_python)
}

/// The prefix of the number of an inherited listening socket, in place of a host.
pub(crate) const FD: &str = "fd:";

/// A copy of a listening socket that this process has inherited. The socket stays open, for the
/// next run and for other processes.
pub(crate) fn inherit(descriptor: RawFd) -> PyResult<Bound> {
    // SAFETY: the call touches no memory; for a number that is not open it fails.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    let inherited = match copy {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: it was just made.
        copy => Bound::inherit(Listener::from(unsafe { OwnedFd::from_raw_fd(copy) }).inherited()),
    };
    inherited.map_err(|error| {
        let (number, reason) = match error.raw_os_error() {
            Some(libc::EBADF) => (libc::EBADF, "it is not open in this process".to_owned()),
            Some(libc::ENOTSOCK) => (libc::ENOTSOCK, "it is no socket".to_owned()),
            number => (number.unwrap_or(libc::EINVAL), error.to_string()),
        };
        let text = format!("fd: cannot listen on descriptor {descriptor}: {reason}");
        PyOSError::new_err((number, text))
    })
}

/// An error of binding, with the system's number.
pub(crate) fn to_python(error: io::Error) -> PyErr {
    let number = match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => return error.into(),
    };
    PyOSError::new_err((number, error.to_string()))
}
